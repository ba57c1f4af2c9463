-- The guard of a leader's write: no row, no write. A take-over waits for this lock, a renewal
-- does not touch the row.
select from {{term}} t
where t.number = $1 and t.node_id = $2 and t.incarnation = $3 and {{held "t"}}
for key share
