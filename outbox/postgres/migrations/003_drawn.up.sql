-- The functions of version 1 read the last id that was drawn by a SELECT from the sequence. Such a SELECT may find up to 32
-- more: when a publisher draws an id and the sequence logs the next ones, it holds their last one for a moment, and a SELECT
-- does not wait for the lock of its page. A partition could count as full while some of its ids were still to be drawn.
-- (outbox_extend still reads so: it makes a partition a little sooner.)

-- Sets x0 of each partition that is full. It reads the last id before the transaction gets its number, so every
-- transaction that has drawn an id of the partition has a lower number.
create or replace function {{function "outbox_pass"}}() returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $pass$
declare
	last bigint;
begin
	if pg_current_xact_id_if_assigned() is not null then
		raise exception 'this transaction has a number already, which may be below those of transactions with messages';
	end if;
	last := coalesce(pg_sequence_last_value({{regclass "outbox_id"}}), 0);
	update {{outbox_partition}} p set x0 = pg_current_xact_id(), passed_at = coalesce(p.passed_at, clock_timestamp())
		where p.x0 is null and p.emptied_at is null and p.hi <= last + 1;
end
$pass$;

-- Closes a partition that is being filled: it skips the remaining ids of the partition, which do not count as speed.
-- The lock keeps publishers from drawing an id meanwhile, and lets relays read. If an open transaction that has published holds
-- the log, the function returns false after 10 ms. (Version 1 used ALTER SEQUENCE. That locks as well, but puts the sequence
-- into another file, so that a statement which reads it at that moment finds nothing.)
create or replace function {{function "outbox_close"}}(which bigint) returns boolean
language plpgsql security definer set search_path = pg_catalog, pg_temp set lock_timeout = '10ms' as $close$
declare
	p {{outbox_partition}};
	last bigint;
begin
	lock table only {{outbox}} in share row exclusive mode;
	select * into p from {{outbox_partition}} q where q.n = which;
	last := coalesce(pg_sequence_last_value({{regclass "outbox_id"}}), 0);
	if p.n is null or last < p.lo or last >= p.hi - 1 then
		return false;
	end if;
	update {{outbox_state}} s set drawn = s.drawn + p.hi - 1 - last;
	perform setval({{regclass "outbox_id"}}, p.hi - 1); -- last, because nothing takes it back
	return true;
exception when lock_not_available then
	return false;
end
$close$;
