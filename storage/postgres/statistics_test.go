package postgres_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/internal/pgtest"
	"github.com/emitd/emitd/node"
	"github.com/emitd/emitd/storage"
	"github.com/emitd/emitd/storage/postgres"
)

// The server's statistics (pg_stat_statements) have one entry for each kind of statement, whatever
// values the calls have. Otherwise heartbeats would evict the user's entries.
func TestStatisticsHaveOneEntryPerKind(t *testing.T) {
	t.Parallel()
	server, err := pgtest.Start(pgtest.Config{Settings: map[string]string{
		"shared_preload_libraries": "pg_stat_statements", "pg_stat_statements.track": "all", "pg_stat_statements.max": "5000",
	}})
	if err != nil {
		t.Fatalf("%v\npg_stat_statements comes with the server: make deps, or apt-get install postgresql", err)
	}
	t.Cleanup(func() { _ = server.Close() })
	pool, err := pgxpool.New(t.Context(), server.URL("postgres"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	s := &stage{url: server.URL("postgres"), pool: pool}
	s.exec(t, "create extension pg_stat_statements")
	cfg := postgres.Config{URL: s.url, Schema: "s", QueryTimeout: waitTimeout}
	if _, err := postgres.Migrate(context.Background(), cfg, postgres.Version); err != nil {
		t.Fatal(err)
	}
	store := open(t, cfg)
	watching(t, store)
	h := &household{t: t, s: s, store: store, a: join(t, store, "a"), b: join(t, store, "b")}
	for i := range 3 { // values of every size, so that every kind of statement has an entry
		h.month(i)
	}
	var before map[string]int64
	eventually(t, "the watch has tried whether notifications arrive", func() bool {
		before = s.entries(t)
		for query := range before {
			if strings.Contains(query, "unlisten") {
				return true
			}
		}
		return false
	})
	for i := range 20 {
		h.month(3 + i)
	}
	after := s.entries(t)
	for query, calls := range after {
		if _, known := before[query]; !known {
			t.Errorf("a new entry, called %d times: %s", calls, query)
		}
	}
	beats := 0
	for query := range after {
		if strings.Contains(query, `select "s"."heartbeat_8"`) {
			beats++
		}
	}
	if beats != 1 {
		t.Errorf("heartbeats have %d entries, want 1", beats)
	}
	t.Logf("%d entries", len(after))
}

// entries are the statistics of this database: calls by the identifier and text of a statement.
func (s *stage) entries(t *testing.T) map[string]int64 {
	t.Helper()
	rows, err := s.pool.Query(context.Background(), `select queryid::text || ' ' || query, calls from pg_stat_statements
		where dbid = (select oid from pg_database where datname = current_database()) and query not like '%pg_stat_statements%'`)
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]int64{}
	var entry string
	var calls int64
	if _, err := pgx.ForEachRow(rows, []any{&entry, &calls}, func() error {
		out[entry] = calls
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	return out
}

// watching keeps a Watch open until the test ends.
func watching(t *testing.T, store *postgres.Store) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = store.Watch(ctx, func(storage.WakeUp) {})
	}()
	t.Cleanup(func() { cancel(); <-done })
}

// household makes two nodes do everything that a cluster does.
type household struct {
	t     *testing.T
	s     *stage
	store *postgres.Store
	a, b  *actor
}

func (h *household) ok(err error) {
	h.t.Helper()
	if err != nil {
		h.t.Fatal(err)
	}
}

// month makes every kind of call, with values that no other month has.
func (h *household) month(i int) {
	h.t.Helper()
	if i == 1 {
		h.a.seq, h.b.seq = 1<<40, 1<<40 // numbers of another size
	}
	term := h.elect()
	for range 3 {
		h.a.beat(renew(term), func(b *storage.Heartbeat) { b.TermRequest.PassSeq, b.EventsAfter = uint64(i), int64(i) })
		h.b.beat(func(b *storage.Heartbeat) { b.EventsAfter, b.HighestGeneration = int64(i), int64(i) })
		h.b.beat(func(b *storage.Heartbeat) { b.WantMembers = true })
		h.a.beat(func(b *storage.Heartbeat) { b.WantMembers = true })
	}
	for _, p := range []*actor{h.a, h.b} {
		p.beat(func(b *storage.Heartbeat) {
			b.Advert = &daemon.Advert{Traits: node.Traits{Capacity: 3 + i, Address: fmt.Sprint("10.0.0.", i)}}
		})
		p.beat(renew(term))
	}
	u := unit(i)
	run := h.a.assign(term, u, h.b)
	ctx := context.Background()
	h.ok(h.store.StampFence(ctx, run.Fence()))
	h.ok(h.store.InTx(ctx, h.s.pool, run.Fence(), func(pgx.Tx) error { return nil }))
	_, err := h.store.Commit(ctx, storage.Commit{Term: term.Ref(), Changes: []storage.Change{
		{Unit: u, Step: daemon.Revoke, Generation: run.Generation, State: daemon.Active, Reason: fmt.Sprint("month ", i)},
	}})
	h.ok(err)
	h.b.seq++
	_, err = h.store.Report(ctx, storage.Report{Node: h.b.id, Seq: h.b.seq, Units: []storage.UnitReport{
		{Unit: u, Generation: run.Generation, Step: daemon.Confirm, Error: fmt.Sprint("error ", i)},
	}})
	h.ok(err)
	_, err = h.store.Submit(ctx, storage.Command{ID: fmt.Sprint("command-", i), Kind: "x", Cooldown: time.Duration(i)})
	h.ok(err)
	h.a.seq++
	h.ok(h.store.Leave(ctx, storage.Leave{Node: h.a.id, Seq: h.a.seq, Resign: term.Number, Command: fmt.Sprint("command-", i), Actor: fmt.Sprint(i)}))
	h.reads(i)
	h.locks(i)
	h.sweeps(i)
}

// elect makes the first node the leader, from a vacant term.
func (h *household) elect() node.Term {
	h.t.Helper()
	r := h.a.beat(stand)
	if r.Verdict != storage.Elect {
		h.t.Fatalf("verdict %v, want an election", r.Verdict)
	}
	return r.Term
}

func (h *household) reads(i int) {
	h.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), waitTimeout-time.Duration(i)*time.Second/4) // the server gets this timeout
	defer cancel()
	_, err := h.store.Snapshot(ctx)
	h.ok(err)
	_, err = h.store.Events(ctx, int64(i), 10+i)
	h.ok(err)
}

func (h *household) locks(i int) {
	h.t.Helper()
	ctx := context.Background()
	name := fmt.Sprint("lock-", i)
	l, err := h.store.Acquire(ctx, name, "owner", time.Duration(i+1)*time.Minute, storage.Lock{Number: int64(i) << 33})
	h.ok(err)
	l, err = h.store.Extend(ctx, l, time.Duration(i+1)*time.Hour)
	h.ok(err)
	h.ok(h.store.Release(ctx, l))
}

func (h *household) sweeps(i int) {
	h.t.Helper()
	ctx := context.Background()
	f := daemon.Fence{Unit: daemon.Unit{Daemon: "emit:sweeper"}, Generation: int64(i + 1)}
	h.ok(h.store.StampFence(ctx, f))
	age := time.Duration(i+1) * time.Hour
	_, err := h.store.SweepNodes(ctx, f, age, 10+i)
	h.ok(err)
	_, err = h.store.SweepEvents(ctx, f, storage.Retention{Age: age, MaxEvents: 100 + i}, 10+i)
	h.ok(err)
	_, err = h.store.SweepLocks(ctx, f, age, 10+i)
	h.ok(err)
}
