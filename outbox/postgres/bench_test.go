package postgres

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/internal/pgtest"
	"github.com/emitd/emitd/outbox"
)

// payload is that of a small event.
var payload = make([]byte, 200)

// fill publishes n messages of 500 keys, by COPY.
func fill(b testing.TB, w *world, n int) {
	b.Helper()
	batch := make([]outbox.Message, 20_000)
	for i := range batch {
		batch[i] = outbox.Message{Topic: "orders", Type: "order.placed", Key: fmt.Sprint("key-", i%500), Payload: payload}
	}
	for ; n > 0; n -= len(batch) {
		w.publish(batch[:min(n, len(batch))]...)
	}
}

// fillFast does what fill does inside the server, for millions of messages.
func fillFast(b testing.TB, w *world, n int) {
	b.Helper()
	const step = 1_000_000
	for i := 0; i < n; i += step {
		w.exec(`insert into ~outbox (shard, dedup_id, key, topic, type, payload)
			select i % 64, gen_random_uuid(), 'key-' || i % 500, 'orders', 'order.placed', $2::bytea from generate_series(1, $1::int) i`, min(step, n-i), payload)
		w.exec("select ~outbox_extend($1, $2)", 4*w.cfg.width, w.cfg.width)
	}
}

// serverCPU returns the CPU time of all processes of the server, including ended ones; 0 if it is
// unknown.
func serverCPU(s *pgtest.Server) time.Duration {
	var total int64
	dirs, _ := os.ReadDir("/proc")
	for _, d := range dirs {
		text, err := os.ReadFile("/proc/" + d.Name() + "/stat")
		if err != nil {
			continue
		}
		_, rest, found := strings.Cut(string(text), ") ")
		f := strings.Fields(rest)
		if !found || len(f) < 15 {
			continue
		}
		pid, _ := strconv.Atoi(d.Name())
		ppid, _ := strconv.Atoi(f[1])
		fields := f[11:13] // of the process itself
		if pid == s.PID() {
			fields = f[11:15] // and of its ended children
		} else if ppid != s.PID() {
			continue
		}
		for _, rowReaders := range fields {
			n, _ := strconv.ParseInt(rowReaders, 10, 64)
			total += n
		}
	}
	return time.Duration(total) * 10 * time.Millisecond
}

// bench returns a world on a server of its own.
func bench(b testing.TB, cfg Config, settings map[string]string) (*pgtest.Server, *world) {
	b.Helper()
	all := map[string]string{"shared_buffers": "256MB", "max_wal_size": "4GB", "autovacuum": "off"}
	for k, v := range settings {
		all[k] = v
	}
	s, err := pgtest.Start(pgtest.Config{Settings: all})
	ok(b, err)
	b.Cleanup(func() { ok(b, s.Close()) })
	cfg.URL, cfg.AutoMigrate = s.URL("postgres"), true
	return s, openWorld(b, cfg)
}

// relay runs the real relay on a log until the test ends or stop is called, which drains it.
func (w *world) relay(t testing.TB, cfg outbox.Config) (stop func()) {
	t.Helper()
	if cfg.Name == "" {
		cfg.Name = "s"
	}
	cfg.Log, cfg.Logger = w.Log, slog.New(slog.DiscardHandler)
	r, err := outbox.NewRelay(cfg)
	ok(t, err)
	a := daemon.NewAssignment(daemon.Fence{Unit: daemon.Unit{Daemon: outbox.ID(cfg.Name)}, Generation: 1}, 1, "n", nil)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- errors.Join(r.Run(ctx, a), r.Close(context.Background())) }()
	var once sync.Once
	stop = func() {
		once.Do(func() {
			a.BeginDrain()
			select {
			case err := <-done:
				if err != nil {
					t.Errorf("the relay ended with %v", err)
				}
			case <-time.After(20 * time.Second):
				t.Error("the relay does not end")
			}
			cancel()
		})
	}
	t.Cleanup(stop)
	return stop
}

