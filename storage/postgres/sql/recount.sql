-- Heartbeats ask for commands only while there are any. The row was locked by a statement before.
update {{counter}} set waiting = (select count(*) from {{command}} where done_at is null)
