package postgres

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/emitd/emitd/internal/pgerror"
	"github.com/emitd/emitd/internal/pgtest"
	"github.com/emitd/emitd/outbox"
)

// roles is a log beside a table of its owner, with a pool for each role that GrantSQL knows.
type roles struct {
	*world
	s                        *stage
	relay, publisher, reader *pgxpool.Pool
}

func newRoles(t *testing.T) *roles {
	t.Helper()
	s := newStage(t)
	w := s.world(t, Config{width: 1000})
	reader := pgtest.Role(t, s.url)
	grants, err := GrantSQL(w.cfg, Roles{Reader: reader})
	ok(t, err)
	s.exec(t, grants+"create table "+w.cfg.Schema+".accounts (n int)")
	return &roles{world: w, s: s, relay: mustPool(t, s.user), publisher: w.app, reader: mustPool(t, pgtest.WithUser(s.url, reader, "secret"))}
}

// refused runs a statement that must fail with this code.
func (r *roles) refused(pool *pgxpool.Pool, code, sql string, args ...any) {
	r.t.Helper()
	if _, err := pool.Exec(context.Background(), r.names.q(sql), args...); pgerror.Code(err) != code {
		r.t.Errorf("%s: %v, want SQLSTATE %s", sql, err, code)
	}
}

const denied = "42501"

// TestRights checks that each role can do its work: a relay and its sweeper everything they do, a
// publisher every way to publish, a reader every read.
func TestRights(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	s := newStage(t)
	w := s.world(t, Config{width: 10, Retention: -1})
	c := w.claim("s", 1)
	w.many(30)
	w.sweepAll()
	w.many(15)
	drain(t, c)
	w.goes(4, c)
	many := make([]outbox.Message, copyFrom+1)
	for i := range many {
		many[i] = text("k", "x")
	}
	ok(t, pgx.BeginFunc(ctx, w.owner, func(pgx.Tx) error { w.exec("select ~outbox_extend(5000, 1000)"); return nil }))
	w.publish(many...)
	w.publish(outbox.Message{Topic: "t", NotBefore: time.Now().Add(time.Hour)})

	reader := pgtest.Role(t, s.url)
	grants, err := GrantSQL(w.cfg, Roles{Reader: reader})
	ok(t, err)
	s.exec(t, grants)
	cfg := w.cfg
	cfg.URL = pgtest.WithUser(s.url, reader, "secret")
	l, err := Open(ctx, cfg)
	ok(t, err)
	t.Cleanup(l.Close)
	stats, err := l.Stats(ctx, "")
	ok(t, err)
	if len(stats) != 1 || stats[0].Pending != copyFrom+1 || stats[0].Delayed != 1 || stats[0].Retained <= 0 {
		t.Errorf("a reader sees %+v", stats)
	}
	if _, err := l.Sweep(ctx, 1); err == nil || !strings.Contains(err.Error(), "emitd migrate get --outbox") {
		t.Errorf("a reader that sweeps: %v", err)
	}
	if err := l.Pause(ctx, "s", true); pgerror.Code(err) != denied {
		t.Errorf("a reader that pauses: %v", err)
	}
	page, err := os.ReadFile("../../docs/how-to/outbox-publish.md")
	ok(t, err)
	if shop, err := GrantSQL(Config{}, Roles{Publisher: "shop"}); err != nil || !strings.Contains(string(page), shop) {
		t.Errorf("the page about publishing does not have what is printed for a publisher: %v\n%s", err, shop)
	}
	if _, err := GrantSQL(cfg, Roles{}); err == nil {
		t.Error("nobody was granted something")
	}
}

