-- Records the identity of the server that has the rows now. The first heartbeat that finds them on another server, or
-- finds that they have lost events ($3), also records the time.
update {{counter}} set
	other_since = case when store_id = '' and not $3::boolean then other_since else clock_timestamp() end,
	store_id = $1
where store_id = $2
