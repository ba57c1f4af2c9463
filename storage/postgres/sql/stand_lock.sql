-- Locks the term for a candidate that may be elected, and marks it so. An election waits here for a commit that is under
-- way in the term that it replaces. Any other candidate is refused: it waits for nothing, and nobody waits for it.
-- The next statements see what has happened meanwhile, and decide.
with clock as materialized (select clock_timestamp() as now),
locked as materialized (
	select from {{term}} t, {{lease}} l, clock
	where $5::boolean or not {{held "t"}} or t.incarnation = $1
		or t.number = $2::bigint and l.renewals = $3::bigint and ($4::boolean or clock.now >= l.expires_at)
	for update of t
)
select set_config('emitd.candidate', $1, true) from locked