// TestRelayRoleKeepsToTheLog checks that a relay's role, if it is abused, reaches no table outside the
// log and removes no partition that is still needed.
func TestRelayRoleKeepsToTheLog(t *testing.T) {
	t.Parallel()
	r := newRoles(t)
	r.publish(text("k", "x"))
	r.refused(r.relay, denied, "insert into ~outbox_partition (n, lo, hi, emptied_at) values (-1, 0, 0, now())")
	r.refused(r.relay, denied, "update ~outbox_partition set emptied_at = now(), x0 = '3', passed_at = '-infinity'")
	r.refused(r.relay, denied, "delete from ~outbox_partition")
	r.refused(r.relay, denied, "update ~outbox_state set width = 1")
	r.refused(r.relay, denied, "update ~outbox set payload = 'y'")
	r.refused(r.relay, denied, "delete from ~outbox")
	r.refused(r.relay, denied, "truncate ~outbox")
	r.refused(r.relay, denied, "do $$ begin lock table ~outbox in exclusive mode; end $$")
	r.refused(r.relay, denied, "drop table ~accounts")
	r.refused(r.relay, denied, "select from ~accounts")
	r.refused(r.relay, denied, "create table ~x (n int)")
	r.refused(r.relay, denied, "alter table ~outbox add column x int")
	r.refused(r.relay, denied, "select setval('~outbox_id', 1)")
	r.refused(r.relay, denied, "select nextval('~outbox_id')")
	r.refused(r.relay, denied, "insert into ~outbox_migration values (99, 'x')")

	// A row that the owner has spoiled, as if the grants had been circumvented.
	r.exec("create table ~outbox_p77 (n int)")
	r.exec("insert into ~outbox_partition (n, lo, hi, emptied_at) values (77, -2, -1, now()), (78, -3, -2, now())")
	r.refused(r.relay, "P0001", "select ~outbox_drop(77, true)")
	r.refused(r.relay, "P0001", "select ~outbox_drop(78, true)")
	r.exec("update ~outbox_partition set emptied_at = null, x0 = '3', passed_at = '-infinity' where n = 77")
	r.refused(r.relay, "P0001", "select ~outbox_empty(77, 0)")
	r.exec("delete from ~outbox_partition where n > 70")
	for _, sql := range []string{"select ~outbox_drop(1, true)", "select ~outbox_empty(1, -1000000000)"} {
		var done bool
		ok(t, r.relay.QueryRow(t.Context(), r.names.q(sql)).Scan(&done))
		if done {
			t.Errorf("%s took what is not through", sql)
		}
	}
	// It can create neither unlimited nor tiny partitions.
	for range 3 {
		_, err := r.relay.Exec(t.Context(), r.names.q("select ~outbox_extend(1::bigint << 50, 1)"))
		ok(t, err)
	}
	if n, least := value[int](r.world, "select count(*) from ~outbox_partition"), value[int](r.world, "select min(hi - lo) from ~outbox_partition"); n > 65 || least < 1000 {
		t.Errorf("%d partitions, the smallest for %d ids", n, least)
	}
	// With a transaction ID that was drawn earlier, a partition could be removed while a transaction writes
	// into it.
	tx := beginAs(t, r.relay)
	_, err := tx.Exec(t.Context(), "select pg_current_xact_id()")
	ok(t, err)
	if _, err := tx.Exec(t.Context(), r.names.q("select ~outbox_pass()")); pgerror.Code(err) != "P0001" {
		t.Errorf("passing partitions by an old number: %v", err)
	}
	if !value[bool](r.world, "select to_regclass('~accounts') is not null") || r.left() != 1 {
		t.Error("the owner's table, or a message, is gone")
	}
}

// TestPublisherRoleOnlyPublishes checks that a publisher's role cannot choose ids, insert rows of any
// size, read other messages or do maintenance.
func TestPublisherRoleOnlyPublishes(t *testing.T) {
	t.Parallel()
	r := newRoles(t)
	for _, sql := range []string{
		"insert into ~outbox (id, shard, topic) overriding system value values (7, 0, 't')",
		"insert into ~outbox (tx, shard, topic) values ('3', 0, 't')",
		"insert into ~outbox (created_at, shard, topic) values ('infinity', 0, 't')",
		"insert into ~outbox_delayed (id, shard, not_before, dedup_id, topic) overriding system value values (7, 0, now(), gen_random_uuid(), 't')",
		"insert into ~outbox_p1 (tx, shard, created_at, dedup_id, topic) values ('3', 0, now(), gen_random_uuid(), 't')",
		"insert into ~outbox (shard, topic) values (0, 't') returning payload",
		"select from ~outbox", "select from ~outbox_delayed", "delete from ~outbox_delayed", "update ~outbox set topic = 'x'",
		"do $$ begin lock table ~outbox in share mode; end $$", "truncate ~outbox", "copy ~outbox to stdout",
		"select nextval('~outbox_id')", "select setval('~outbox_id', 1)", "select currval('~outbox_id')", "select last_value from ~outbox_id",
		"select ~outbox_extend(1, 1)", "select ~outbox_pass()", "select ~outbox_close(1)", "select ~outbox_empty(1, 0)",
		"select ~outbox_drop(1, true)", "select ~outbox_begin_era(0, '')",
		"update ~outbox_cursor set last = 0", "insert into ~outbox_subscription (name, instances, instances_epoch) values ('s', 1, 1)",
		"delete from ~outbox_lane", "select from ~outbox_parked", "select from ~outbox_dead", "select from ~outbox_state", "select from ~outbox_partition",
		"create table ~x (n int)", "create function ~outbox_extend() returns int language sql as 'select 1'", "drop table ~outbox",
		"create trigger x before insert on ~outbox for each row execute function suppress_redundant_updates_trigger()",
	} {
		r.refused(r.publisher, denied, sql)
	}
	r.refused(r.publisher, "428C9", "insert into ~outbox (id, shard, topic) values (7, 0, 't')")
	r.refused(r.publisher, "22003", "insert into ~outbox (shard, topic) values (1 << 20, 't')")
	const check = "23514"
	r.refused(r.publisher, check, "insert into ~outbox (shard, topic) values (64, 't')")
	for _, column := range []struct {
		name string
		most int
		sql  string
	}{
		{"topic", outbox.MaxTopic, "repeat('x', $1)"},
		{"type", outbox.MaxType, "repeat('x', $1)"},
		{"key", outbox.MaxKey, "repeat('x', $1)"},
		{"headers", maxHeaderText, "to_json(repeat('x', $1 - 2))"},
		{"traceparent", 255, "repeat('x', $1)"},
		{"tracestate", 4096, "repeat('x', $1)"},
		{"payload", outbox.MaxPayload, "convert_to(repeat('x', $1), 'UTF8')"},
	} {
		for _, table := range []string{"~outbox (shard, dedup_id", "~outbox_delayed (not_before, shard, dedup_id"} {
			into, values := "insert into "+table, "values (0, gen_random_uuid()"
			if strings.Contains(table, "delayed") {
				values = "values (now(), 0, gen_random_uuid()"
			}
			if column.name != "topic" {
				into, values = into+", topic", values+", 't'"
			}
			sql := into + ", " + column.name + ") " + values + ", " + column.sql + ")"
			r.refused(r.publisher, check, sql, column.most+1)
			_, err := r.publisher.Exec(t.Context(), r.names.q(sql), column.most)
			ok(t, err)
		}
	}
	r.refused(r.publisher, check, "select ~outbox_publish('', 'x')")
	r.refused(r.publisher, check, "insert into ~outbox (shard, topic, payload) values (0, 't', convert_to(repeat('x', 200 << 20), 'UTF8'))")
	err := r.pub.InTx(t.Context(), r.publisher, func(tx *Tx) error {
		_, err := tx.Exec(t.Context(), r.names.q("insert into ~outbox (shard, topic) values (0, '')"))
		return r.cfg.explain("publish", err)
	})
	if err == nil || !strings.Contains(err.Error(), "longer than outbox.Message") || strings.Contains(err.Error(), "sweeper") {
		t.Errorf("the hint of a row that breaks a limit: %v", err)
	}
	r.publish(text("k", "still"))
}

