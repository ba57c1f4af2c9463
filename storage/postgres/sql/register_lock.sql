-- Admits one registration of an ID at a time, because two processes that register it at the same time would not see each
-- other.
select pg_advisory_xact_lock(hashtextextended({{literal "register"}} || $1, 0))
