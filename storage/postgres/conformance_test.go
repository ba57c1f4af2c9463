package postgres_test

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/internal/pgtest"
	"github.com/emitd/emitd/storage/postgres"
	"github.com/emitd/emitd/storage/storagetest"
)

func TestMain(m *testing.M) { pgtest.Main(m) }

// stage is a database in which every store of a test has a schema of its own.
type stage struct {
	url  string // of the owner
	user string // of the role that stores run as: it may use tables and make none
	pool *pgxpool.Pool
	n    atomic.Int64
}

func newStage(t testing.TB) *stage {
	t.Helper()
	s := &stage{url: pgtest.Database(t)}
	role := pgtest.Role(t, s.url)
	s.user = pgtest.As(s.url, role, "secret")
	pool, err := pgxpool.New(context.Background(), s.url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	s.pool = pool
	s.exec(t, `create table clock (now timestamptz not null);
		grant select on clock to public;
		alter default privileges grant usage on schemas to `+role+`;
		alter default privileges grant select, insert, update, delete on tables to `+role)
	return s
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

// schema makes a migrated schema and returns the configuration of a store in it, run by the role.
func (s *stage) schema(t testing.TB, edits ...func(*postgres.Config)) postgres.Config {
	t.Helper()
	cfg := postgres.Config{URL: s.url, Schema: fmt.Sprintf("s%d", s.n.Add(1)), QueryTimeout: 30 * time.Second}
	for _, e := range edits {
		e(&cfg)
	}
	if _, err := postgres.Migrate(context.Background(), cfg, postgres.Version); err != nil {
		t.Fatal(err)
	}
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

// The whole suite, by a role that may do nothing but read and write rows, on a clock that stands
// still unless it is told to step.
func TestConformance(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	storagetest.Run(t, storagetest.Factory{Open: func(t testing.TB) storagetest.Backend {
		cfg := s.schema(t)
		clock := cfg.Schema + ".clock"
		s.exec(t, "create table "+clock+" as select date_trunc('second', clock_timestamp()) as now")
		first, second := open(t, cfg), open(t, cfg)
		for _, store := range []*postgres.Store{first, second} {
			store.FakeClock("(select c.now from " + clock + " c)")
		}
		return storagetest.Backend{
			Store: first, Second: second, Frozen: true,
			Advance: func(d time.Duration) {
				s.exec(t, "update "+clock+" set now = now + $1 * interval '1 microsecond'", d.Microseconds())
			},
			InTx: func(ctx context.Context, f daemon.Fence, fn func(context.Context) error) error {
				return first.InTx(ctx, s.pool, f, func(pgx.Tx) error { return fn(ctx) })
			},
			Plant: func(t testing.TB, u daemon.Unit, state daemon.State) {
				s.exec(t, "update "+cfg.Schema+".unit set state = $3 where daemon = $1 and index = $2", string(u.Daemon), u.Index, string(state))
			},
		}
	}, Runs: 20})
}

var _ = strings.Contains
