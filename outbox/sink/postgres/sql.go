package postgres

import (
	"strconv"
	"strings"
)

// statements holds the SQL texts of a configuration.
type statements struct {
	create, exclude, raise, hold, insert, note, prune string
}

// The templates; {schema} and {table} are names that match identifier. Functions are qualified, because
// the session's search path is the role's: a Statement may depend on it.
const (
	createSQL = `create schema if not exists {schema};
create table if not exists {schema}.fence (
	subscription text not null,
	shard int not null,
	epoch bigint not null,
	primary key (subscription, shard)
) with (fillfactor = 50);
create table if not exists {schema}.delivered (
	subscription text not null,
	id uuid not null,
	at timestamptz not null default pg_catalog.clock_timestamp(),
	primary key (subscription, id)
);
create index if not exists delivered_at on {schema}.delivered (at);
`
	// The lock makes two relays that create the tables at once wait for each other.
	createLockSQL = `select pg_catalog.pg_advisory_xact_lock(pg_catalog.hashtextextended('emitd sink'::text, 0::bigint));
`

	createTableSQL = `create table if not exists {table} (
	id uuid primary key,
	subscription text not null,
	topic text not null,
	key text,
	type text,
	headers jsonb,
	payload bytea not null,
	traceparent text,
	tracestate text,
	created_at timestamptz,
	delivered_at timestamptz not null default pg_catalog.clock_timestamp()
);
`
	// The lock excludes deliveries, which lock rows of the table, and no readers. The idle timeout is that of
	// idleSQL.
	excludeSQL = `set local idle_in_transaction_session_timeout = '5s';
set local lock_timeout = '{wait}ms';
lock table {schema}.fence in exclusive mode;
set local lock_timeout to default;
`

	// The rows are locked in the order of their shards, as in hold. So two relays with overlapping ranges
	// wait for each other and do not deadlock.
	raiseSQL = `with claim as (
	select s.shard from unnest($2::int[]) s (shard) order by s.shard
), raised as (
	insert into {schema}.fence as f (subscription, shard, epoch)
	select $1, claim.shard, $3 from claim
	on conflict (subscription, shard) do update set epoch = greatest(f.epoch, excluded.epoch)
	returning f.epoch
)
select max(epoch), {idle} from raised`

	holdSQL = `with held as (
	select epoch from {schema}.fence where subscription = $1 and shard = any ($2::int[]) order by shard for share
)
select count(*), coalesce(min(epoch), 0), coalesce(max(epoch), 0), {idle} from held`

	// A transaction must not hold the fence for ever. If a relay stops between two statements, or its host
	// is lost, the database rolls it back so that its successor can begin.
	idleSQL = `pg_catalog.set_config('idle_in_transaction_session_timeout', '5s', true)`

	insertSQL = `insert into {table} (id, subscription, topic, key, type, headers, payload, traceparent, tracestate, created_at)
values ($1, $2, $3, nullif($4, ''), nullif($5, ''), $6, $7, nullif($8, ''), nullif($9, ''), $10)
on conflict (id) do nothing`

	noteSQL = `insert into {schema}.delivered (subscription, id) select $1, unnest($2::uuid[])
on conflict do nothing returning id`

	pruneSQL = `delete from {schema}.delivered where ctid = any (array(
	select ctid from {schema}.delivered where at < pg_catalog.clock_timestamp() - $1::interval limit 1000 for update skip locked))`
)

func (c Config) statements() statements {
	fill := strings.NewReplacer("{schema}", c.Schema, "{table}", c.Table, "{idle}", idleSQL, "{wait}", strconv.FormatInt(excludeWait.Milliseconds(), 10)).Replace
	s := statements{
		create: fill(createSQL), exclude: fill(excludeSQL), raise: fill(raiseSQL), hold: fill(holdSQL),
		insert: fill(insertSQL), note: fill(noteSQL), prune: fill(pruneSQL),
	}
	if c.Statement == "" {
		s.create += fill(createTableSQL)
	}
	return s
}
