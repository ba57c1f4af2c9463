-- Heartbeats ask for commands only while some wait. A statement before locked the row.
update {{counter}} set waiting = (select count(*) from {{command}} where done_at is null)
