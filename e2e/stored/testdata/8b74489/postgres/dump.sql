SET statement_timeout = 0;
SET lock_timeout = 0;
SET idle_in_transaction_session_timeout = 0;
SET client_encoding = 'UTF8';
SET standard_conforming_strings = on;
SELECT pg_catalog.set_config('search_path', '', false);
SET check_function_bodies = false;
SET xmloption = content;
SET client_min_messages = warning;
SET row_security = off;
CREATE SCHEMA emitd;
CREATE SCHEMA outbox;
CREATE FUNCTION emitd.heartbeat_1(patience text, who text, beat bigint, heard_by bigint, term_seen bigint, generation_seen bigint, holds bigint, lost_through bigint, lease_micros bigint, pass bigint, roll_after bigint, roll_to bigint, OUT single text, OUT units text[], OUT roll text[], OUT waiting text[]) RETURNS record
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
#variable_conflict use_variable
declare
	candidate boolean;
	renewed boolean := false;
	rolled bigint;
	open bigint;
	ignored text;
begin
	if current_setting('transaction_isolation') <> 'read committed' then
		raise exception using errcode = '25000', message = format(
			'transactions of this role begin as %s: set its default_transaction_isolation to %L',
			current_setting('transaction_isolation'), 'read committed');
	end if;
	ignored := set_config('lock_timeout', patience, true);
	update "emitd"."node" n set
		seq = beat,
		last_heartbeat_at = clock_timestamp(),
		heard_at = case when heard_by > n.heard then clock_timestamp() else n.heard_at end,
		heard = greatest(n.heard, heard_by),
		highest_term = greatest(n.highest_term, term_seen),
		highest_generation = greatest(n.highest_generation, generation_seen)
	where n.incarnation = who and n.seq < beat and n.state <> 'removed'
	returning not n.never_lead into candidate;
	if not found then
		return;
	end if;
	if holds > lost_through and candidate then
		update "emitd"."lease" l set
			expires_at = clock_timestamp() + lease_micros * interval '1 microsecond',
			renewals = l.renewals + 1,
			last_pass_at = case when pass > l.pass_seq then clock_timestamp() else l.last_pass_at end,
			pass_seq = greatest(l.pass_seq, pass)
		where l.term = holds and l.incarnation = who;
		renewed := found;
	end if;
	select row(renewed, c, clock_timestamp(), pg_postmaster_start_time(), pg_walfile_name(pg_current_wal_insert_lsn()),
				(select t from "emitd"."term" t), (select l from "emitd"."lease" l))::text,
			array(select u::text from "emitd"."unit" u where u.owner = who), c.rolled, c.waiting
		into strict single, units, rolled, open -- without its row the store is broken, and nothing is written
		from "emitd"."counter" c;
	if roll_after >= 0 and roll_after < rolled then
		roll := array(select e::text from "emitd"."event" e where e.seq > roll_after and e.seq <= roll_to and e.roll);
	end if;
	if open > 0 then
		waiting := array(select k::text from "emitd"."command" k where k.done_at is null);
	end if;
end
$$;
CREATE FUNCTION outbox.outbox_begin_era(was integer, now_at text) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET lock_timeout TO '2s'
    AS $$
begin
	lock table "outbox"."outbox" in share mode;
	update "outbox"."outbox_state" s set era = s.era + 1, sysid = now_at, base = coalesce((select max(o.id) from "outbox"."outbox" o), 0)
		where s.era = was;
	if found then
		update "outbox"."outbox_partition" set x0 = null;
	end if;
end
$$;
CREATE FUNCTION outbox.outbox_close(which bigint) RETURNS boolean
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET lock_timeout TO '10ms'
    AS $$
declare
	p "outbox"."outbox_partition";
	was bigint;
begin
	alter sequence "outbox"."outbox_id" cache 1;
	select * into p from "outbox"."outbox_partition" q where q.n = which;
	select s.last_value into was from "outbox"."outbox_id" s where s.is_called;
	if p.n is null or was is null or was < p.lo or was >= p.hi - 1 then
		return false;
	end if;
	perform setval('"outbox"."outbox_id"'::regclass, p.hi - 1);
	update "outbox"."outbox_state" s set drawn = s.drawn + p.hi - 1 - was;
	return true;
exception when lock_not_available then
	return false;
end
$$;
CREATE FUNCTION outbox.outbox_drop(which bigint, pressing boolean) RETURNS boolean
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET lock_timeout TO '200ms'
    AS $$
declare
	p "outbox"."outbox_partition";
begin
	select * into p from "outbox"."outbox_partition" q where q.n = which and q.emptied_at is not null for update;
	if not found then
		return false;
	end if;
	if pressing then
		lock table only "outbox"."outbox" in access exclusive mode;
	else
		lock table only "outbox"."outbox" in access exclusive mode nowait;
	end if;
	execute 'drop table ' || "outbox"."outbox_leaf"(which);
	delete from "outbox"."outbox_partition" q where q.n = which;
	return true;
exception when lock_not_available then
	return false;
end
$$;
CREATE FUNCTION outbox.outbox_empty(which bigint, keep bigint) RETURNS boolean
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET lock_timeout TO '200ms'
    AS $$
declare
	p "outbox"."outbox_partition";
begin
	select * into p from "outbox"."outbox_partition" q
		where q.n = which and q.x0 is not null and q.emptied_at is null for update;
	if not found or p.passed_at > clock_timestamp() - keep * interval '1 microsecond' or exists (
		select from "outbox"."outbox_cursor" c, "outbox"."outbox_state" s
		where c.again < p.hi - 1
			or c.era < s.era and (c.drawn < p.hi - 1 or c.snap_to is not null and c.last < p.hi - 1)
			or case when c.base_from >= p.hi - 1 then pg_snapshot_xmin(pg_current_snapshot()) <= p.x0
				else c.era < s.era or pg_snapshot_xmin(c.snap_from) <= p.x0 end
	) then
		return false;
	end if;
	execute 'truncate table ' || "outbox"."outbox_leaf"(which);
	update "outbox"."outbox_partition" q set emptied_at = clock_timestamp() where q.n = which;
	return true;
end
$$;
CREATE FUNCTION outbox.outbox_extend(room bigint, width bigint) RETURNS integer
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    SET lock_timeout TO '200ms'
    AS $$
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
	perform pg_advisory_xact_lock(308321994, -1);
	select s.last_value into drawn from "outbox"."outbox_id" s;
	select coalesce(max(p.hi), 1), coalesce(max(p.n), 0), count(*) filter (where p.lo > drawn)
		into top, number, ahead from "outbox"."outbox_partition" p;
	width := greatest(width, (select s.width from "outbox"."outbox_state" s));
	while top <= drawn + room and ahead + made < 64 loop
		number := number + 1;
		leaf := 'outbox_p' || number;
		execute format('create table "outbox".%I (like "outbox"."outbox" including constraints)', leaf);
		execute format('alter table "outbox"."outbox" attach partition "outbox".%I for values from (%s) to (%s)', leaf, top, top + width);
		insert into "outbox"."outbox_partition" (n, lo, hi) values (number, top, top + width);
		top := top + width;
		made := made + 1;
	end loop;
	return made;
end
$$;
CREATE FUNCTION outbox.outbox_leaf(which bigint) RETURNS text
    LANGUAGE plpgsql STABLE
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
	leaf text;
begin
	select i.inhrelid::regclass::text into leaf from pg_inherits i join pg_class c on c.oid = i.inhrelid
		where i.inhparent = '"outbox"."outbox"'::regclass and c.relname = 'outbox_p' || which;
	if leaf is null then
		raise exception 'the outbox has no partition %', which;
	end if;
	return leaf;
end
$$;
CREATE FUNCTION outbox.outbox_pass() RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
declare
	drawn bigint;
begin
	if pg_current_xact_id_if_assigned() is not null then
		raise exception 'this transaction has a number already, which may be below those of transactions with messages';
	end if;
	select case when s.is_called then s.last_value else 0 end into drawn from "outbox"."outbox_id" s;
	update "outbox"."outbox_partition" p set x0 = pg_current_xact_id(), passed_at = coalesce(p.passed_at, clock_timestamp())
		where p.x0 is null and p.emptied_at is null and p.hi <= drawn + 1;
end
$$;
CREATE FUNCTION outbox.outbox_publish(topic text, payload bytea, key text DEFAULT NULL::text, type text DEFAULT NULL::text, headers json DEFAULT NULL::json, not_before timestamp with time zone DEFAULT NULL::timestamp with time zone, dedup_id uuid DEFAULT NULL::uuid, traceparent text DEFAULT NULL::text, tracestate text DEFAULT NULL::text) RETURNS uuid
    LANGUAGE plpgsql
    SET search_path TO 'pg_catalog', 'pg_temp'
    AS $$
#variable_conflict use_variable
declare
	hash bytea := sha256(convert_to(key, 'UTF8'));
	message uuid := coalesce(dedup_id, gen_random_uuid());
	shard smallint := coalesce(get_byte(hash, 0) % 64, floor(random() * 64));
begin
	if key <> '' then
		perform pg_advisory_xact_lock_shared(308321994, shard);
		perform pg_advisory_xact_lock(308321994 + 1, ('x' || encode(substr(hash, 2, 4), 'hex'))::bit(32)::int);
	end if;
	if not_before > clock_timestamp() then
		insert into "outbox"."outbox_delayed" (shard, not_before, dedup_id, key, topic, type, headers, traceparent, tracestate, payload)
			values (shard, not_before, message, nullif(key, ''), topic, type, headers, traceparent, tracestate, payload);
	else
		insert into "outbox"."outbox" (shard, dedup_id, key, topic, type, headers, traceparent, tracestate, payload)
			values (shard, message, nullif(key, ''), topic, type, headers, traceparent, tracestate, payload);
	end if;
	return message;
