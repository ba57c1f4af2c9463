-- The guard of a leader's write: without a row it writes nothing. An election waits for this lock.
-- A renewal does not touch the row.
select from {{term}} t
where t.number = $1 and t.node_id = $2 and t.incarnation = $3 and {{held "t"}}
for key share
