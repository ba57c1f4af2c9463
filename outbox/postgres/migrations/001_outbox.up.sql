-- The outbox. A message draws its number (id) after its transaction has got its own number (tx): Postgres computes
-- defaults in the order of the columns. Relays rely on this order.

-- The log. Rows are added and never changed; old ones are deleted by whole partitions. What a producer leaves empty is
-- null. Readers find new rows by id, and rows of transactions that took long by (tx, id).
create table {{outbox}} (
	tx          xid8        not null default pg_current_xact_id(), -- of the top-level transaction, also within a savepoint
	-- An identity column needs no right on its sequence, so a role that may only insert can draw an id here and in no
	-- other way. A cache of numbers for each session would break the order within a key.
	id          bigint      not null generated always as identity (sequence name {{outbox_id}} cache 1),
	shard       smallint    not null check (shard between 0 and 63),
	created_at  timestamptz not null default clock_timestamp(),
	dedup_id    uuid        not null default gen_random_uuid(),
	key         text collate "C", -- null: the message has no order
	topic       text not null,
	type        text,
	headers     json, -- an object of strings
	traceparent text,
	tracestate  text,
	payload     bytea,
	{{limits}},
	primary key (id)
) partition by range (id);
create index {{name "outbox_tx"}} on {{outbox}} (tx, id);

-- A partition has the ids from lo to hi - 1. Once all of them are drawn, x0 is set to a transaction number that is
-- above those of all transactions with messages in the partition. Only the functions below write this table, so nobody
-- but the owner of the tables can choose what the functions truncate and drop. The partition itself is the one of the
-- log whose name ends in its number.
create table {{outbox_partition}} (
	n          bigint primary key,
	lo         bigint not null,
	hi         bigint not null,
	made_at    timestamptz not null default clock_timestamp(),
	passed_at  timestamptz,
	x0         xid8,
	emptied_at timestamptz
);

-- Which Postgres server numbers the transactions. The era counts how often the data was restored into another server.
-- Ids up to base belong to earlier eras, and all their transactions have ended.
create table {{outbox_state}} (
	era   integer not null default 0,
	base  bigint not null default 0,
	sysid text,
	-- The highest number of ids drawn in a second, of recent measurements.
	drawn bigint not null default 0,
	drawn_at timestamptz not null default clock_timestamp(),
	peak  double precision not null default 0,
	width bigint not null, -- the smallest number of ids in a partition
	one   boolean primary key default true check (one)
);
insert into {{outbox_state}} (width) values ({{width}});

-- Messages that are not due yet. A relay of their shard moves them into the log when they are.
create table {{outbox_delayed}} (
	id          bigint generated always as identity primary key,
	shard       smallint    not null check (shard between 0 and 63),
	not_before  timestamptz not null,
	created_at  timestamptz not null default clock_timestamp(),
	dedup_id    uuid        not null,
	key         text collate "C",
	topic       text not null,
	type        text,
	headers     json,
	traceparent text,
	tracestate  text,
	payload     bytea,
	{{limits}}
);
create index {{name "outbox_delayed_due"}} on {{outbox_delayed}} (not_before, id, shard);

create table {{outbox_subscription}} (
	name            text collate "C" primary key,
	instances       integer not null, -- of the last claim that was accepted
	instances_epoch bigint not null,  -- the highest epoch that ever claimed
	paused          boolean not null default false,
	replayed        bigint not null default 0, -- the end of the log at the last replay: messages up to here may be delivered again
	created_at      timestamptz not null default clock_timestamp()
);

-- The cursors of the subscriptions. The rows of one subscription cover each shard exactly once. These messages are
-- delivered, or stand in a lane, or are dead:
--   - those that the snapshot snap_from sees, except ids above again (a replay);
--   - while the messages between snap_from and snap_to are delivered: those that snap_to sees, up to the id last.
-- A snapshot sees all ids up to its base, whatever their tx is. Messages of transactions that began after snap_from
-- have ids above floor.
create table {{outbox_cursor}} (
	subscription text collate "C" not null,
	lo           smallint not null,
	hi           smallint not null,
	claim_lo     smallint not null,
	claim_hi     smallint not null,
	epoch        bigint not null, -- the generation of the relay that owns the row
	turn         bigint not null, -- raised by claims and by operators: a reader then discards what it has in memory
	rev          bigint not null, -- raised by every write
	era          integer not null,
	snap_from    pg_snapshot not null,
	base_from    bigint not null,
	snap_to      pg_snapshot,
	base_to      bigint not null default 0,
	last         bigint not null default 0,
	floor        bigint not null,
	again        bigint,
	drawn        bigint not null, -- the last id drawn before the row was written
	node         text not null default '',
	updated_at   timestamptz not null default clock_timestamp(),
	trouble      text not null default '', -- why the owner delivers nothing; empty if it delivers
	primary key (subscription, lo)
) with (fillfactor = 50);