end
$$;
SET default_tablespace = '';
SET default_table_access_method = heap;
CREATE TABLE emitd.advert (
    hash text NOT NULL COLLATE pg_catalog."C",
    body text NOT NULL,
    used_at timestamp with time zone NOT NULL
);
CREATE TABLE emitd.command (
    id text NOT NULL COLLATE pg_catalog."C",
    number bigint NOT NULL,
    kind text NOT NULL,
    actor text NOT NULL,
    reason text NOT NULL,
    term bigint NOT NULL,
    cooldown bigint NOT NULL,
    args json,
    created_at timestamp with time zone NOT NULL,
    done_at timestamp with time zone,
    result text NOT NULL
);
ALTER TABLE emitd.command ALTER COLUMN number ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME emitd.command_number_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
CREATE TABLE emitd.counter (
    head bigint NOT NULL,
    oldest bigint NOT NULL,
    rolled bigint NOT NULL,
    waiting bigint NOT NULL,
    lock_floor bigint NOT NULL,
    store_id text NOT NULL,
    other_since timestamp with time zone,
    cluster text DEFAULT ''::text NOT NULL,
    one boolean DEFAULT true NOT NULL,
    CONSTRAINT counter_one_check CHECK (one)
)
WITH (fillfactor='10');
CREATE TABLE emitd.event (
    seq bigint NOT NULL,
    at timestamp with time zone NOT NULL,
    kind text NOT NULL,
    node text NOT NULL,
    node_id text NOT NULL,
    incarnation text NOT NULL,
    daemon text NOT NULL,
    index integer,
    term bigint NOT NULL,
    term_ordinal bigint NOT NULL,
    generation bigint NOT NULL,
    reason text NOT NULL,
    detail json,
    roll boolean GENERATED ALWAYS AS (starts_with(kind, 'node.'::text)) STORED
);
CREATE TABLE emitd.fence (
    daemon text NOT NULL COLLATE pg_catalog."C",
    index integer NOT NULL,
    generation bigint NOT NULL,
    stamped_at timestamp with time zone NOT NULL
)
WITH (fillfactor='50');
CREATE TABLE emitd.lease (
    term bigint NOT NULL,
    incarnation text NOT NULL COLLATE pg_catalog."C",
    expires_at timestamp with time zone,
    renewals bigint NOT NULL,
    last_pass_at timestamp with time zone,
    pass_seq bigint NOT NULL,
    one boolean DEFAULT true NOT NULL,
    CONSTRAINT lease_one_check CHECK (one)
)
WITH (fillfactor='10');
CREATE TABLE emitd.lock (
    name text NOT NULL COLLATE pg_catalog."C",
    owner text NOT NULL,
    number bigint NOT NULL,
    renewals bigint NOT NULL,
    ttl bigint NOT NULL,
    expires_at timestamp with time zone NOT NULL
)
WITH (fillfactor='50');
CREATE TABLE emitd.migration (
    version integer NOT NULL,
    name text NOT NULL,
    compatible integer NOT NULL,
    applied_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL
);
CREATE TABLE emitd.node (
    incarnation text NOT NULL COLLATE pg_catalog."C",
    seq bigint NOT NULL,
    heard bigint NOT NULL,
    last_heartbeat_at timestamp with time zone NOT NULL,
    heard_at timestamp with time zone NOT NULL,
    highest_term bigint NOT NULL,
    highest_generation bigint NOT NULL,
    registered_at timestamp with time zone NOT NULL,
    ended_at timestamp with time zone,
    never_lead boolean NOT NULL,
    witnessed boolean NOT NULL,
    departed boolean NOT NULL,
    state text NOT NULL,
    judged text NOT NULL,
    id text NOT NULL COLLATE pg_catalog."C",
    name text NOT NULL,
    advert text NOT NULL,
    end_reason text NOT NULL,
    traits jsonb NOT NULL
)
WITH (fillfactor='50');
CREATE TABLE emitd.term (
    number bigint NOT NULL,
    ordinal bigint NOT NULL,
    node_id text NOT NULL COLLATE pg_catalog."C",
    incarnation text NOT NULL COLLATE pg_catalog."C",
    name text NOT NULL,
    elected_at timestamp with time zone,
    vacant boolean NOT NULL,
    one boolean DEFAULT true NOT NULL,
    CONSTRAINT term_one_check CHECK (one)
);
CREATE TABLE emitd.unit (
    daemon text NOT NULL COLLATE pg_catalog."C",
    index integer NOT NULL,
    state text NOT NULL,
    name text NOT NULL,
    node_id text NOT NULL COLLATE pg_catalog."C",
    incarnation text NOT NULL COLLATE pg_catalog."C",
    generation bigint NOT NULL,
    term bigint NOT NULL,
    since timestamp with time zone NOT NULL,
    assigned_at timestamp with time zone,
    revoked_at timestamp with time zone,
    acknowledge_timeout bigint NOT NULL,
    drain_timeout bigint NOT NULL,
    failures integer NOT NULL,
    forced boolean NOT NULL,
    retired boolean NOT NULL,
    reason text NOT NULL,
    error text NOT NULL,
    embargoes jsonb,
    failing_since timestamp with time zone,
    retry_at timestamp with time zone,
    owner text GENERATED ALWAYS AS (
CASE
    WHEN (state = ANY (ARRAY['unassigned'::text, 'deleted'::text])) THEN NULL::text
    ELSE incarnation
END) STORED COLLATE pg_catalog."C"
)
WITH (fillfactor='70');
CREATE TABLE outbox.outbox (
    tx xid8 DEFAULT pg_current_xact_id() NOT NULL,
    id bigint NOT NULL,
    shard smallint NOT NULL,
    created_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    dedup_id uuid DEFAULT gen_random_uuid() NOT NULL,
    key text COLLATE pg_catalog."C",
    topic text NOT NULL,
    type text,
    headers json,
    traceparent text,
    tracestate text,
    payload bytea,
    CONSTRAINT outbox_check CHECK ((((octet_length(topic) >= 1) AND (octet_length(topic) <= 255)) AND (octet_length(type) <= 255) AND (octet_length(key) <= 1024) AND (octet_length((headers)::text) <= 2097152) AND (octet_length(traceparent) <= 255) AND (octet_length(tracestate) <= 4096) AND (octet_length(payload) <= 1048576))),
    CONSTRAINT outbox_shard_check CHECK (((shard >= 0) AND (shard <= 63)))
)
PARTITION BY RANGE (id);
CREATE TABLE outbox.outbox_cursor (
    subscription text NOT NULL COLLATE pg_catalog."C",
    lo smallint NOT NULL,
    hi smallint NOT NULL,
    claim_lo smallint NOT NULL,
    claim_hi smallint NOT NULL,
    epoch bigint NOT NULL,
    turn bigint NOT NULL,
    rev bigint NOT NULL,
    era integer NOT NULL,
    snap_from pg_snapshot NOT NULL,
    base_from bigint NOT NULL,
    snap_to pg_snapshot,
    base_to bigint DEFAULT 0 NOT NULL,
    last bigint DEFAULT 0 NOT NULL,
    floor bigint NOT NULL,
    again bigint,
    drawn bigint NOT NULL,
    node text DEFAULT ''::text NOT NULL,
    updated_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    trouble text DEFAULT ''::text NOT NULL
)
WITH (fillfactor='50');
CREATE TABLE outbox.outbox_dead (
    subscription text NOT NULL COLLATE pg_catalog."C",
    id bigint NOT NULL,
    shard smallint NOT NULL,
    attempts integer NOT NULL,
    died_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    cause text NOT NULL,
    created_at timestamp with time zone NOT NULL,
    dedup_id uuid NOT NULL,
    key text COLLATE pg_catalog."C",
    topic text NOT NULL,
    type text,
    headers json,
    traceparent text,
    tracestate text,
    payload bytea
);
CREATE TABLE outbox.outbox_delayed (
    id bigint NOT NULL,
    shard smallint NOT NULL,
    not_before timestamp with time zone NOT NULL,
    created_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    dedup_id uuid NOT NULL,
    key text COLLATE pg_catalog."C",
    topic text NOT NULL,
    type text,
    headers json,
    traceparent text,
    tracestate text,
    payload bytea,
    CONSTRAINT outbox_delayed_check CHECK ((((octet_length(topic) >= 1) AND (octet_length(topic) <= 255)) AND (octet_length(type) <= 255) AND (octet_length(key) <= 1024) AND (octet_length((headers)::text) <= 2097152) AND (octet_length(traceparent) <= 255) AND (octet_length(tracestate) <= 4096) AND (octet_length(payload) <= 1048576))),
    CONSTRAINT outbox_delayed_shard_check CHECK (((shard >= 0) AND (shard <= 63)))
);
ALTER TABLE outbox.outbox_delayed ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME outbox.outbox_delayed_id_seq
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
ALTER TABLE outbox.outbox ALTER COLUMN id ADD GENERATED ALWAYS AS IDENTITY (
    SEQUENCE NAME outbox.outbox_id
    START WITH 1
    INCREMENT BY 1
    NO MINVALUE
    NO MAXVALUE
    CACHE 1
);
CREATE TABLE outbox.outbox_lane (
    subscription text NOT NULL COLLATE pg_catalog."C",
    shard smallint NOT NULL,
    key text NOT NULL COLLATE pg_catalog."C",
    solo bigint NOT NULL,
    held boolean DEFAULT false NOT NULL,
    attempts integer DEFAULT 0 NOT NULL,
    next_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    cause text DEFAULT ''::text NOT NULL
);
CREATE TABLE outbox.outbox_migration (
    version integer NOT NULL,
    name text NOT NULL,
    applied_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL
);
CREATE TABLE outbox.outbox_p1 (
    tx xid8 DEFAULT NULL NOT NULL,
    id bigint NOT NULL,
    shard smallint NOT NULL,
    created_at timestamp with time zone DEFAULT NULL NOT NULL,
    dedup_id uuid DEFAULT NULL NOT NULL,
    key text COLLATE pg_catalog."C",
    topic text NOT NULL,
    type text,
    headers json,
    traceparent text,
    tracestate text,
    payload bytea,
    CONSTRAINT outbox_check CHECK ((((octet_length(topic) >= 1) AND (octet_length(topic) <= 255)) AND (octet_length(type) <= 255) AND (octet_length(key) <= 1024) AND (octet_length((headers)::text) <= 2097152) AND (octet_length(traceparent) <= 255) AND (octet_length(tracestate) <= 4096) AND (octet_length(payload) <= 1048576))),
    CONSTRAINT outbox_shard_check CHECK (((shard >= 0) AND (shard <= 63)))
);
CREATE TABLE outbox.outbox_p2 (
    tx xid8 DEFAULT NULL NOT NULL,
    id bigint NOT NULL,
    shard smallint NOT NULL,
    created_at timestamp with time zone DEFAULT NULL NOT NULL,
    dedup_id uuid DEFAULT NULL NOT NULL,
    key text COLLATE pg_catalog."C",
    topic text NOT NULL,
    type text,
    headers json,
    traceparent text,
    tracestate text,
    payload bytea,
    CONSTRAINT outbox_check CHECK ((((octet_length(topic) >= 1) AND (octet_length(topic) <= 255)) AND (octet_length(type) <= 255) AND (octet_length(key) <= 1024) AND (octet_length((headers)::text) <= 2097152) AND (octet_length(traceparent) <= 255) AND (octet_length(tracestate) <= 4096) AND (octet_length(payload) <= 1048576))),
    CONSTRAINT outbox_shard_check CHECK (((shard >= 0) AND (shard <= 63)))
);
CREATE TABLE outbox.outbox_p3 (
    tx xid8 DEFAULT NULL NOT NULL,
    id bigint NOT NULL,
    shard smallint NOT NULL,
    created_at timestamp with time zone DEFAULT NULL NOT NULL,
    dedup_id uuid DEFAULT NULL NOT NULL,
    key text COLLATE pg_catalog."C",
    topic text NOT NULL,
    type text,
    headers json,
    traceparent text,
    tracestate text,
    payload bytea,
    CONSTRAINT outbox_check CHECK ((((octet_length(topic) >= 1) AND (octet_length(topic) <= 255)) AND (octet_length(type) <= 255) AND (octet_length(key) <= 1024) AND (octet_length((headers)::text) <= 2097152) AND (octet_length(traceparent) <= 255) AND (octet_length(tracestate) <= 4096) AND (octet_length(payload) <= 1048576))),
    CONSTRAINT outbox_shard_check CHECK (((shard >= 0) AND (shard <= 63)))
);
CREATE TABLE outbox.outbox_p4 (
    tx xid8 DEFAULT NULL NOT NULL,
    id bigint NOT NULL,
    shard smallint NOT NULL,
    created_at timestamp with time zone DEFAULT NULL NOT NULL,
    dedup_id uuid DEFAULT NULL NOT NULL,
    key text COLLATE pg_catalog."C",
    topic text NOT NULL,
    type text,
    headers json,
    traceparent text,
    tracestate text,
    payload bytea,
    CONSTRAINT outbox_check CHECK ((((octet_length(topic) >= 1) AND (octet_length(topic) <= 255)) AND (octet_length(type) <= 255) AND (octet_length(key) <= 1024) AND (octet_length((headers)::text) <= 2097152) AND (octet_length(traceparent) <= 255) AND (octet_length(tracestate) <= 4096) AND (octet_length(payload) <= 1048576))),
    CONSTRAINT outbox_shard_check CHECK (((shard >= 0) AND (shard <= 63)))
);
CREATE TABLE outbox.outbox_parked (
    subscription text NOT NULL COLLATE pg_catalog."C",
    id bigint NOT NULL,
    shard smallint NOT NULL,
    lane text NOT NULL COLLATE pg_catalog."C",
    solo bigint NOT NULL,
    parked_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    created_at timestamp with time zone NOT NULL,
    dedup_id uuid NOT NULL,
    key text COLLATE pg_catalog."C",
    topic text NOT NULL,
    type text,
    headers json,
    traceparent text,
    tracestate text,
    payload bytea
);
CREATE TABLE outbox.outbox_partition (
    n bigint NOT NULL,
    lo bigint NOT NULL,
    hi bigint NOT NULL,
    made_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    passed_at timestamp with time zone,
    x0 xid8,
    emptied_at timestamp with time zone
);
CREATE TABLE outbox.outbox_state (
    era integer DEFAULT 0 NOT NULL,
    base bigint DEFAULT 0 NOT NULL,
    sysid text,
    drawn bigint DEFAULT 0 NOT NULL,
    drawn_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL,
    peak double precision DEFAULT 0 NOT NULL,
    width bigint NOT NULL,
    one boolean DEFAULT true NOT NULL,
    CONSTRAINT outbox_state_one_check CHECK (one)
);
CREATE TABLE outbox.outbox_subscription (
    name text NOT NULL COLLATE pg_catalog."C",
    instances integer NOT NULL,
    instances_epoch bigint NOT NULL,
    paused boolean DEFAULT false NOT NULL,
    replayed bigint DEFAULT 0 NOT NULL,
    created_at timestamp with time zone DEFAULT clock_timestamp() NOT NULL
);
ALTER TABLE ONLY outbox.outbox ATTACH PARTITION outbox.outbox_p1 FOR VALUES FROM ('1') TO ('4194305');
ALTER TABLE ONLY outbox.outbox ATTACH PARTITION outbox.outbox_p2 FOR VALUES FROM ('4194305') TO ('8388609');
ALTER TABLE ONLY outbox.outbox ATTACH PARTITION outbox.outbox_p3 FOR VALUES FROM ('8388609') TO ('12582913');
ALTER TABLE ONLY outbox.outbox ATTACH PARTITION outbox.outbox_p4 FOR VALUES FROM ('12582913') TO ('16777217');
INSERT INTO emitd.advert VALUES ('79f2c3b52db50fc327e0f132d84b9965', '{"traits":{"capacity":0},"kinds":["acme:broken","acme:retired","acme:steady","emit:outbox/holds","emit:outbox/skips","emit:sweeper","emit:sweeper/outbox"],"specs":[{"id":"acme:broken","wait_ready":true,"max_failures":1},{"id":"acme:retired","wait_ready":true},{"id":"acme:steady","instances":2,"wait_ready":true},{"id":"emit:outbox/holds","instances":1,"max_failures":-1},{"id":"emit:outbox/skips","instances":1,"max_failures":-1},{"id":"emit:sweeper","instances":1,"max_failures":-1},{"id":"emit:sweeper/outbox","instances":1,"max_failures":-1}]}', '2026-11-23 20:35:39.3867+00');
INSERT INTO emitd.advert VALUES ('9a8a449937faf942c5d910eb4d0ea5ed', '{"traits":{"capacity":0},"kinds":["acme:broken","acme:steady","emit:outbox/holds","emit:outbox/skips","emit:sweeper","emit:sweeper/outbox"],"specs":[{"id":"acme:broken","wait_ready":true,"max_failures":1},{"id":"acme:steady","instances":2,"wait_ready":true},{"id":"emit:outbox/holds","instances":1,"max_failures":-1},{"id":"emit:outbox/skips","instances":1,"max_failures":-1},{"id":"emit:sweeper","instances":1,"max_failures":-1},{"id":"emit:sweeper/outbox","instances":1,"max_failures":-1}]}', '2026-11-23 20:35:43.058073+00');
INSERT INTO emitd.command OVERRIDING SYSTEM VALUE VALUES ('01a20a1f-2686-734d-a92a-81ad16d79e19', 1, 'leader.resign', 'ada', 'moving on', 1795466139469, 3600000000000, NULL, '2026-11-23 20:35:43.379489+00', '2026-11-23 20:35:43.390233+00', 'done');
INSERT INTO emitd.command OVERRIDING SYSTEM VALUE VALUES ('01a20a1f-65de-71d5-970d-ac94a014a2a0', 2, 'leader.resign', 'bob', 'too late', 1795466143469, 0, NULL, '2026-11-23 20:35:59.588881+00', NULL, '');
INSERT INTO emitd.counter VALUES (73, 1, 57, 1, 0, '7711468298370325073/00000001', NULL, 'stored', true);
INSERT INTO emitd.event VALUES (1, '2026-11-23 20:35:39.39764+00', 'node.registered', 'gone', '01a20a1f-0fbd-7d5e-81d1-178375ecfa27', '01a20a1f-1292-7d6c-9b24-4d9128d90be1', '', NULL, 0, 0, 0, '', NULL, DEFAULT);
INSERT INTO emitd.event VALUES (2, '2026-11-23 20:35:39.469416+00', 'leader.elected', 'gone', '01a20a1f-0fbd-7d5e-81d1-178375ecfa27', '01a20a1f-1292-7d6c-9b24-4d9128d90be1', '', NULL, 1795466139469, 1, 0, '', NULL, DEFAULT);
INSERT INTO emitd.event VALUES (3, '2026-11-23 20:35:41.580575+00', 'assignment.assigned', 'gone', '01a20a1f-0fbd-7d5e-81d1-178375ecfa27', '01a20a1f-1292-7d6c-9b24-4d9128d90be1', 'acme:broken', 0, 1795466139469, 0, 1795466139469, 'only candidate', '{"rule":"only candidate","chosen":"gone"}', DEFAULT);
INSERT INTO emitd.event VALUES (4, '2026-11-23 20:35:41.580575+00', 'assignment.assigned', 'gone', '01a20a1f-0fbd-7d5e-81d1-178375ecfa27', '01a20a1f-1292-7d6c-9b24-4d9128d90be1', 'acme:retired', 0, 1795466139469, 0, 1795466139469, 'only candidate', '{"rule":"only candidate","chosen":"gone"}', DEFAULT);
INSERT INTO emitd.event VALUES (5, '2026-11-23 20:35:41.580575+00', 'assignment.assigned', 'gone', '01a20a1f-0fbd-7d5e-81d1-178375ecfa27', '01a20a1f-1292-7d6c-9b24-4d9128d90be1', 'acme:steady', 0, 1795466139469, 0, 1795466139469, 'only candidate', '{"rule":"only candidate","chosen":"gone"}', DEFAULT);
INSERT INTO emitd.event VALUES (6, '2026-11-23 20:35:41.580575+00', 'assignment.assigned', 'gone', '01a20a1f-0fbd-7d5e-81d1-178375ecfa27', '01a20a1f-1292-7d6c-9b24-4d9128d90be1', 'acme:steady', 1, 1795466139469, 0, 1795466139469, 'only candidate', '{"rule":"only candidate","chosen":"gone"}', DEFAULT);
INSERT INTO emitd.event VALUES (7, '2026-11-23 20:35:41.580575+00', 'assignment.assigned', 'gone', '01a20a1f-0fbd-7d5e-81d1-178375ecfa27', '01a20a1f-1292-7d6c-9b24-4d9128d90be1', 'emit:outbox/holds', 0, 1795466139469, 0, 1795466139469, 'only candidate', '{"rule":"only candidate","chosen":"gone"}', DEFAULT);
INSERT INTO emitd.event VALUES (8, '2026-11-23 20:35:41.580575+00', 'assignment.assigned', 'gone', '01a20a1f-0fbd-7d5e-81d1-178375ecfa27', '01a20a1f-1292-7d6c-9b24-4d9128d90be1', 'emit:outbox/skips', 0, 1795466139469, 0, 1795466139469, 'only candidate', '{"rule":"only candidate","chosen":"gone"}', DEFAULT);
INSERT INTO emitd.event VALUES (9, '2026-11-23 20:35:41.580575+00', 'assignment.assigned', 'gone', '01a20a1f-0fbd-7d5e-81d1-178375ecfa27', '01a20a1f-1292-7d6c-9b24-4d9128d90be1', 'emit:sweeper', 0, 1795466139469, 0, 1795466139469, 'only candidate', '{"rule":"only candidate","chosen":"gone"}', DEFAULT);
INSERT INTO emitd.event VALUES (10, '2026-11-23 20:35:41.580575+00', 'assignment.assigned', 'gone', '01a20a1f-0fbd-7d5e-81d1-178375ecfa27', '01a20a1f-1292-7d6c-9b24-4d9128d90be1', 'emit:sweeper/outbox', 0, 1795466139469, 0, 1795466139469, 'only candidate', '{"rule":"only candidate","chosen":"gone"}', DEFAULT);
INSERT INTO emitd.event VALUES (11, '2026-11-23 20:35:41.704606+00', 'assignment.active', 'gone', '01a20a1f-0fbd-7d5e-81d1-178375ecfa27', '01a20a1f-1292-7d6c-9b24-4d9128d90be1', 'emit:sweeper/outbox', 0, 1795466139469, 0, 1795466139469, '', NULL, DEFAULT);
INSERT INTO emitd.event VALUES (12, '2026-11-23 20:35:41.729281+00', 'assignment.active', 'gone', '01a20a1f-0fbd-7d5e-81d1-178375ecfa27', '01a20a1f-1292-7d6c-9b24-4d9128d90be1', 'emit:outbox/holds', 0, 1795466139469, 0, 1795466139469, '', NULL, DEFAULT);
INSERT INTO emitd.event VALUES (13, '2026-11-23 20:35:41.729281+00', 'assignment.active', 'gone', '01a20a1f-0fbd-7d5e-81d1-178375ecfa27', '01a20a1f-1292-7d6c-9b24-4d9128d90be1', 'emit:outbox/skips', 0, 1795466139469, 0, 1795466139469, '', NULL, DEFAULT);
INSERT INTO emitd.event VALUES (14, '2026-11-23 20:35:41.729281+00', 'assignment.active', 'gone', '01a20a1f-0fbd-7d5e-81d1-178375ecfa27', '01a20a1f-1292-7d6c-9b24-4d9128d90be1', 'emit:sweeper', 0, 1795466139469, 0, 1795466139469, '', NULL, DEFAULT);
INSERT INTO emitd.event VALUES (15, '2026-11-23 20:35:41.862061+00', 'assignment.active', 'gone', '01a20a1f-0fbd-7d5e-81d1-178375ecfa27', '01a20a1f-1292-7d6c-9b24-4d9128d90be1', 'acme:steady', 1, 1795466139469, 0, 1795466139469, '', NULL, DEFAULT);
INSERT INTO emitd.event VALUES (16, '2026-11-23 20:35:41.901829+00', 'assignment.failed', 'gone', '01a20a1f-0fbd-7d5e-81d1-178375ecfa27', '01a20a1f-1292-7d6c-9b24-4d9128d90be1', 'acme:broken', 0, 1795466139469, 0, 1795466139469, 'gave up after 1 failures', NULL, DEFAULT);
INSERT INTO emitd.event VALUES (17, '2026-11-23 20:35:41.901829+00', 'assignment.active', 'gone', '01a20a1f-0fbd-7d5e-81d1-178375ecfa27', '01a20a1f-1292-7d6c-9b24-4d9128d90be1', 'acme:retired', 0, 1795466139469, 0, 1795466139469, '', NULL, DEFAULT);
INSERT INTO emitd.event VALUES (18, '2026-11-23 20:35:41.901829+00', 'assignment.active', 'gone', '01a20a1f-0fbd-7d5e-81d1-178375ecfa27', '01a20a1f-1292-7d6c-9b24-4d9128d90be1', 'acme:steady', 0, 1795466139469, 0, 1795466139469, '', NULL, DEFAULT);
INSERT INTO emitd.event VALUES (19, '2026-11-23 20:35:42.759069+00', 'node.registered', 'killed', '01a20a1f-2254-7202-95c8-5ca435aedbaf', '01a20a1f-2353-70c3-af12-6429430df210', '', NULL, 0, 0, 0, '', NULL, DEFAULT);
INSERT INTO emitd.event VALUES (20, '2026-11-23 20:35:42.815193+00', 'assignment.assigned', 'killed', '01a20a1f-2254-7202-95c8-5ca435aedbaf', '01a20a1f-2353-70c3-af12-6429430df210', 'acme:broken', 0, 1795466139469, 0, 1795466139470, 'only candidate; left gone: gave up after 1 failures; 1 embargoed: gone', '{"rule":"only candidate","chosen":"killed","left":"gone: gave up after 1 failures","filtered":{"embargoed":{"count":1,"names":["gone"]}}}', DEFAULT);
INSERT INTO emitd.event VALUES (21, '2026-11-23 20:35:43.060657+00', 'node.registered', 'stays', '01a20a1f-2312-78b1-9da6-e6523dce8590', '01a20a1f-2423-74e5-8252-d816bd5f6f00', '', NULL, 0, 0, 0, '', NULL, DEFAULT);
INSERT INTO emitd.event VALUES (22, '2026-11-23 20:35:43.0638+00', 'assignment.active', 'killed', '01a20a1f-2254-7202-95c8-5ca435aedbaf', '01a20a1f-2353-70c3-af12-6429430df210', 'acme:broken', 0, 1795466139469, 0, 1795466139470, '', NULL, DEFAULT);
INSERT INTO emitd.event VALUES (23, '2026-11-23 20:35:43.093227+00', 'assignment.failed', 'killed', '01a20a1f-2254-7202-95c8-5ca435aedbaf', '01a20a1f-2353-70c3-af12-6429430df210', 'acme:broken', 0, 1795466139469, 0, 1795466139470, 'gave up after 1 failures', NULL, DEFAULT);
INSERT INTO emitd.event VALUES (24, '2026-11-23 20:35:43.106315+00', 'assignment.assigned', 'stays', '01a20a1f-2312-78b1-9da6-e6523dce8590', '01a20a1f-2423-74e5-8252-d816bd5f6f00', 'acme:broken', 0, 1795466139469, 0, 1795466139471, 'only candidate; left killed: gave up after 1 failures; 2 embargoed: gone, killed', '{"rule":"only candidate","chosen":"stays","left":"killed: gave up after 1 failures","filtered":{"embargoed":{"count":2,"names":["gone","killed"]}}}', DEFAULT);
INSERT INTO emitd.event VALUES (25, '2026-11-23 20:35:43.379489+00', 'operator.resign', '', '', '', '', NULL, 1795466139469, 0, 0, 'moving on', '{"command":"01a20a1f-2686-734d-a92a-81ad16d79e19","actor":"ada"}', DEFAULT);
INSERT INTO emitd.event VALUES (26, '2026-11-23 20:35:43.390616+00', 'leader.lost', 'gone', '01a20a1f-0fbd-7d5e-81d1-178375ecfa27', '01a20a1f-1292-7d6c-9b24-4d9128d90be1', '', NULL, 1795466139469, 1, 0, 'resigned', '{"command":"01a20a1f-2686-734d-a92a-81ad16d79e19","actor":"ada"}', DEFAULT);
INSERT INTO emitd.event VALUES (27, '2026-11-23 20:35:43.419104+00', 'assignment.active', 'stays', '01a20a1f-2312-78b1-9da6-e6523dce8590', '01a20a1f-2423-74e5-8252-d816bd5f6f00', 'acme:broken', 0, 1795466139469, 0, 1795466139471, '', NULL, DEFAULT);
INSERT INTO emitd.event VALUES (28, '2026-11-23 20:35:43.469313+00', 'leader.elected', 'stays', '01a20a1f-2312-78b1-9da6-e6523dce8590', '01a20a1f-2423-74e5-8252-d816bd5f6f00', '', NULL, 1795466143469, 2, 0, '', NULL, DEFAULT);
INSERT INTO emitd.event VALUES (29, '2026-11-23 20:35:43.555466+00', 'assignment.failed', 'stays', '01a20a1f-2312-78b1-9da6-e6523dce8590', '01a20a1f-2423-74e5-8252-d816bd5f6f00', 'acme:broken', 0, 1795466139469, 0, 1795466139471, 'gave up after 1 failures', NULL, DEFAULT);
INSERT INTO emitd.event VALUES (30, '2026-11-23 20:35:43.741542+00', 'assignment.revoking', 'gone', '01a20a1f-0fbd-7d5e-81d1-178375ecfa27', '01a20a1f-1292-7d6c-9b24-4d9128d90be1', 'acme:retired', 0, 1795466139469, 0, 1795466139469, 'shutdown', NULL, DEFAULT);
INSERT INTO emitd.event VALUES (31, '2026-11-23 20:35:43.741542+00', 'assignment.revoking', 'gone', '01a20a1f-0fbd-7d5e-81d1-178375ecfa27', '01a20a1f-1292-7d6c-9b24-4d9128d90be1', 'acme:steady', 0, 1795466139469, 0, 1795466139469, 'shutdown', NULL, DEFAULT);
INSERT INTO emitd.event VALUES (32, '2026-11-23 20:35:43.741542+00', 'assignment.revoking', 'gone', '01a20a1f-0fbd-7d5e-81d1-178375ecfa27', '01a20a1f-1292-7d6c-9b24-4d9128d90be1', 'acme:steady', 1, 1795466139469, 0, 1795466139469, 'shutdown', NULL, DEFAULT);
INSERT INTO emitd.event VALUES (33, '2026-11-23 20:35:43.741542+00', 'assignment.revoking', 'gone', '01a20a1f-0fbd-7d5e-81d1-178375ecfa27', '01a20a1f-1292-7d6c-9b24-4d9128d90be1', 'emit:outbox/holds', 0, 1795466139469, 0, 1795466139469, 'shutdown', NULL, DEFAULT);
INSERT INTO emitd.event VALUES (34, '2026-11-23 20:35:43.741542+00', 'assignment.revoking', 'gone', '01a20a1f-0fbd-7d5e-81d1-178375ecfa27', '01a20a1f-1292-7d6c-9b24-4d9128d90be1', 'emit:outbox/skips', 0, 1795466139469, 0, 1795466139469, 'shutdown', NULL, DEFAULT);
INSERT INTO emitd.event VALUES (35, '2026-11-23 20:35:43.741542+00', 'assignment.revoking', 'gone', '01a20a1f-0fbd-7d5e-81d1-178375ecfa27', '01a20a1f-1292-7d6c-9b24-4d9128d90be1', 'emit:sweeper', 0, 1795466139469, 0, 1795466139469, 'shutdown', NULL, DEFAULT);
INSERT INTO emitd.event VALUES (36, '2026-11-23 20:35:43.741542+00', 'assignment.revoking', 'gone', '01a20a1f-0fbd-7d5e-81d1-178375ecfa27', '01a20a1f-1292-7d6c-9b24-4d9128d90be1', 'emit:sweeper/outbox', 0, 1795466139469, 0, 1795466139469, 'shutdown', NULL, DEFAULT);
INSERT INTO emitd.event VALUES (37, '2026-11-23 20:35:43.748996+00', 'assignment.deleted', 'gone', '01a20a1f-0fbd-7d5e-81d1-178375ecfa27', '01a20a1f-1292-7d6c-9b24-4d9128d90be1', 'emit:sweeper/outbox', 0, 1795466139469, 0, 1795466139469, 'drained', NULL, DEFAULT);
INSERT INTO emitd.event VALUES (39, '2026-11-23 20:35:43.768369+00', 'assignment.deleted', 'gone', '01a20a1f-0fbd-7d5e-81d1-178375ecfa27', '01a20a1f-1292-7d6c-9b24-4d9128d90be1', 'acme:retired', 0, 1795466139469, 0, 1795466139469, 'drained', NULL, DEFAULT);
INSERT INTO emitd.event VALUES (40, '2026-11-23 20:35:43.768369+00', 'assignment.deleted', 'gone', '01a20a1f-0fbd-7d5e-81d1-178375ecfa27', '01a20a1f-1292-7d6c-9b24-4d9128d90be1', 'acme:steady', 0, 1795466139469, 0, 1795466139469, 'drained', NULL, DEFAULT);
INSERT INTO emitd.event VALUES (41, '2026-11-23 20:35:43.768369+00', 'assignment.deleted', 'gone', '01a20a1f-0fbd-7d5e-81d1-178375ecfa27', '01a20a1f-1292-7d6c-9b24-4d9128d90be1', 'acme:steady', 1, 1795466139469, 0, 1795466139469, 'drained', NULL, DEFAULT);
INSERT INTO emitd.event VALUES (42, '2026-11-23 20:35:43.768369+00', 'assignment.deleted', 'gone', '01a20a1f-0fbd-7d5e-81d1-178375ecfa27', '01a20a1f-1292-7d6c-9b24-4d9128d90be1', 'emit:outbox/holds', 0, 1795466139469, 0, 1795466139469, 'drained', NULL, DEFAULT);
INSERT INTO emitd.event VALUES (43, '2026-11-23 20:35:43.768369+00', 'assignment.deleted', 'gone', '01a20a1f-0fbd-7d5e-81d1-178375ecfa27', '01a20a1f-1292-7d6c-9b24-4d9128d90be1', 'emit:outbox/skips', 0, 1795466139469, 0, 1795466139469, 'drained', NULL, DEFAULT);
INSERT INTO emitd.event VALUES (44, '2026-11-23 20:35:43.768369+00', 'assignment.deleted', 'gone', '01a20a1f-0fbd-7d5e-81d1-178375ecfa27', '01a20a1f-1292-7d6c-9b24-4d9128d90be1', 'emit:sweeper', 0, 1795466139469, 0, 1795466139469, 'drained', NULL, DEFAULT);
INSERT INTO emitd.event VALUES (45, '2026-11-23 20:35:43.771164+00', 'node.removed', 'gone', '01a20a1f-0fbd-7d5e-81d1-178375ecfa27', '01a20a1f-1292-7d6c-9b24-4d9128d90be1', '', NULL, 0, 0, 0, 'shutdown', NULL, DEFAULT);
INSERT INTO emitd.event VALUES (38, '2026-11-23 20:35:43.756838+00', 'assignment.assigned', 'killed', '01a20a1f-2254-7202-95c8-5ca435aedbaf', '01a20a1f-2353-70c3-af12-6429430df210', 'emit:sweeper/outbox', 0, 1795466143469, 0, 1795466143469, 'least loaded (0.5 < 1.0); runner-up stays; left gone: drained; 1 draining: gone', '{"rule":"least loaded","chosen":"killed","runner_up":"stays","value":0.5,"runner_up_value":1,"left":"gone: drained","filtered":{"draining":{"count":1,"names":["gone"]}}}', DEFAULT);
INSERT INTO emitd.event VALUES (46, '2026-11-23 20:35:43.793041+00', 'assignment.assigned', 'stays', '01a20a1f-2312-78b1-9da6-e6523dce8590', '01a20a1f-2423-74e5-8252-d816bd5f6f00', 'acme:steady', 0, 1795466143469, 0, 1795466143470, 'stable hash; runner-up killed; left gone: drained', '{"rule":"stable hash","chosen":"stays","runner_up":"killed","left":"gone: drained"}', DEFAULT);
INSERT INTO emitd.event VALUES (47, '2026-11-23 20:35:43.793041+00', 'assignment.assigned', 'killed', '01a20a1f-2254-7202-95c8-5ca435aedbaf', '01a20a1f-2353-70c3-af12-6429430df210', 'acme:steady', 1, 1795466143469, 0, 1795466143470, 'least loaded (1.0 < 2.0); runner-up stays; left gone: drained', '{"rule":"least loaded","chosen":"killed","runner_up":"stays","value":1,"runner_up_value":2,"left":"gone: drained"}', DEFAULT);
INSERT INTO emitd.event VALUES (48, '2026-11-23 20:35:43.793041+00', 'assignment.assigned', 'killed', '01a20a1f-2254-7202-95c8-5ca435aedbaf', '01a20a1f-2353-70c3-af12-6429430df210', 'emit:outbox/holds', 0, 1795466143469, 0, 1795466143470, 'least loaded (1.5 < 2.0); runner-up stays; left gone: drained', '{"rule":"least loaded","chosen":"killed","runner_up":"stays","value":1.5,"runner_up_value":2,"left":"gone: drained"}', DEFAULT);
INSERT INTO emitd.event VALUES (49, '2026-11-23 20:35:43.793041+00', 'assignment.assigned', 'killed', '01a20a1f-2254-7202-95c8-5ca435aedbaf', '01a20a1f-2353-70c3-af12-6429430df210', 'emit:outbox/skips', 0, 1795466143469, 0, 1795466143470, 'stable hash; runner-up stays; left gone: drained', '{"rule":"stable hash","chosen":"killed","runner_up":"stays","left":"gone: drained"}', DEFAULT);
INSERT INTO emitd.event VALUES (50, '2026-11-23 20:35:43.793041+00', 'assignment.assigned', 'stays', '01a20a1f-2312-78b1-9da6-e6523dce8590', '01a20a1f-2423-74e5-8252-d816bd5f6f00', 'emit:sweeper', 0, 1795466143469, 0, 1795466143470, 'least loaded (2.0 < 2.5); runner-up killed; left gone: drained', '{"rule":"least loaded","chosen":"stays","runner_up":"killed","value":2,"runner_up_value":2.5,"left":"gone: drained"}', DEFAULT);
INSERT INTO emitd.event VALUES (57, '2026-11-23 20:35:44.560447+00', 'node.removed', 'killed', '01a20a1f-2254-7202-95c8-5ca435aedbaf', '01a20a1f-2353-70c3-af12-6429430df210', '', NULL, 0, 0, 0, 'process has ended, as a peer on its host witnessed', NULL, DEFAULT);
INSERT INTO emitd.event VALUES (58, '2026-11-23 20:35:44.564573+00', 'assignment.forced', 'killed', '01a20a1f-2254-7202-95c8-5ca435aedbaf', '01a20a1f-2353-70c3-af12-6429430df210', 'acme:steady', 1, 1795466143469, 0, 1795466143470, 'holder is dead', NULL, DEFAULT);
INSERT INTO emitd.event VALUES (59, '2026-11-23 20:35:44.564573+00', 'assignment.forced', 'killed', '01a20a1f-2254-7202-95c8-5ca435aedbaf', '01a20a1f-2353-70c3-af12-6429430df210', 'emit:outbox/holds', 0, 1795466143469, 0, 1795466143470, 'holder is dead', NULL, DEFAULT);
INSERT INTO emitd.event VALUES (60, '2026-11-23 20:35:44.564573+00', 'assignment.forced', 'killed', '01a20a1f-2254-7202-95c8-5ca435aedbaf', '01a20a1f-2353-70c3-af12-6429430df210', 'emit:outbox/skips', 0, 1795466143469, 0, 1795466143470, 'holder is dead', NULL, DEFAULT);
INSERT INTO emitd.event VALUES (61, '2026-11-23 20:35:44.564573+00', 'assignment.forced', 'killed', '01a20a1f-2254-7202-95c8-5ca435aedbaf', '01a20a1f-2353-70c3-af12-6429430df210', 'emit:sweeper/outbox', 0, 1795466143469, 0, 1795466143469, 'holder is dead', NULL, DEFAULT);
INSERT INTO emitd.event VALUES (62, '2026-11-23 20:35:44.570903+00', 'assignment.assigned', 'stays', '01a20a1f-2312-78b1-9da6-e6523dce8590', '01a20a1f-2423-74e5-8252-d816bd5f6f00', 'acme:steady', 1, 1795466143469, 0, 1795466143471, 'only candidate; left killed: holder is dead', '{"rule":"only candidate","chosen":"stays","left":"killed: holder is dead"}', DEFAULT);
INSERT INTO emitd.event VALUES (63, '2026-11-23 20:35:44.570903+00', 'assignment.assigned', 'stays', '01a20a1f-2312-78b1-9da6-e6523dce8590', '01a20a1f-2423-74e5-8252-d816bd5f6f00', 'emit:outbox/holds', 0, 1795466143469, 0, 1795466143471, 'only candidate; left killed: holder is dead', '{"rule":"only candidate","chosen":"stays","left":"killed: holder is dead"}', DEFAULT);
INSERT INTO emitd.event VALUES (64, '2026-11-23 20:35:44.570903+00', 'assignment.assigned', 'stays', '01a20a1f-2312-78b1-9da6-e6523dce8590', '01a20a1f-2423-74e5-8252-d816bd5f6f00', 'emit:outbox/skips', 0, 1795466143469, 0, 1795466143471, 'only candidate; left killed: holder is dead', '{"rule":"only candidate","chosen":"stays","left":"killed: holder is dead"}', DEFAULT);
INSERT INTO emitd.event VALUES (65, '2026-11-23 20:35:44.570903+00', 'assignment.assigned', 'stays', '01a20a1f-2312-78b1-9da6-e6523dce8590', '01a20a1f-2423-74e5-8252-d816bd5f6f00', 'emit:sweeper/outbox', 0, 1795466143469, 0, 1795466143471, 'only candidate; left killed: holder is dead', '{"rule":"only candidate","chosen":"stays","left":"killed: holder is dead"}', DEFAULT);
INSERT INTO emitd.event VALUES (66, '2026-11-23 20:35:44.578616+00', 'assignment.active', 'stays', '01a20a1f-2312-78b1-9da6-e6523dce8590', '01a20a1f-2423-74e5-8252-d816bd5f6f00', 'acme:steady', 1, 1795466143469, 0, 1795466143471, '', NULL, DEFAULT);
INSERT INTO emitd.event VALUES (70, '2026-11-23 20:35:49.208563+00', 'assignment.assigned', 'stays', '01a20a1f-2312-78b1-9da6-e6523dce8590', '01a20a1f-2423-74e5-8252-d816bd5f6f00', 'acme:broken', 0, 1795466143469, 0, 1795466143472, 'only candidate; left stays: gave up after 1 failures', '{"rule":"only candidate","chosen":"stays","left":"stays: gave up after 1 failures"}', DEFAULT);
INSERT INTO emitd.event VALUES (71, '2026-11-23 20:35:49.262009+00', 'assignment.active', 'stays', '01a20a1f-2312-78b1-9da6-e6523dce8590', '01a20a1f-2423-74e5-8252-d816bd5f6f00', 'acme:broken', 0, 1795466143469, 0, 1795466143472, '', NULL, DEFAULT);
INSERT INTO emitd.event VALUES (72, '2026-11-23 20:35:49.268283+00', 'assignment.failed', 'stays', '01a20a1f-2312-78b1-9da6-e6523dce8590', '01a20a1f-2423-74e5-8252-d816bd5f6f00', 'acme:broken', 0, 1795466143469, 0, 1795466143472, 'gave up after 1 failures', NULL, DEFAULT);
INSERT INTO emitd.event VALUES (51, '2026-11-23 20:35:43.841185+00', 'assignment.active', 'stays', '01a20a1f-2312-78b1-9da6-e6523dce8590', '01a20a1f-2423-74e5-8252-d816bd5f6f00', 'emit:sweeper', 0, 1795466143469, 0, 1795466143470, '', NULL, DEFAULT);
INSERT INTO emitd.event VALUES (54, '2026-11-23 20:35:43.91447+00', 'assignment.active', 'stays', '01a20a1f-2312-78b1-9da6-e6523dce8590', '01a20a1f-2423-74e5-8252-d816bd5f6f00', 'acme:steady', 0, 1795466143469, 0, 1795466143470, '', NULL, DEFAULT);
INSERT INTO emitd.event VALUES (67, '2026-11-23 20:35:44.60828+00', 'assignment.active', 'stays', '01a20a1f-2312-78b1-9da6-e6523dce8590', '01a20a1f-2423-74e5-8252-d816bd5f6f00', 'emit:sweeper/outbox', 0, 1795466143469, 0, 1795466143471, '', NULL, DEFAULT);
INSERT INTO emitd.event VALUES (68, '2026-11-23 20:35:44.648196+00', 'assignment.active', 'stays', '01a20a1f-2312-78b1-9da6-e6523dce8590', '01a20a1f-2423-74e5-8252-d816bd5f6f00', 'emit:outbox/holds', 0, 1795466143469, 0, 1795466143471, '', NULL, DEFAULT);
INSERT INTO emitd.event VALUES (69, '2026-11-23 20:35:44.648196+00', 'assignment.active', 'stays', '01a20a1f-2312-78b1-9da6-e6523dce8590', '01a20a1f-2423-74e5-8252-d816bd5f6f00', 'emit:outbox/skips', 0, 1795466143469, 0, 1795466143471, '', NULL, DEFAULT);
INSERT INTO emitd.event VALUES (52, '2026-11-23 20:35:43.837516+00', 'assignment.active', 'killed', '01a20a1f-2254-7202-95c8-5ca435aedbaf', '01a20a1f-2353-70c3-af12-6429430df210', 'emit:sweeper/outbox', 0, 1795466143469, 0, 1795466143469, '', NULL, DEFAULT);
INSERT INTO emitd.event VALUES (53, '2026-11-23 20:35:43.891398+00', 'assignment.active', 'killed', '01a20a1f-2254-7202-95c8-5ca435aedbaf', '01a20a1f-2353-70c3-af12-6429430df210', 'emit:outbox/holds', 0, 1795466143469, 0, 1795466143470, '', NULL, DEFAULT);
INSERT INTO emitd.event VALUES (55, '2026-11-23 20:35:43.9679+00', 'assignment.active', 'killed', '01a20a1f-2254-7202-95c8-5ca435aedbaf', '01a20a1f-2353-70c3-af12-6429430df210', 'emit:outbox/skips', 0, 1795466143469, 0, 1795466143470, '', NULL, DEFAULT);
INSERT INTO emitd.event VALUES (56, '2026-11-23 20:35:43.991439+00', 'assignment.active', 'killed', '01a20a1f-2254-7202-95c8-5ca435aedbaf', '01a20a1f-2353-70c3-af12-6429430df210', 'acme:steady', 1, 1795466143469, 0, 1795466143470, '', NULL, DEFAULT);
INSERT INTO emitd.event VALUES (73, '2026-11-23 20:35:59.588881+00', 'operator.resign', '', '', '', '', NULL, 1795466143469, 0, 0, 'too late', '{"command":"01a20a1f-65de-71d5-970d-ac94a014a2a0","actor":"bob"}', DEFAULT);
INSERT INTO emitd.fence VALUES ('acme:retired', 0, 1795466139469, '2026-11-23 20:35:41.619506+00');
INSERT INTO emitd.fence VALUES ('acme:steady', 0, 1795466143470, '2026-11-23 20:35:43.826917+00');
INSERT INTO emitd.fence VALUES ('emit:sweeper', 0, 1795466143470, '2026-11-23 20:35:43.833475+00');
INSERT INTO emitd.fence VALUES ('acme:steady', 1, 1795466143471, '2026-11-23 20:35:44.573737+00');
INSERT INTO emitd.fence VALUES ('emit:outbox/holds', 0, 1795466143471, '2026-11-23 20:35:44.582151+00');
INSERT INTO emitd.fence VALUES ('emit:outbox/skips', 0, 1795466143471, '2026-11-23 20:35:44.582163+00');
INSERT INTO emitd.fence VALUES ('emit:sweeper/outbox', 0, 1795466143471, '2026-11-23 20:35:44.582167+00');
INSERT INTO emitd.fence VALUES ('acme:broken', 0, 1795466143472, '2026-11-23 20:35:49.221891+00');
INSERT INTO emitd.lease VALUES (1795466143469, '01a20a1f-2423-74e5-8252-d816bd5f6f00', '2026-11-23 20:36:03.310069+00', 22, '2026-11-23 20:35:58.310071+00', 38, true);
INSERT INTO emitd.lock VALUES ('emit:probe', '', 1795466142713, 0, 1000000, '2026-11-23 20:35:42.744127+00');
INSERT INTO emitd.lock VALUES ('stored:released', '', 1795466163839, 0, 2000000, '2026-11-23 20:36:03.846057+00');
INSERT INTO emitd.lock VALUES ('stored:held', '4b341b38-e32d-4681-bc16-f0228fd34ebf', 1795466163850, 0, 2000000, '2026-11-23 20:36:05.85059+00');
INSERT INTO emitd.migration VALUES (1, 'cluster', 1, '2026-11-23 20:35:38.166002+00');
INSERT INTO emitd.node VALUES ('01a20a1f-1292-7d6c-9b24-4d9128d90be1', 20, 15, '2026-11-23 20:35:43.615462+00', '2026-11-23 20:35:43.615462+00', 1795466139469, 1795466139471, '2026-11-23 20:35:39.39764+00', '2026-11-23 20:35:43.771164+00', false, false, true, 'removed', '', '01a20a1f-0fbd-7d5e-81d1-178375ecfa27', 'gone', '79f2c3b52db50fc327e0f132d84b9965', 'shutdown', '{"host": {"pid": 27445, "lock": "/tmp/emitd-297852189.lock", "start": "3077125", "boot_id": "b222e07f-3697-47cb-869b-79bad0792597 pid:[4026531836]"}, "labels": {"zone": "a"}, "timing": {"wakeup": 100000000, "clock_step": 50000000, "stop_timeout": 1000000000, "query_timeout": 500000000, "lease_duration": 5000000000, "heartbeat_interval": 1000000000, "node_registration_ttl": 6000000000}, "address": "127.0.0.1:37887", "cluster": "stored", "version": "devel", "capacity": 1}');
INSERT INTO emitd.node VALUES ('01a20a1f-2353-70c3-af12-6429430df210', 12, 7, '2026-11-23 20:35:43.864022+00', '2026-11-23 20:35:43.864022+00', 1795466143469, 1795466143470, '2026-11-23 20:35:42.759069+00', '2026-11-23 20:35:44.560447+00', true, true, false, 'removed', '', '01a20a1f-2254-7202-95c8-5ca435aedbaf', 'killed', '9a8a449937faf942c5d910eb4d0ea5ed', 'process has ended, as a peer on its host witnessed', '{"host": {"pid": 27658, "lock": "/tmp/emitd-2478641417.lock", "start": "3077629", "boot_id": "b222e07f-3697-47cb-869b-79bad0792597 pid:[4026531836]"}, "timing": {"wakeup": 100000000, "clock_step": 50000000, "stop_timeout": 1000000000, "query_timeout": 500000000, "lease_duration": 5000000000, "heartbeat_interval": 1000000000, "node_registration_ttl": 6000000000}, "address": "127.0.0.1:37143", "cluster": "stored", "version": "devel", "capacity": 2, "never_lead": true}');
INSERT INTO emitd.node VALUES ('01a20a1f-2423-74e5-8252-d816bd5f6f00', 35, 34, '2026-11-23 20:35:58.309987+00', '2026-11-23 20:35:58.309987+00', 1795466143469, 1795466143472, '2026-11-23 20:35:43.060657+00', NULL, false, false, false, 'live', '', '01a20a1f-2312-78b1-9da6-e6523dce8590', 'stays', '9a8a449937faf942c5d910eb4d0ea5ed', '', '{"host": {"pid": 27659, "lock": "/tmp/emitd-1154695187.lock", "start": "3077630", "boot_id": "b222e07f-3697-47cb-869b-79bad0792597 pid:[4026531836]"}, "timing": {"wakeup": 100000000, "clock_step": 50000000, "stop_timeout": 1000000000, "query_timeout": 500000000, "lease_duration": 5000000000, "heartbeat_interval": 1000000000, "node_registration_ttl": 6000000000}, "address": "127.0.0.1:42915", "cluster": "stored", "version": "devel", "capacity": 1}');
INSERT INTO emitd.term VALUES (1795466143469, 2, '01a20a1f-2312-78b1-9da6-e6523dce8590', '01a20a1f-2423-74e5-8252-d816bd5f6f00', 'stays', '2026-11-23 20:35:43.469313+00', false, true);
INSERT INTO emitd.unit VALUES ('emit:outbox/holds', 0, 'active', 'stays', '01a20a1f-2312-78b1-9da6-e6523dce8590', '01a20a1f-2423-74e5-8252-d816bd5f6f00', 1795466143471, 1795466143469, '2026-11-23 20:35:44.648196+00', '2026-11-23 20:35:44.570903+00', NULL, 5000000000, 10000000000, 0, false, false, 'only candidate; left killed: holder is dead', '', NULL, NULL, NULL, DEFAULT);
INSERT INTO emitd.unit VALUES ('emit:sweeper', 0, 'active', 'stays', '01a20a1f-2312-78b1-9da6-e6523dce8590', '01a20a1f-2423-74e5-8252-d816bd5f6f00', 1795466143470, 1795466143469, '2026-11-23 20:35:43.841185+00', '2026-11-23 20:35:43.793041+00', NULL, 5000000000, 10000000000, 0, false, false, 'least loaded (2.0 < 2.5); runner-up killed; left gone: drained', '', NULL, NULL, NULL, DEFAULT);
INSERT INTO emitd.unit VALUES ('emit:outbox/skips', 0, 'active', 'stays', '01a20a1f-2312-78b1-9da6-e6523dce8590', '01a20a1f-2423-74e5-8252-d816bd5f6f00', 1795466143471, 1795466143469, '2026-11-23 20:35:44.648196+00', '2026-11-23 20:35:44.570903+00', NULL, 5000000000, 10000000000, 0, false, false, 'only candidate; left killed: holder is dead', '', NULL, NULL, NULL, DEFAULT);
INSERT INTO emitd.unit VALUES ('acme:steady', 0, 'active', 'stays', '01a20a1f-2312-78b1-9da6-e6523dce8590', '01a20a1f-2423-74e5-8252-d816bd5f6f00', 1795466143470, 1795466143469, '2026-11-23 20:35:43.91447+00', '2026-11-23 20:35:43.793041+00', NULL, 5000000000, 10000000000, 0, false, false, 'stable hash; runner-up killed; left gone: drained', '', NULL, NULL, NULL, DEFAULT);
INSERT INTO emitd.unit VALUES ('acme:retired', 0, 'deleted', 'gone', '01a20a1f-0fbd-7d5e-81d1-178375ecfa27', '01a20a1f-1292-7d6c-9b24-4d9128d90be1', 1795466139469, 1795466139469, '2026-11-23 20:35:43.768369+00', '2026-11-23 20:35:41.580575+00', '2026-11-23 20:35:43.741542+00', 5000000000, 10000000000, 0, false, true, 'drained', '', NULL, NULL, NULL, DEFAULT);
INSERT INTO emitd.unit VALUES ('acme:steady', 1, 'active', 'stays', '01a20a1f-2312-78b1-9da6-e6523dce8590', '01a20a1f-2423-74e5-8252-d816bd5f6f00', 1795466143471, 1795466143469, '2026-11-23 20:35:44.578616+00', '2026-11-23 20:35:44.570903+00', NULL, 5000000000, 10000000000, 0, false, false, 'only candidate; left killed: holder is dead', '', NULL, NULL, NULL, DEFAULT);
INSERT INTO emitd.unit VALUES ('emit:sweeper/outbox', 0, 'active', 'stays', '01a20a1f-2312-78b1-9da6-e6523dce8590', '01a20a1f-2423-74e5-8252-d816bd5f6f00', 1795466143471, 1795466143469, '2026-11-23 20:35:44.60828+00', '2026-11-23 20:35:44.570903+00', NULL, 5000000000, 10000000000, 0, false, false, 'only candidate; left killed: holder is dead', '', NULL, NULL, NULL, DEFAULT);
INSERT INTO emitd.unit VALUES ('acme:broken', 0, 'deleted', 'stays', '01a20a1f-2312-78b1-9da6-e6523dce8590', '01a20a1f-2423-74e5-8252-d816bd5f6f00', 1795466143472, 1795466143469, '2026-11-23 20:35:49.268283+00', '2026-11-23 20:35:49.208563+00', NULL, 5000000000, 10000000000, 4, false, false, 'gave up after 1 failures', 'run acme:broken: exit code 1', '[{"run": 0, "until": "2026-11-23T20:35:46.901829Z", "length": 5000000000, "reason": "gave up after 1 failures", "strikes": 1, "incarnation": "01a20a1f-1292-7d6c-9b24-4d9128d90be1"}, {"run": 0, "until": "2026-11-23T20:35:48.093227Z", "length": 5000000000, "reason": "gave up after 1 failures", "strikes": 1, "incarnation": "01a20a1f-2353-70c3-af12-6429430df210"}, {"run": 0, "until": "2026-11-23T20:35:59.268283Z", "length": 10000000000, "reason": "gave up after 1 failures", "strikes": 2, "incarnation": "01a20a1f-2423-74e5-8252-d816bd5f6f00"}]', '2026-11-23 20:35:41.901829+00', NULL, DEFAULT);
INSERT INTO outbox.outbox_cursor VALUES ('skips', 0, 63, 0, 63, 1795466143471, 3, 6, 0, '846:846:', 0, NULL, 0, 0, 1, NULL, 3, 'stays', '2026-11-23 20:35:57.655063+00', '');
INSERT INTO outbox.outbox_cursor VALUES ('holds', 0, 63, 0, 63, 1795466143471, 3, 4, 0, '848:848:', 0, NULL, 0, 0, 0, NULL, 3, 'stays', '2026-11-23 20:35:57.892107+00', '');
INSERT INTO outbox.outbox_dead VALUES ('skips', 2, 1, 1, '2026-11-23 20:35:57.619839+00', 'permanent: http://127.0.0.1:36917 answered 400 Bad Request', '2026-11-23 20:35:57.329592+00', '01a20a1f-5cce-79f2-995b-0da6e6c2a1f2', 'bob', 'orders.placed', 'order', '{"lang":"de"}', NULL, NULL, '\x7265667573652074686973');
INSERT INTO outbox.outbox_delayed OVERRIDING SYSTEM VALUE VALUES (1, 5, '2026-11-23 20:36:02.111868+00', '2026-11-23 20:36:01.248599+00', '01a20a1f-6c1f-7560-bd2a-e98096b93470', 'eve', 'orders.placed', NULL, NULL, NULL, NULL, '\x7b226f72646572223a20357d');
INSERT INTO outbox.outbox_delayed OVERRIDING SYSTEM VALUE VALUES (2, 38, '2100-01-01 00:00:00+00', '2026-11-23 20:36:01.412655+00', '01a20a1f-6cf6-74c5-933e-c918f945ef57', NULL, 'orders.placed', NULL, NULL, NULL, NULL, '\x7b226f72646572223a20367d');
INSERT INTO outbox.outbox_lane VALUES ('holds', 1, 'bob', 0, true, 1, '2026-11-23 20:35:57.893563+00', 'permanent: http://127.0.0.1:36917 answered 400 Bad Request');
INSERT INTO outbox.outbox_migration VALUES (1, 'outbox', '2026-11-23 20:35:39.203443+00');
INSERT INTO outbox.outbox_p1 VALUES ('841', 1, 61, '2026-11-23 20:35:56.984779+00', '01a20a1f-5b7b-7e7a-b8eb-a8fc9a6341bb', 'ada', 'orders.placed', 'order', '{"lang":"de"}', NULL, NULL, '\x7b226f72646572223a20317d');
INSERT INTO outbox.outbox_p1 VALUES ('844', 2, 1, '2026-11-23 20:35:57.329592+00', '01a20a1f-5cce-79f2-995b-0da6e6c2a1f2', 'bob', 'orders.placed', 'order', '{"lang":"de"}', NULL, NULL, '\x7265667573652074686973');
INSERT INTO outbox.outbox_p1 VALUES ('845', 3, 1, '2026-11-23 20:35:57.580184+00', '01a20a1f-5e01-7d1b-87ea-9a23a378839e', 'bob', 'orders.placed', 'order', '{"lang":"de"}', NULL, NULL, '\x7b226f72646572223a20337d');
INSERT INTO outbox.outbox_p1 VALUES ('860', 4, 61, '2026-11-23 20:36:00.890814+00', '01a20a1f-6aaa-79cb-a435-13f31f1c162d', 'ada', 'orders.placed', NULL, NULL, NULL, NULL, '\x7b226f72646572223a20347d');
INSERT INTO outbox.outbox_parked VALUES ('holds', 2, 1, 'bob', 0, '2026-11-23 20:35:57.945571+00', '2026-11-23 20:35:57.329592+00', '01a20a1f-5cce-79f2-995b-0da6e6c2a1f2', 'bob', 'orders.placed', 'order', '{"lang":"de"}', NULL, NULL, '\x7265667573652074686973');
INSERT INTO outbox.outbox_parked VALUES ('holds', 3, 1, 'bob', 0, '2026-11-23 20:35:57.945864+00', '2026-11-23 20:35:57.580184+00', '01a20a1f-5e01-7d1b-87ea-9a23a378839e', 'bob', 'orders.placed', 'order', '{"lang":"de"}', NULL, NULL, '\x7b226f72646572223a20337d');
INSERT INTO outbox.outbox_partition VALUES (1, 1, 4194305, '2026-11-23 20:35:38.958885+00', NULL, NULL, NULL);
INSERT INTO outbox.outbox_partition VALUES (2, 4194305, 8388609, '2026-11-23 20:35:38.987464+00', NULL, NULL, NULL);
INSERT INTO outbox.outbox_partition VALUES (3, 8388609, 12582913, '2026-11-23 20:35:39.120867+00', NULL, NULL, NULL);
INSERT INTO outbox.outbox_partition VALUES (4, 12582913, 16777217, '2026-11-23 20:35:39.203337+00', NULL, NULL, NULL);
INSERT INTO outbox.outbox_state VALUES (0, 0, '7711468298370325073', 0, '2026-11-23 20:35:44.585756+00', 0, 4194304, true);
INSERT INTO outbox.outbox_subscription VALUES ('holds', 1, 1795466143471, false, 0, '2026-11-23 20:35:41.825707+00');
INSERT INTO outbox.outbox_subscription VALUES ('skips', 1, 1795466143471, false, 0, '2026-11-23 20:35:41.722396+00');
SELECT pg_catalog.setval('emitd.command_number_seq', 2, true);
SELECT pg_catalog.setval('outbox.outbox_delayed_id_seq', 2, true);
SELECT pg_catalog.setval('outbox.outbox_id', 4, true);
ALTER TABLE ONLY emitd.advert
    ADD CONSTRAINT advert_pkey PRIMARY KEY (hash);
