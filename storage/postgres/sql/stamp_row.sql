-- Inserts the row if it is missing, so that the next statement has one to wait for. This statement
-- never waits for transactions that hold the fence.
insert into {{fence}} (daemon, index, generation, stamped_at) values ($1, $2::bigint, 0, clock_timestamp())
on conflict do nothing
