-- Writes the node's own row, if the sequence number is newer, and returns the number that it had before. The mark tells the statements after it, which write only
-- if this one did. The function heartbeat_8 does the same for simple heartbeats.
update {{node}} set
	seq = $2::bigint,
	last_heartbeat_at = clock_timestamp(),
	heard_at = case when $3::bigint > heard then clock_timestamp() else heard_at end,
	heard = greatest(heard, $3::bigint),
	highest_term = greatest(highest_term, $4::bigint),
	highest_generation = greatest(highest_generation, $5::bigint)
where incarnation = $1 and seq < $2::bigint and state <> 'removed'
returning {{mark "$1 || case when never_lead then '' else '!' end"}}, (select o.seq from {{node}} o where o.incarnation = $1)