ALTER TABLE ONLY emitd.command
    ADD CONSTRAINT command_pkey PRIMARY KEY (id);
ALTER TABLE ONLY emitd.counter
    ADD CONSTRAINT counter_pkey PRIMARY KEY (one);
ALTER TABLE ONLY emitd.event
    ADD CONSTRAINT event_pkey PRIMARY KEY (seq);
ALTER TABLE ONLY emitd.fence
    ADD CONSTRAINT fence_pkey PRIMARY KEY (daemon, index);
ALTER TABLE ONLY emitd.lease
    ADD CONSTRAINT lease_pkey PRIMARY KEY (one);
ALTER TABLE ONLY emitd.lock
    ADD CONSTRAINT lock_pkey PRIMARY KEY (name);
ALTER TABLE ONLY emitd.migration
    ADD CONSTRAINT migration_pkey PRIMARY KEY (version);
ALTER TABLE ONLY emitd.node
    ADD CONSTRAINT node_pkey PRIMARY KEY (incarnation);
ALTER TABLE ONLY emitd.term
    ADD CONSTRAINT term_one_key UNIQUE (one);
ALTER TABLE ONLY emitd.term
    ADD CONSTRAINT term_pkey PRIMARY KEY (number);
ALTER TABLE ONLY emitd.unit
    ADD CONSTRAINT unit_pkey PRIMARY KEY (daemon, index);