// BenchmarkRelay measures the real relay with a sink that takes everything, from a backlog, in pages of
// 1,000: elapsed time, and the CPU time of Postgres.
func BenchmarkRelay(b *testing.B) {
	for _, backlog := range []int{20_000, 400_000, 10_000_000} {
		b.Run(fmt.Sprint("backlog=", backlog), func(b *testing.B) {
			if backlog > 1_000_000 && os.Getenv("EMITD_TEST_LONG") == "" {
				b.Skip("ten million messages take minutes: set EMITD_TEST_LONG=1")
			}
			s, w := bench(b, Config{}, nil)
			fillFast(b, w, backlog)
			w.exec("vacuum analyze ~outbox")
			b.ResetTimer()
			var took, cpu time.Duration
			rounds := 0
			for b.Loop() {
				took2, cpu2 := w.drain(b, s, fmt.Sprint("s", rounds), backlog)
				took, cpu, rounds = took+took2, cpu+cpu2, rounds+1
			}
			n := float64(backlog * rounds)
			b.ReportMetric(n/took.Seconds(), "messages/s")
			b.ReportMetric(float64(cpu.Nanoseconds())/n, "pg-cpu-ns/message")
			b.ReportMetric(0, "ns/op")
		})
	}
}

// drain delivers everything to a sink that discards it, as a new subscription.
func (w *world) drain(b testing.TB, s *pgtest.Server, name string, backlog int) (took, cpu time.Duration) {
	b.Helper()
	var n atomic.Int64
	done := make(chan struct{})
	before, began := serverCPU(s), time.Now()
	stop := w.relay(b, outbox.Config{Name: name, Parallel: 1, Sink: outbox.SinkFunc(func(_ context.Context, d outbox.Delivery) []error {
		if n.Add(int64(len(d.Rows))) == int64(backlog) {
			close(done)
		}
		return nil
	})})
	<-done
	took, cpu = time.Since(began), serverCPU(s)-before
	stop()
	ok(b, w.Delete(context.Background(), name))
	return took, cpu
}

// BenchmarkLatency measures the time from the commit of InTx to the sink at 1,000 messages a second.
func BenchmarkLatency(b *testing.B) {
	_, w := bench(b, Config{}, nil)
	var mu sync.Mutex
	committed, all := map[string]time.Time{}, []time.Duration{}
	arrived := map[string]time.Time{}
	w.relay(b, outbox.Config{Sink: outbox.SinkFunc(func(_ context.Context, d outbox.Delivery) []error {
		now := time.Now()
		mu.Lock()
		defer mu.Unlock()
		for _, r := range d.Rows {
			arrived[string(r.Payload)] = now
		}
		return nil
	})})
	var wg sync.WaitGroup
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	n := max(b.N, 5000)
	b.ResetTimer()
	for i := range n {
		<-tick.C
		wg.Go(func() {
			name := strconv.Itoa(i)
			w.publish(text("k"+strconv.Itoa(i%100), name))
			now := time.Now()
			mu.Lock()
			committed[name] = now
			mu.Unlock()
		})
	}
	wg.Wait()
	eventually(b, "everything arrives", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(arrived) == n
	})
	for name, at := range arrived {
		all = append(all, max(at.Sub(committed[name]), 0))
	}
	slices.Sort(all)
	b.ReportMetric(float64(all[len(all)/2].Microseconds())/1000, "p50-ms")
	b.ReportMetric(float64(all[len(all)*99/100].Microseconds())/1000, "p99-ms")
	b.ReportMetric(float64(n)/b.Elapsed().Seconds(), "messages/s")
}

