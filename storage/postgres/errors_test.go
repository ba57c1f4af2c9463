package postgres_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/emitd/emitd/internal/pgtest"
	"github.com/emitd/emitd/storage"
	"github.com/emitd/emitd/storage/postgres"
)

// Errors say in words what is wrong with a store and what to do, without the password.
func TestErrorsOfOpen(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	good := s.schema(t)
	const secret = "s3cr3t"
	with := func(user string, edit func(*postgres.Config)) postgres.Config {
		cfg := good
		cfg.URL = pgtest.WithUser(s.url, user, secret)
		edit(&cfg)
		return cfg
	}
	outsider, name := pgtest.Role(t, s.url), "/"+value[string](t, s, "select current_database()")
	crowd := pgtest.Role(t, s.url)
	s.exec(t, "alter role "+crowd+" connection limit 0")
	for what, tt := range map[string]struct {
		cfg      postgres.Config
		kind     error // nil: no error of the contract
		contains string
	}{
		"nobody listens": {
			with("postgres", func(c *postgres.Config) { c.URL = "postgres://u:" + secret + "@127.0.0.1:1/db" }),
			storage.ErrUnavailable, "cannot reach the database: failed to connect to `user=u database=db`: 127.0.0.1:1 (127.0.0.1): dial error",
		},
		"no connection left": {
			with(crowd, func(*postgres.Config) {}), storage.ErrUnavailable,
			"no connection left: lower store.max_connections or raise the server's max_connections: too many connections for role",
		},
		"no database": {
			with("postgres", func(c *postgres.Config) { c.URL = strings.Replace(c.URL, name, "/nowhere", 1) }),
			nil, "does not exist: create it first",
		},
		"no role":   {with("nobody_at_all", func(*postgres.Config) {}), nil, "refuses the user or password"},
		"no schema": {with("postgres", func(c *postgres.Config) { c.Schema = "elsewhere" }), storage.ErrSchema, "emitd migrate up"},
		"no rights": {with(outsider, func(*postgres.Config) {}), nil, "lacks privileges in schema " + good.Schema},
		"no URL":    {with("postgres", func(c *postgres.Config) { c.URL = "" }), nil, "store.url is empty"},
		"no text of a URL": {
			with("postgres", func(c *postgres.Config) { c.URL = "postgres://u:" + secret + "@host:port:/db" }), nil, "not a valid connection string",
		},
		"a schema that is no name": {with("postgres", func(c *postgres.Config) { c.Schema = `x"; drop` }), nil, "store.schema is"},
		"too few connections":      {with("postgres", func(c *postgres.Config) { c.MaxConns = 3 }), nil, "store.max_connections is 3, want 4 or more"},
		"hardly any time":          {with("postgres", func(c *postgres.Config) { c.QueryTimeout = time.Millisecond }), nil, "query_timeout is 1ms"},
		"another way of waking":    {with("postgres", func(c *postgres.Config) { c.Notify = "shout" }), nil, `want "auto" or "poll"`},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			store, err := postgres.OpenConfig(context.Background(), tt.cfg)
			if err == nil {
				store.Close()
				t.Fatal("it opened")
			}
			if tt.kind != nil && !errors.Is(err, tt.kind) {
				t.Errorf("error %v, want one that is %v", err, tt.kind)
			}
			if tt.kind == nil && errors.Is(err, storage.ErrUnavailable) {
				t.Errorf("error %v passes by itself", err)
			}
			if !strings.Contains(err.Error(), tt.contains) {
				t.Errorf("error %q, want one that says %q", err, tt.contains)
			}
			if strings.Contains(err.Error(), secret) || strings.Contains(err.Error(), "\n") {
				t.Errorf("error %q has the password or more than a line", err)
			}
		})
	}
}

// If a server becomes read-only, as a demoted primary does, the error says so and the pool drops
// its connections. The next call finds a server that can be written to.
func TestReadOnlyServer(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	cfg := s.schema(t)
	store := open(t, cfg)
	a := join(t, store, "a")
	name := pgx.Identifier{value[string](t, s, "select current_database()")}.Sanitize()
	s.exec(t, "alter database "+name+" set default_transaction_read_only = on")
	s.exec(t, "select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database() and application_name = 'emitd'")
	eventually(t, "the store says that it is read-only", func() bool {
		_, err := a.try()
		if err == nil {
			t.Fatal("a read-only server took a heartbeat")
		}
		if !errors.Is(err, storage.ErrUnavailable) {
			t.Fatalf("error %v, want one that is %v", err, storage.ErrUnavailable)
		}
		return strings.Contains(err.Error(), "read-only")
	})
	s.exec(t, "alter database "+name+" reset default_transaction_read_only")
	a.beat()
}

// Every call of a closed store says that it is closed.
func TestClosedStore(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	store := open(t, s.schema(t))
	a := join(t, store, "a")
	store.Close()
	store.Close()
	_, beat := a.try()
	_, snap := store.Snapshot(context.Background())
	for what, err := range map[string]error{"heartbeat": beat, "snapshot": snap, "stamp": store.StampFence(context.Background(), fence(1))} {
		if err == nil || !strings.Contains(err.Error(), "closed") {
			t.Errorf("%s: error %v", what, err)
		}
	}
}