ALTER TABLE ONLY outbox.outbox_cursor
    ADD CONSTRAINT outbox_cursor_pkey PRIMARY KEY (subscription, lo);
ALTER TABLE ONLY outbox.outbox_dead
    ADD CONSTRAINT outbox_dead_pkey PRIMARY KEY (subscription, id);
ALTER TABLE ONLY outbox.outbox_delayed
    ADD CONSTRAINT outbox_delayed_pkey PRIMARY KEY (id);
ALTER TABLE ONLY outbox.outbox_lane
    ADD CONSTRAINT outbox_lane_pkey PRIMARY KEY (subscription, shard, key, solo);
ALTER TABLE ONLY outbox.outbox_migration
    ADD CONSTRAINT outbox_migration_pkey PRIMARY KEY (version);
ALTER TABLE ONLY outbox.outbox
    ADD CONSTRAINT outbox_pkey PRIMARY KEY (id);
ALTER TABLE ONLY outbox.outbox_p1
    ADD CONSTRAINT outbox_p1_pkey PRIMARY KEY (id);
ALTER TABLE ONLY outbox.outbox_p2
    ADD CONSTRAINT outbox_p2_pkey PRIMARY KEY (id);
ALTER TABLE ONLY outbox.outbox_p3
    ADD CONSTRAINT outbox_p3_pkey PRIMARY KEY (id);
