-- Raises the fence. It waits only for transactions that hold the fence with a lower generation.
update {{fence}} set generation = $3::bigint, stamped_at = clock_timestamp()
where daemon = $1 and index = $2::bigint and generation < $3::bigint