// TestShadowsAreNotSeen creates functions, operators and tables where a session's search path finds them
// first. They must not replace what the owner's functions or the statements of relays and publishers
// mean.
func TestShadowsAreNotSeen(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	r := newRoles(t)
	// Postgres 14 lets every role create objects in public. The planted functions record that they were
	// called.
	r.s.exec(t, `create schema evil; grant usage on schema evil to public;
		create table evil.called (by text); grant insert on evil.called to public;
		create function evil.tell() returns void language sql as 'insert into evil.called select session_user';
		create function evil.pg_current_xact_id() returns xid8 language plpgsql as 'begin perform evil.tell(); return ''3''; end';
		create function evil.clock_timestamp() returns timestamptz language plpgsql as 'begin perform evil.tell(); return ''infinity''; end';
		create function evil.setval(regclass, bigint) returns bigint language plpgsql as 'begin perform evil.tell(); return 1; end';
		create function evil.sha256(bytea) returns bytea language plpgsql as 'begin perform evil.tell(); return $1; end';
		create function evil.format(text, variadic text[]) returns text language plpgsql as 'begin perform evil.tell(); return ''select 1''; end';
		create function evil.times(bigint, interval) returns interval language plpgsql as 'begin perform evil.tell(); return $2; end';
		create operator evil.* (leftarg = bigint, rightarg = interval, function = evil.times);
		create function evil.same(smallint, int) returns boolean language plpgsql as 'begin perform evil.tell(); return true; end';
		create operator evil.<= (leftarg = smallint, rightarg = int, function = evil.same);
		create operator evil.>= (leftarg = smallint, rightarg = int, function = evil.same)`)
	shadowed := func(pool *pgxpool.Pool, sql string) {
		t.Helper()
		ok(t, pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
			_, err := tx.Exec(ctx, `create temp table pg_class (relname text, oid oid) on commit drop; create temp table pg_inherits (inhrelid oid, inhparent oid) on commit drop;
				grant all on pg_class, pg_inherits to public; set local search_path = pg_temp, evil, pg_catalog`)
			if err == nil {
				_, err = tx.Exec(ctx, r.names.q(sql))
			}
			return err
		}))
	}
	for _, sql := range []string{
		"select ~outbox_extend(5000, 1000)", "select ~outbox_close(1)", "select ~outbox_empty(1, 0)", "select ~outbox_drop(1, true)", "select ~outbox_begin_era(-1, '')",
		"select ~outbox_publish('t', 'x', 'k')", "select ~outbox_publish('t', 'x', not_before => 'infinity')",
	} {
		shadowed(r.relay, sql)
	}
	shadowed(r.publisher, "select ~outbox_publish('t', 'x', 'k')")
	// A session with this search path as the owner, for whom it would be worst.
	cfg := r.cfg
	cfg.URL = r.s.url + "&search_path=" + "evil,pg_catalog"
	w := openAs(t, cfg, mustPool(t, cfg.URL), r.owner)
	w.publish(text("a", "1"), text("b", "2"))
	w.publish(text("a", "3"), outbox.Message{Topic: "t", NotBefore: time.Now().Add(time.Hour)})
	c := w.claim("s", 1)
	drain(t, c)
	_, err := w.Sweep(ctx, 10)
	ok(t, err)
	_, err = w.Stats(ctx, "")
	ok(t, err)
	if who := value[string](w, "select coalesce(string_agg(distinct by, ', '), '') from evil.called"); who != "" {
		t.Errorf("what stands in another schema was called by %s", who)
	}
}
