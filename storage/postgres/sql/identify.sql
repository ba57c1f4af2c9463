-- The first heartbeat that finds the rows on another server notes when.
update {{counter}} set
	other_since = case when store_id = '' then other_since else clock_timestamp() end,
	store_id = $1
where store_id <> $1
