-- Counts the open commands on which nodes act. Heartbeats ask for commands only if there are some. An earlier statement
-- locked the row.
update {{counter}} set waiting = (select count(*) from {{command}} where done_at is null and kind in ({{fornodes}}))