// BenchmarkWake measures the time from the commit to the sink for messages that come once a second in transactions
// of a program's own: found by polling, or announced by outbox_wake.
func BenchmarkWake(b *testing.B) {
	_, w := bench(b, Config{}, nil)
	arrived := make(chan time.Time, 1)
	w.relay(b, outbox.Config{Sink: outbox.SinkFunc(func(context.Context, outbox.Delivery) []error {
		arrived <- time.Now()
		return nil
	})})
	for _, how := range []string{"polled", "announced"} {
		b.Run(how, func(b *testing.B) {
			tick := time.NewTicker(time.Second)
			defer tick.Stop()
			var all []time.Duration
			for range max(b.N, 30) {
				<-tick.C
				_, err := w.app.Exec(b.Context(), w.names.q("select ~outbox_publish('t', 'x', 'k')"))
				ok(b, err)
				began := time.Now()
				if how == "announced" {
					_, err = w.app.Exec(b.Context(), w.names.q("select ~outbox_wake()"))
					ok(b, err)
				}
				all = append(all, (<-arrived).Sub(began))
			}
			slices.Sort(all)
			b.ReportMetric(float64(all[len(all)/2].Microseconds())/1000, "p50-ms")
			b.ReportMetric(float64(all[len(all)-1].Microseconds())/1000, "max-ms")
			b.ReportMetric(0, "ns/op")
		})
	}
}

// BenchmarkInsert compares publishing with inserts into a plain table with the same columns and primary
// key: one message per transaction, and many in one statement.
func BenchmarkInsert(b *testing.B) {
	s, w := bench(b, Config{}, nil)
	w.exec(`create table plain (tx xid8 not null default pg_current_xact_id(), id bigint generated always as identity primary key, shard smallint not null,
		created_at timestamptz not null default clock_timestamp(), dedup_id uuid not null, key text, topic text not null, type text, headers json,
		traceparent text, tracestate text, payload bytea)`)
	pubs := map[string]*Publisher{"plain": w.pub.Ordered(false), "outbox": w.pub.Ordered(false), "ordered": w.pub}
	for _, n := range []int{1, 100} {
		for _, table := range []string{"plain", "outbox", "ordered"} {
			b.Run(fmt.Sprintf("%s/tx=%d", table, n), func(b *testing.B) {
				batch := make([]outbox.Message, n)
				for i := range batch {
					batch[i] = outbox.Message{Topic: "orders", Type: "order.placed", Key: fmt.Sprint("key-", i), Payload: payload}
				}
				ctx, pub := context.Background(), pubs[table]
				before := serverCPU(s)
				for i := 0; i < b.N; i += n {
					ok(b, pgx.BeginFunc(ctx, w.app, func(tx pgx.Tx) error {
						if table != "plain" {
							return pub.Publish(ctx, tx, batch...)
						}
						all, err := outbox.Prepare(ctx, batch)
						if err != nil {
							return err
						}
						in := pub.insert(all)
						_, err = tx.Exec(ctx, strings.ReplaceAll(in.text, w.names.table("outbox"), "plain"), in.args...)
						return err
					}))
				}
				b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "messages/s")
				b.ReportMetric(float64((serverCPU(s)-before).Nanoseconds())/float64(b.N), "pg-cpu-ns/message")
			})
		}
	}
}

// BenchmarkIdle counts the statements of an idle relay, in a database with other writers and many
// partitions.
func BenchmarkIdle(b *testing.B) {
	s, w := bench(b, Config{width: 1000}, map[string]string{"log_statement": "none"})
	fill(b, w, 3000)
	w.relay(b, outbox.Config{Sink: outbox.SinkFunc(func(context.Context, outbox.Delivery) []error { return nil })})
	eventually(b, "all are delivered", func() bool {
		all, err := w.Stats(context.Background(), "s")
		return err == nil && len(all) == 1 && all[0].Pending == 0
	})
	proxy := pgtest.NewProxy(b, s.URL("postgres"))
	cfg := w.cfg
	cfg.URL = proxy.URL()
	idle := openWorld(b, cfg)
	idle.relay(b, outbox.Config{Name: "idle", Newest: true, Sink: outbox.SinkFunc(func(context.Context, outbox.Delivery) []error { return nil })})
	w.exec("create table other (n int)")
	settle := time.NewTimer(5 * time.Second)
	<-settle.C
	before, began := proxy.Queries(), time.Now()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for time.Since(began) < 20*time.Second {
		<-tick.C
		w.exec("insert into other values (1)")
	}
	b.ReportMetric(float64(proxy.Queries()-before)/time.Since(began).Seconds(), "statements/s")
	b.ReportMetric(0, "ns/op")
}

