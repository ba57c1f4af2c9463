-- Guards a leader's write: if this finds no row, the caller no longer leads, and nothing is written. An election waits
-- for this lock. A renewal does not touch the row.
select from {{term}} t
where t.number = $1::bigint and t.node_id = $2 and t.incarnation = $3 and {{held "t"}}
for key share
