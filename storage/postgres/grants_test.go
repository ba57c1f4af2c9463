package postgres_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/internal/pgerror"
	"github.com/emitd/emitd/internal/pgtest"
	"github.com/emitd/emitd/storage"
	"github.com/emitd/emitd/storage/postgres"
)

// as connects as a new role with these rights.
func (s *stage) as(t *testing.T, cfg postgres.Config, roles func(role string) postgres.Roles) (pool *pgxpool.Pool, url string) {
	t.Helper()
	role := pgtest.Role(t, s.url)
	s.grant(t, cfg, roles(role))
	url = pgtest.WithUser(s.url, role, "secret")
	pool, err := pgxpool.New(t.Context(), url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool, url
}

// refused runs statements that must all be denied. ~ stands for the schema.
func refused(t *testing.T, pool *pgxpool.Pool, schema string, statements ...string) {
	t.Helper()
	for _, sql := range statements {
		if _, err := pool.Exec(t.Context(), strings.ReplaceAll(sql, "~", schema)); pgerror.Code(err) != "42501" {
			t.Errorf("%s: %v, want it denied", sql, err)
		}
	}
}

// A node's role reads and writes the cluster's rows and cannot change the tables. A reader's role
// reads. The role of a program behind a fence can hold the fence and not raise it. The suite runs
// as the node's role.
func TestRoles(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	cfg := s.schema(t)
	store := open(t, cfg)
	leader := join(t, store, "a")
	record := leader.assign(leader.lead(), unit(0), leader)
	fence := daemon.Fence{Unit: unit(0), Generation: record.Generation}
	if err := store.StampFence(t.Context(), fence); err != nil {
		t.Fatal(err)
	}
	s.exec(t, "create table "+cfg.Schema+".accounts (n int)")

	node, err := pgxpool.New(t.Context(), cfg.URL)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(node.Close)
	refused(t, node, cfg.Schema, "insert into ~.term (number, ordinal, node_id, incarnation, name, vacant, one) values (9, 9, '', '', '', false, false)",
		"delete from ~.term", "delete from ~.counter", "delete from ~.lease", "update ~.event set reason = ''",
		"update ~.migration set version = 99", "truncate ~.node", "drop table ~.node", "create table ~.x (n int)", "select from ~.accounts",
		"create or replace function ~.heartbeat_8() returns void language sql as ''", "drop function ~.heartbeat_8")

	reader, url := s.as(t, cfg, func(role string) postgres.Roles { return postgres.Roles{Reader: role} })
	refused(t, reader, cfg.Schema, "update ~.lease set term = 0", "insert into ~.command (id) values ('x')", "delete from ~.event",
		"select from ~.node for update", "do $$ begin lock table ~.node in share mode; end $$", "select from ~.accounts")
	reading := cfg
	reading.URL = url
	view, err := open(t, reading).Snapshot(t.Context())
	if err != nil || len(view.Units) != 1 {
		t.Errorf("a reader sees %+v, %v", view, err)
	}

	app, _ := s.as(t, cfg, func(role string) postgres.Roles { return postgres.Roles{App: role} })
	refused(t, app, cfg.Schema, "update ~.fence set generation = 99", "insert into ~.fence (daemon, index, generation, stamped_at) values ('x', 0, 9, now())",
		"select from ~.node", "delete from ~.fence", "do $$ begin lock table ~.fence in exclusive mode; end $$")
	if err := store.InTx(t.Context(), app, fence, func(pgx.Tx) error { return nil }); err != nil {
		t.Errorf("a transaction behind the fence: %v", err)
	}
	fence.Generation++
	if err := store.InTx(t.Context(), app, fence, func(pgx.Tx) error { return nil }); !errors.Is(err, daemon.ErrStale) {
		t.Errorf("a transaction of another run: %v", err)
	}
	if _, err := postgres.GrantSQL(cfg, postgres.Roles{}); err == nil {
		t.Error("nobody was granted something")
	}
}

// Objects that others have made in a schema early in a session's search path do not hide any object
// that the store's statements mean.
func TestShadowsAreNotSeen(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	s.exec(t, `create schema evil; grant usage on schema evil to public;
		create table evil.called (by text); grant insert on evil.called to public;
		create function evil.tell() returns void language sql as 'insert into evil.called select session_user';
		create function evil.clock_timestamp() returns timestamptz language plpgsql as 'begin perform evil.tell(); return ''infinity''; end';
		create function evil.times(bigint, interval) returns interval language plpgsql as 'begin perform evil.tell(); return $2; end';
		create operator evil.* (leftarg = bigint, rightarg = interval, function = evil.times);
		create function evil.starts_with(text, text) returns boolean language plpgsql as 'begin perform evil.tell(); return true; end'`)
	cfg := s.schema(t)
	cfg.URL += "&search_path=evil,pg_catalog"
	store := open(t, cfg)
	a, b := join(t, store, "a"), join(t, store, "b")
	term := a.lead()
	a.assign(term, unit(0), b)
	a.beat(renew(term))
	a.beat(renew(term), func(b *storage.Heartbeat) { b.WantMembers = true })
	if _, err := store.Snapshot(context.Background()); err != nil {
		t.Error(err)
	}
	if who := value[string](t, s, "select coalesce(string_agg(distinct by, ', '), '') from evil.called"); who != "" {
		t.Errorf("what stands in another schema was called by %s", who)
	}
}