// emitForm is the outbox of the project that this one follows, with its own statements: it selects the
// oldest messages, delivers one after the other, and deletes each. 16 writers publish one message per
// transaction.
type emitForm struct{ pool *pgxpool.Pool }

func (e emitForm) publish(ctx context.Context) error {
	return pgx.BeginFunc(ctx, e.pool, func(tx pgx.Tx) error {
		_, err := tx.Exec(ctx, `insert into emit_outbox (group_key, payload) values ($1, $2)`, "k", payload)
		return err
	})
}

// drain does one interval's work: a batch of 100, each confirmed by a delete in a transaction of its own.
func (e emitForm) drain(ctx context.Context) (int, error) {
	rows, err := e.pool.Query(ctx, `select sequence, group_key, payload from emit_outbox order by sequence limit 100`)
	if err != nil {
		return 0, err
	}
	ids, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (id int64, err error) {
		var key string
		var body []byte
		err = row.Scan(&id, &key, &body)
		return id, err
	})
	for _, id := range ids {
		if err := pgx.BeginFunc(ctx, e.pool, func(tx pgx.Tx) error {
			_, err := tx.Exec(ctx, `delete from emit_outbox where sequence = $1`, id)
			return err
		}); err != nil {
			return 0, err
		}
	}
	return len(ids), err
}

// BenchmarkAgainstEmit drains what 16 writers publish one by one, in both forms. There is no receiver: it compares
// what each form does to Postgres for a message, and says nothing about sinks. BenchmarkEndToEnd of e2e/sink
// measures those. Emit's form runs without
// its pause of five seconds between batches, which would limit it to 20 messages a second.
func BenchmarkAgainstEmit(b *testing.B) {
	_, w := bench(b, Config{}, nil)
	w.exec(`create table emit_outbox (sequence bigint generated always as identity primary key, group_key text, payload bytea)`)
	ctx := context.Background()
	const n = 20_000
	e := emitForm{w.app}
	many := func(one func() error) {
		var wg sync.WaitGroup
		for range 16 {
			wg.Go(func() {
				for range n / 16 {
					ok(b, one())
				}
			})
		}
		wg.Wait()
	}
	many(func() error { return e.publish(ctx) })
	pub := w.pub.Ordered(false)
	many(func() error {
		return pgx.BeginFunc(ctx, w.app, func(tx pgx.Tx) error {
			return pub.Publish(ctx, tx, outbox.Message{Topic: "t", Key: "k", Payload: payload})
		})
	})
	b.ResetTimer()
	began, drained := time.Now(), 0
	for drained < n {
		m, err := e.drain(ctx)
		ok(b, err)
		drained += m
	}
	theirs := float64(n) / time.Since(began).Seconds()
	var got atomic.Int64
	done := make(chan struct{})
	began = time.Now()
	w.relay(b, outbox.Config{Sink: outbox.SinkFunc(func(_ context.Context, d outbox.Delivery) []error {
		if got.Add(int64(len(d.Rows))) == n {
			close(done)
		}
		return nil
	})})
	<-done
	ours := float64(n) / time.Since(began).Seconds()
	b.ReportMetric(theirs, "emit-messages/s")
	b.ReportMetric(ours, "messages/s")
	b.ReportMetric(ours/theirs, "times")
	b.ReportMetric(0, "ns/op")
}