-- A lane is a key that waits (solo = 0), or a single message: one without a key, or a dead one that was put back.
create table {{outbox_lane}} (
	subscription text collate "C" not null,
	shard        smallint not null,
	key          text collate "C" not null,
	solo         bigint not null,
	held         boolean not null default false,
	attempts     integer not null default 0,
	next_at      timestamptz not null default clock_timestamp(),
	cause        text not null default '',
	primary key (subscription, shard, key, solo)
);
create index {{name "outbox_lane_due"}} on {{outbox_lane}} (subscription, next_at, shard) where not held;

-- The messages of the lanes, copied from the log. lane is the key of the lane, or empty if it has none.
create table {{outbox_parked}} (
	subscription text collate "C" not null,
	id           bigint not null,
	shard        smallint not null,
	lane         text collate "C" not null,
	solo         bigint not null,
	parked_at    timestamptz not null default clock_timestamp(),
	created_at   timestamptz not null,
	dedup_id     uuid not null,
	key          text collate "C",
	topic        text not null,
	type         text,
	headers      json,
	traceparent  text,
	tracestate   text,
	payload      bytea,
	primary key (subscription, id)
);
create index {{name "outbox_parked_lane"}} on {{outbox_parked}} (subscription, shard, lane, solo, id);

create table {{outbox_dead}} (
	subscription text collate "C" not null,
	id           bigint not null,
	shard        smallint not null,
	attempts     integer not null,
	died_at      timestamptz not null default clock_timestamp(),
	cause        text not null,
	created_at   timestamptz not null,
	dedup_id     uuid not null,
	key          text collate "C",
	topic        text not null,
	type         text,
	headers      json,
	traceparent  text,
	tracestate   text,
	payload      bytea,
	primary key (subscription, id)
);

-- Functions that run with the rights of their owner create, close and drop partitions, so programs need only rights on
-- rows. Each function of the outbox sets its own search path, in which no object that a caller has created hides
-- another.

-- Creates partitions until the log has room for that many ids, but no more than 64 that are still empty. Attaching a
-- partition waits for no publisher.
create function {{function "outbox_extend"}}(room bigint, width bigint) returns integer
language plpgsql security definer set search_path = pg_catalog, pg_temp set lock_timeout = '200ms' as $extend$
declare
	made integer := 0;
	ahead integer;
	top bigint;
	number bigint;
	drawn bigint;
	leaf text;
begin
	if width not between 1 and 1::bigint << 40 or room not between 0 and 1::bigint << 50 then
		raise exception 'there is no room of % in partitions of %', room, width;
	end if;
	perform pg_advisory_xact_lock({{scope}}, -1);
	select s.last_value into drawn from {{outbox_id}} s;
	select coalesce(max(p.hi), 1), coalesce(max(p.n), 0), count(*) filter (where p.lo > drawn)
		into top, number, ahead from {{outbox_partition}} p;
	width := greatest(width, (select s.width from {{outbox_state}} s));
	while top <= drawn + room and ahead + made < 64 loop
		number := number + 1;
		leaf := {{text "outbox_p"}} || number;
		execute format('create table {{schema}}.%I (like {{outbox}} including constraints)', leaf);
		execute format('alter table {{outbox}} attach partition {{schema}}.%I for values from (%s) to (%s)', leaf, top, top + width);
		insert into {{outbox_partition}} (n, lo, hi) values (number, top, top + width);
		top := top + width;
		made := made + 1;
	end loop;
	return made;
end
$extend$;

-- Sets x0 of each partition that is full. It reads the sequence before the transaction gets its number, so every
-- transaction that has drawn an id of the partition has a lower number.
create function {{function "outbox_pass"}}() returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp as $pass$
declare
	drawn bigint;
begin
	if pg_current_xact_id_if_assigned() is not null then
		raise exception 'this transaction has a number already, which may be below those of transactions with messages';
	end if;
	select case when s.is_called then s.last_value else 0 end into drawn from {{outbox_id}} s;
	update {{outbox_partition}} p set x0 = pg_current_xact_id(), passed_at = coalesce(p.passed_at, clock_timestamp())
		where p.x0 is null and p.emptied_at is null and p.hi <= drawn + 1;
end
$pass$;

-- Closes a partition that is being filled: it skips the remaining ids of the partition, which do not count as speed.
-- The lock of ALTER SEQUENCE keeps publishers from drawing an id meanwhile. If an open transaction that has published
-- holds the sequence, the function returns false after 10 ms.
create function {{function "outbox_close"}}(which bigint) returns boolean
language plpgsql security definer set search_path = pg_catalog, pg_temp set lock_timeout = '10ms' as $close$
declare
	p {{outbox_partition}};
	was bigint;
begin
	alter sequence {{outbox_id}} cache 1;
	select * into p from {{outbox_partition}} q where q.n = which;
	select s.last_value into was from {{outbox_id}} s where s.is_called;
	if p.n is null or was is null or was < p.lo or was >= p.hi - 1 then
		return false;
	end if;
	perform setval({{regclass "outbox_id"}}, p.hi - 1);
	update {{outbox_state}} s set drawn = s.drawn + p.hi - 1 - was;
	return true;
exception when lock_not_available then
	return false;
end
$close$;

-- Returns the partition of the log with that number, quoted for a statement. A table of such a name that is no partition
-- of the log is not returned.
create function {{function "outbox_leaf"}}(which bigint) returns text
language plpgsql stable security invoker set search_path = pg_catalog, pg_temp as $leaf$
declare
	leaf text;