ALTER TABLE ONLY outbox.outbox_p4
    ADD CONSTRAINT outbox_p4_pkey PRIMARY KEY (id);
ALTER TABLE ONLY outbox.outbox_parked
    ADD CONSTRAINT outbox_parked_pkey PRIMARY KEY (subscription, id);
ALTER TABLE ONLY outbox.outbox_partition
    ADD CONSTRAINT outbox_partition_pkey PRIMARY KEY (n);
ALTER TABLE ONLY outbox.outbox_state
    ADD CONSTRAINT outbox_state_pkey PRIMARY KEY (one);
ALTER TABLE ONLY outbox.outbox_subscription
    ADD CONSTRAINT outbox_subscription_pkey PRIMARY KEY (name);
CREATE INDEX unit_owner ON emitd.unit USING btree (owner);
CREATE INDEX outbox_delayed_due ON outbox.outbox_delayed USING btree (not_before, id, shard);
CREATE INDEX outbox_lane_due ON outbox.outbox_lane USING btree (subscription, next_at, shard) WHERE (NOT held);
CREATE INDEX outbox_tx ON ONLY outbox.outbox USING btree (tx, id);
CREATE INDEX outbox_p1_tx_id_idx ON outbox.outbox_p1 USING btree (tx, id);
CREATE INDEX outbox_p2_tx_id_idx ON outbox.outbox_p2 USING btree (tx, id);
CREATE INDEX outbox_p3_tx_id_idx ON outbox.outbox_p3 USING btree (tx, id);
CREATE INDEX outbox_p4_tx_id_idx ON outbox.outbox_p4 USING btree (tx, id);
CREATE INDEX outbox_parked_lane ON outbox.outbox_parked USING btree (subscription, shard, lane, solo, id);
ALTER INDEX outbox.outbox_pkey ATTACH PARTITION outbox.outbox_p1_pkey;
ALTER INDEX outbox.outbox_tx ATTACH PARTITION outbox.outbox_p1_tx_id_idx;
ALTER INDEX outbox.outbox_pkey ATTACH PARTITION outbox.outbox_p2_pkey;
ALTER INDEX outbox.outbox_tx ATTACH PARTITION outbox.outbox_p2_tx_id_idx;
ALTER INDEX outbox.outbox_pkey ATTACH PARTITION outbox.outbox_p3_pkey;
ALTER INDEX outbox.outbox_tx ATTACH PARTITION outbox.outbox_p3_tx_id_idx;
ALTER INDEX outbox.outbox_pkey ATTACH PARTITION outbox.outbox_p4_pkey;
ALTER INDEX outbox.outbox_tx ATTACH PARTITION outbox.outbox_p4_tx_id_idx;
