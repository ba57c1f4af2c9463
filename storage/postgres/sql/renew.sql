-- storage.Decide for a holder that does not stand. The lease row is locked: an election takes
-- the same lock before it changes anything, so the term read here is the term at the commit.
update {{lease}} l set
	expires_at = clock_timestamp() + $5 * interval '1 microsecond',
	renewals = l.renewals + 1,
	last_pass_at = case when $6 > l.pass_seq then clock_timestamp() else l.last_pass_at end,
	pass_seq = greatest(l.pass_seq, $6)
from {{term}} t, {{node}} n
where n.incarnation = $1 and n.seq = $2 and {{written "n"}} and not n.never_lead
	and t.number = $3 and t.number > $4 and {{held "t"}} and t.node_id = n.id and t.incarnation = n.incarnation
	and l.term = t.number
