-- The same as beat, for heartbeats with further statements that write: those require the mark.
update {{node}} set
	seq = $2,
	last_heartbeat_at = clock_timestamp(),
	heard_at = case when $3 > heard then clock_timestamp() else heard_at end,
	heard = greatest(heard, $3),
	highest_term = greatest(highest_term, $4),
	highest_generation = greatest(highest_generation, $5)
where incarnation = $1 and seq < $2 and state <> 'removed'
returning {{mark "$1 || case when never_lead then '' else '!' end"}}