begin
	select i.inhrelid::regclass::text into leaf from pg_inherits i join pg_class c on c.oid = i.inhrelid
		where i.inhparent = {{regclass "outbox"}} and c.relname = {{text "outbox_p"}} || which;
	if leaf is null then
		raise exception 'the outbox has no partition %', which;
	end if;
	return leaf;
end
$leaf$;

-- Empties a partition that is older than keep (microseconds) and that every cursor has passed. A cursor has passed it if
-- no transaction that wrote into it was open when the cursor's snap_from was taken, or if an operator moved the cursor
-- over it (base_from) and no such transaction is open now. This is checked again here, in the transaction that deletes.
create function {{function "outbox_empty"}}(which bigint, keep bigint) returns boolean
language plpgsql security definer set search_path = pg_catalog, pg_temp set lock_timeout = '200ms' as $empty$
declare
	p {{outbox_partition}};
begin
	select * into p from {{outbox_partition}} q
		where q.n = which and q.x0 is not null and q.emptied_at is null for update;
	if not found or p.passed_at > clock_timestamp() - keep * interval '1 microsecond' or exists (
		select from {{outbox_cursor}} c, {{outbox_state}} s
		where c.again < p.hi - 1
			or c.era < s.era and (c.drawn < p.hi - 1 or c.snap_to is not null and c.last < p.hi - 1)
			or case when c.base_from >= p.hi - 1 then pg_snapshot_xmin(pg_current_snapshot()) <= p.x0
				else c.era < s.era or pg_snapshot_xmin(c.snap_from) <= p.x0 end
	) then
		return false;
	end if;
	execute 'truncate table ' || {{function "outbox_leaf"}}(which);
	update {{outbox_partition}} q set emptied_at = clock_timestamp() where q.n = which;
	return true;
end
$empty$;

-- Drops an empty partition. For a moment, nobody else may use the log. The function gives up if it cannot get the lock at
-- once or, if pressing is true, within a fifth of a second.
create function {{function "outbox_drop"}}(which bigint, pressing boolean) returns boolean
language plpgsql security definer set search_path = pg_catalog, pg_temp set lock_timeout = '200ms' as $drop$
declare
	p {{outbox_partition}};
begin
	select * into p from {{outbox_partition}} q where q.n = which and q.emptied_at is not null for update;
	if not found then
		return false;
	end if;
	if pressing then
		lock table only {{outbox}} in access exclusive mode;
	else
		lock table only {{outbox}} in access exclusive mode nowait;
	end if;
	execute 'drop table ' || {{function "outbox_leaf"}}(which);
	delete from {{outbox_partition}} q where q.n = which;
	return true;
exception when lock_not_available then
	return false;
end
$drop$;

-- Begins another era, because another server numbered the transactions in the log. The lock keeps publishers out
-- meanwhile, so every transaction with an id up to base has ended.
create function {{function "outbox_begin_era"}}(was integer, now_at text) returns void
language plpgsql security definer set search_path = pg_catalog, pg_temp set lock_timeout = '2s' as $era$
begin
	lock table {{outbox}} in share mode;
	update {{outbox_state}} s set era = s.era + 1, sysid = now_at, base = coalesce((select max(o.id) from {{outbox}} o), 0)
		where s.era = was;
	if found then
		update {{outbox_partition}} set x0 = null;
	end if;
end
$era$;

-- Publishes a message, for programs in other languages. Constraints of the tables check the limits.
create function {{function "outbox_publish"}}(
	topic text, payload bytea, key text default null, type text default null, headers json default null,
	not_before timestamptz default null, dedup_id uuid default null, traceparent text default null, tracestate text default null
) returns uuid
language plpgsql security invoker set search_path = pg_catalog, pg_temp as $publish$
#variable_conflict use_variable
declare
	hash bytea := sha256(convert_to(key, 'UTF8'));
	message uuid := coalesce(dedup_id, gen_random_uuid());
	shard smallint := coalesce(get_byte(hash, 0) % 64, floor(random() * 64));
begin
	if key <> '' then
		perform pg_advisory_xact_lock_shared({{scope}}, shard);
		perform pg_advisory_xact_lock({{scope}} + 1, ('x' || encode(substr(hash, 2, 4), 'hex'))::bit(32)::int);
	end if;
	if not_before > clock_timestamp() then
		insert into {{outbox_delayed}} (shard, not_before, dedup_id, key, topic, type, headers, traceparent, tracestate, payload)
			values (shard, not_before, message, nullif(key, ''), topic, type, headers, traceparent, tracestate, payload);
	else
		insert into {{outbox}} (shard, dedup_id, key, topic, type, headers, traceparent, tracestate, payload)
			values (shard, message, nullif(key, ''), topic, type, headers, traceparent, tracestate, payload);
	end if;
	return message;
end
$publish$;

-- Grants decide who may execute them: see GrantSQL of package postgres.
{{range privileged}}revoke all on function {{.}} from public;
{{end}}
select {{function "outbox_extend"}}({{room}}, {{width}});
