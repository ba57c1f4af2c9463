-- Admits one submission of an ID at a time.
select pg_advisory_xact_lock(hashtextextended({{literal "command"}} || $1, 0))
