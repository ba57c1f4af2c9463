-- The first heartbeat that finds the rows on another server, or without newer events ($3), records
-- the time.
update {{counter}} set
	other_since = case when store_id = '' and not $3 then other_since else clock_timestamp() end,
	store_id = $1
where store_id = $2
