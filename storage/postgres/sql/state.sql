select clock_timestamp(), {{store_id}},
	t.number, t.ordinal, t.node_id, t.incarnation, t.name, t.elected_at, t.vacant,
	l.expires_at, l.renewals, l.last_pass_at, l.pass_seq, c.head, c.oldest
from {{term}} t, {{lease}} l, {{counter}} c
