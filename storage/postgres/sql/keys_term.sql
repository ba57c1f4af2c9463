-- Locks the term, if it is the one that the caller believes to lead. An election waits for the lock.
select from {{term}} t where t.number = $1::bigint and {{held "t"}} for key share of t
