package postgres_test

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/internal/pgtest"
	"github.com/emitd/emitd/storage"
	"github.com/emitd/emitd/storage/postgres"
	"github.com/emitd/emitd/storage/storagetest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// stage is a database in which every store of a test has a schema of its own.
type stage struct {
	url  string // of the owner
	user string // of the role that stores run as, with the rights of GrantSQL
	role string
	pool *pgxpool.Pool
	n    atomic.Int64
}

func newStage(t testing.TB) *stage {
	t.Helper()
	s := &stage{url: pgtest.Database(t)}
	s.role = pgtest.Role(t, s.url)
	s.user = pgtest.WithUser(s.url, s.role, "secret")
	pool, err := pgxpool.New(context.Background(), s.url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	s.pool = pool
	s.exec(t, `create table clock (now timestamptz not null);
		grant select on clock to public`)
	return s
}

// grant gives roles the rights that they need for a store.
func (s *stage) grant(t testing.TB, cfg postgres.Config, roles postgres.Roles) {
	t.Helper()
	grants, err := postgres.GrantSQL(cfg, roles)
	if err != nil {
		t.Fatal(err)
	}
	s.exec(t, grants)
}

func (s *stage) exec(t testing.TB, sql string, args ...any) {
	t.Helper()
	if _, err := s.pool.Exec(context.Background(), sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

func value[T any](t testing.TB, s *stage, sql string, args ...any) (v T) {
	t.Helper()
	if err := s.pool.QueryRow(context.Background(), sql, args...).Scan(&v); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return v
}

// schema makes a migrated schema and returns the configuration of a store in it, for the store's
// role.
func (s *stage) schema(t testing.TB, edits ...func(*postgres.Config)) postgres.Config {
	t.Helper()
	cfg := postgres.Config{URL: s.url, Schema: fmt.Sprintf("s%d", s.n.Add(1)), QueryTimeout: 30 * time.Second}
	for _, e := range edits {
		e(&cfg)
	}
	if _, err := postgres.Migrate(context.Background(), cfg, postgres.Version); err != nil {
		t.Fatal(err)
	}
	s.grant(t, cfg, postgres.Roles{Node: s.role})
	cfg.URL = s.user
	for _, e := range edits {
		e(&cfg)
	}
	return cfg
}

func open(t testing.TB, cfg postgres.Config) *postgres.Store {
	t.Helper()
	store, err := postgres.OpenConfig(context.Background(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(store.Close)
	return store
}

// backend opens a store in a schema of its own, twice. Its clock stands still unless it is told to
// step. The first store's replies can be lost.
func (s *stage) backend(t testing.TB, edits ...func(*postgres.Config)) storagetest.Backend {
	t.Helper()
	cfg := s.schema(t, edits...)
	clock := cfg.Schema + ".clock"
	s.exec(t, "create table "+clock+" as select date_trunc('second', clock_timestamp()) as now, 1 as id; grant select on "+clock+" to public")
	proxy := pgtest.NewProxy(t, cfg.URL)
	first, second := cfg, cfg
	first.URL = proxy.URL()
	stores := []*postgres.Store{open(t, first), open(t, second)}
	now, id := "(select c.now from "+clock+" c)", "(select c.id::text from "+clock+" c)"
	s.exec(t, postgres.FakeFunctions(cfg, now, id))
	for _, store := range stores {
		store.FakeServer(now, id)
	}
	t.Cleanup(func() { s.counted(t, cfg.Schema) })
	return storagetest.Backend{
		Store: stores[0], Second: stores[1], Frozen: true,
		Advance: func(d time.Duration) {
			s.exec(t, "update "+clock+" set now = now + $1 * interval '1 microsecond'", d.Microseconds())
		},
		InTx: func(ctx context.Context, f daemon.Fence, fn func(context.Context) error) error {
			return stores[0].InTx(ctx, s.pool, f, func(pgx.Tx) error { return fn(ctx) })
		},
		WriteState: func(t testing.TB, u daemon.Unit, state daemon.State) {
			s.exec(t, "update "+cfg.Schema+".unit set state = $3 where daemon = $1 and index = $2", string(u.Daemon), u.Index, string(state))
		},
		ChangeIdentity: func(t testing.TB) { s.exec(t, "update "+clock+" set id = id + 1") },
		LoseReply: func(call func() error) error {
			proxy.LoseReplies(1)
			defer proxy.LoseReplies(0)
			return call()
		},
	}
}

// noDeadlocks fails the test if the server had to end any transaction of the stage because of a
// deadlock. The order of locks is wrong then, whatever the callers saw.
func (s *stage) noDeadlocks(t testing.TB) {
	t.Helper()
	if value[int](t, s, "select current_setting('server_version_num')::int") >= 150_000 { // before version 15, deadlocks are reported at once
		s.exec(t, "select pg_stat_force_next_flush()")
	}
	if n := value[int](t, s, "select deadlocks from pg_stat_database where datname = current_database()"); n != 0 {
		t.Errorf("%d deadlocks, want none", n)
	}
}

// Runs the whole suite with a role that may only read and write rows.
func TestConformance(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	t.Cleanup(func() { s.noDeadlocks(t) })
	storagetest.Run(t, storagetest.Factory{Open: func(t testing.TB) storagetest.Backend { return s.backend(t) }, Runs: 20})
}

// deaf is a store without its Watch.
type deaf struct {
	storage.Store
	storage.Locker
	storage.Sweeper
	daemon.StateStore
	storage.Renamer
	storage.KeyStore
	storage.Recorder
}

// Runs the whole suite through a transaction pooler, where every transaction may run on another
// connection. Only notifications are missing.
func TestConformanceThroughPooler(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	pooled := pgtest.Pooler(t, s.user)
	storagetest.Run(t, storagetest.Factory{
		Open: func(t testing.TB) storagetest.Backend {
			b := s.backend(t, func(c *postgres.Config) {
				if c.URL == s.user {
					c.URL = pooled
				}
			})
			first, second := b.Store.(*postgres.Store), b.Second.(*postgres.Store)
			b.Store, b.Second = deaf{first, first, first, first, first, first, first}, deaf{second, second, second, second, second, second, second}
			return b
		},
		Lacks: storagetest.Wakes,
		Runs:  3,
	})
}

// through connects to the stage's database as its owner, over a network that can be disturbed.
func (s *stage) through(t testing.TB) (*pgxpool.Pool, *pgtest.Proxy) {
	t.Helper()
	proxy := pgtest.NewProxy(t, s.url)
	pool, err := pgxpool.New(context.Background(), proxy.URL())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	return pool, proxy
}
