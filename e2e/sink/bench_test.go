package sink_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"runtime"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/internal/pgtest"
	"github.com/emitd/emitd/outbox"
	"github.com/emitd/emitd/outbox/postgres"
	"github.com/emitd/emitd/outbox/sink"
	"github.com/emitd/emitd/outbox/sink/sinktest"
)

// messages is how many messages each way delivers per round: so many that the start of a relay, which a poller does not
// have, does not count. EMITD_BENCH_MESSAGES changes it.
func (r benchReceiver) messages(b *testing.B, keys int) int {
	text := os.Getenv("EMITD_BENCH_MESSAGES")
	switch {
	case text == "" && keys == 1:
		return r.oneKey
	case text == "":
		return r.manyKeys
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		b.Fatalf("EMITD_BENCH_MESSAGES is %q, want a number of messages", text)
	}
	return n
}

// plainRow is a row of the plain poller's table.
type plainRow struct {
	ID      int64
	Dedup   uuid.UUID
	Key     string
	Payload []byte
	// Alike says that the message gets as many headers as emitd's.
	Alike bool `db:"-"`
}

// headers are those of emitd's message about the row.
func (r plainRow) headers() []sink.Header {
	row := outbox.Row{Shard: 17}
	row.ID, row.Topic, row.Key = r.Dedup, "orders", r.Key
	return append(sink.Headers(outbox.Delivery{Subscription: "bench", Epoch: 12}, row), sink.Header{Name: sink.Topic, Value: row.Topic})
}

// benchReceiver is where a benchmark delivers, by emitd and by a plain poller with the same client library.
type benchReceiver struct {
	name string
	// oneKey and manyKeys are how many messages a round has.
	oneKey, manyKeys int
	// start starts the receiver and returns its address.
	start func(b *testing.B) (addr string)
	// clean removes what was delivered, before each delivery; nil: what the receiver keeps does not make it slower.
	clean func(b *testing.B)
	// sink and send reach the receiver through addr. send hands over all rows at once and waits until the
	// receiver has confirmed them. It may be called from many goroutines.
	sink func(b *testing.B, addr string) outbox.Sink
	send func(b *testing.B, addr string) func(ctx context.Context, rows []plainRow) error
}

// BenchmarkEndToEnd delivers what waits in Postgres to a real receiver: by a relay of emitd; by a poller with FOR
// UPDATE SKIP LOCKED that sends a page of 1,000 messages without waiting in between; by the forwarder of Watermill
// over watermill-sql; by River, with a job for each message; and by the poller again, with the headers that emitd
// sends. All use the same client library and the same proxy, and take turns within each round.
func BenchmarkEndToEnd(b *testing.B) {
	for _, r := range benchReceivers() {
		b.Run(r.name, func(b *testing.B) {
			w := newBenchWorld(b)
			addr := r.start(b)
			for _, delay := range []time.Duration{0, 2 * time.Millisecond} {
				for _, keys := range []int{1, 500} {
					b.Run(fmt.Sprintf("rtt=%v/keys=%d", delay, keys), func(b *testing.B) {
						near := newDelay(b, addr, delay/2)
						s, send := r.sink(b, near), r.send(b, near)
						n := r.messages(b, keys)
						few := min(n, 1000) // Watermill waits for each message
						if delay > 0 {
							few = min(n, 300)
						}
						rates := [5]rate{}
						ways := []func(){
							func() { rates[0].add(n, w.relay(b, s, n, keys)) },
							func() { rates[1].add(n, w.poll(b, send, n, keys, false)) },
							func() { rates[2].add(few, cost{took: w.watermill(b, send, few, keys)}) },
							func() { rates[3].add(min(n, 5000), cost{took: w.river(b, send, min(n, 5000), keys)}) },
							func() { rates[4].add(n, w.poll(b, send, n, keys, true)) },
						}
						for b.Loop() {
							for _, deliver := range ways {
								if r.clean != nil {
									r.clean(b)
								}
								deliver()
							}
						}
						for i, way := range []string{"", "poller-"} {
							b.ReportMetric(rates[i].cpu.Seconds()*1e6/float64(rates[i].messages), way+"cpu-µs/message")
							b.ReportMetric(float64(rates[i].allocated)/float64(rates[i].messages), way+"allocated-B/message")
						}
						for i, way := range []string{"", "poller-", "watermill-", "river-", "alike-"} {
							b.ReportMetric(rates[i].perSecond(), way+"messages/s")
						}
						for i, way := range []string{"", "-watermill", "-river", "-alike"} {
							b.ReportMetric(rates[0].perSecond()/rates[i+1].perSecond(), "times"+way)
						}
						b.ReportMetric(0, "ns/op")
					})
				}
			}
		})
	}
}

// cost is what a delivery takes of time, and of this process: processor time, and allocated bytes. A receiver in the
// process is part of it.
type cost struct {
	took, cpu time.Duration
	allocated uint64
}

// measure begins a measurement, and returns what ends it.
func measure(b *testing.B) (end func() cost) {
	b.Helper()
	now := func() (c cost) {
		var usage syscall.Rusage
		must(b, syscall.Getrusage(syscall.RUSAGE_SELF, &usage))
		var memory runtime.MemStats
		runtime.ReadMemStats(&memory)
		return cost{cpu: time.Duration(usage.Utime.Nano() + usage.Stime.Nano()), allocated: memory.TotalAlloc}
	}
	before, began := now(), time.Now()
	return func() cost {
		took, after := time.Since(began), now()
		return cost{took: took, cpu: after.cpu - before.cpu, allocated: after.allocated - before.allocated}
	}
}

// rate is how many messages were delivered at which cost.
type rate struct {
	messages int
	cost
}

func (r *rate) add(messages int, c cost) {
	r.messages, r.took, r.cpu, r.allocated = r.messages+messages, r.took+c.took, r.cpu+c.cpu, r.allocated+c.allocated
}

func (r *rate) perSecond() float64 { return float64(r.messages) / r.took.Seconds() }

// benchWorld is a Postgres with an outbox and with the table of a plain poller.
type benchWorld struct {
	pool  *pgxpool.Pool
	log   *postgres.Log
	pub   *postgres.Publisher
	epoch int64
}

func newBenchWorld(b *testing.B) *benchWorld {
	b.Helper()
	s, err := pgtest.Start(pgtest.Config{Settings: map[string]string{"shared_buffers": "256MB", "max_wal_size": "4GB"}})
	must(b, err)
	b.Cleanup(func() { must(b, s.Close()) })
	w := &benchWorld{}
	w.log, err = postgres.Open(b.Context(), postgres.Config{URL: s.URL("postgres"), AutoMigrate: true})
	must(b, err)
	b.Cleanup(w.log.Close)
	w.pool, err = pgxpool.New(b.Context(), s.URL("postgres"))
	must(b, err)
	b.Cleanup(w.pool.Close)
	w.pub, err = postgres.New(w.pool, postgres.Config{})
	must(b, err)
	b.Cleanup(func() { _ = w.pub.Close(context.Background()) })
	_, err = w.pool.Exec(b.Context(), `create table plain (id bigint generated always as identity primary key, dedup uuid not null, key text not null, payload bytea not null)`)
	must(b, err)
	w.migrateRiver(b)
	return w
}

// benchPayload is that of a small event.
var benchPayload = make([]byte, 200)

// relay publishes n messages and returns what it costs a relay to deliver them.
func (w *benchWorld) relay(b *testing.B, s outbox.Sink, n, keys int) cost {
	b.Helper()
	for i := 0; i < n; {
		var batch []outbox.Message
		for ; i < n && len(batch) < 5000; i++ {
			batch = append(batch, outbox.Message{Topic: "orders", Key: fmt.Sprint("key-", i%keys), Payload: benchPayload})
		}
		must(b, w.pub.InTx(b.Context(), w.pool, func(tx *postgres.Tx) error { return w.pub.Publish(b.Context(), tx, batch...) }))
	}
	w.epoch++
	c := newCounted(s, n)
	r, err := outbox.NewRelay(outbox.Config{Name: "bench", Log: w.log, Logger: slog.New(slog.DiscardHandler), Sink: c.asSink()})
	must(b, err)
	a := daemon.NewAssignment(daemon.Fence{Unit: daemon.Unit{Daemon: outbox.ID("bench")}, Generation: w.epoch}, 1, "n", nil)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	ended := make(chan error, 1)
	measured := measure(b)
	go func() { ended <- errors.Join(r.Run(ctx, a), r.Close(context.Background())) }()
	if err := c.wait(ended); err != nil {
		b.Fatal(err)
	}
	took := measured()
	a.BeginDrain()
	must(b, <-ended)
	return took
}

// standstill is how long nothing may be delivered before a benchmark fails.
const standstill = time.Minute

// counted is a sink that counts the messages that it has delivered.
type counted struct {
	outbox.Sink
	want  int
	moved chan struct{} // receives a value when a message was delivered that had not been
	all   chan struct{} // closed when all were delivered

	mu   sync.Mutex
	seen map[int64]bool // the delivered messages, by Row.Seq
	last error          // the newest error, nil if the newest call had none
}

func newCounted(s outbox.Sink, want int) *counted {
	return &counted{Sink: s, want: want, moved: make(chan struct{}, 1), all: make(chan struct{}), seen: make(map[int64]bool, want)}
}

// asSink returns the sink as the relay gets it: with a fence, if the receiver has one.
func (c *counted) asSink() outbox.Sink {
	if f, ok := c.Sink.(outbox.Fencer); ok {
		return struct {
			*counted
			outbox.Fencer
		}{c, f}
	}
	return c
}

func (c *counted) Deliver(ctx context.Context, d outbox.Delivery) []error {
	errs := c.Sink.Deliver(ctx, d)
	c.mu.Lock()
	defer c.mu.Unlock()
	before := len(c.seen)
	c.last = nil
	for i, err := range sinktest.Spread(errs, len(d.Rows)) {
		if err != nil {
			c.last = err
			continue
		}
		c.seen[d.Rows[i].Seq] = true
	}
	if len(c.seen) == before {
		return errs
	}
	select {
	case c.moved <- struct{}{}:
	default:
	}
	if before < c.want && len(c.seen) == c.want {
		close(c.all)
	}
	return errs
}

// wait waits until all messages were delivered. It fails if none is delivered for a while, or the relay ends.
func (c *counted) wait(ended <-chan error) error {
	still := time.NewTimer(standstill)
	defer still.Stop()
	for {
		var why string
		select {
		case <-c.all:
			return nil
		case <-c.moved:
			still.Reset(standstill)
			continue
		case <-still.C:
			why = fmt.Sprintf("nothing was delivered for %v", standstill)
		case err := <-ended:
			why = fmt.Sprintf("the relay has ended: %v", err)
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		return fmt.Errorf("%s; %d of %d messages are delivered, and the newest error of the sink is: %w", why, len(c.seen), c.want, c.last)
	}
}

// poll inserts n rows and returns what it costs a plain poller to deliver them, with the headers that emitd sends if
// alike.
func (w *benchWorld) poll(b *testing.B, send func(context.Context, []plainRow) error, n, keys int, alike bool) cost {
	b.Helper()
	_, err := w.pool.Exec(b.Context(), `insert into plain (dedup, key, payload) select gen_random_uuid(), 'key-' || i % $2::int, $3 from generate_series(1, $1::int) i`, n, keys, benchPayload)
	must(b, err)
	measured := measure(b)
	for left := n; left > 0; {
		ctx, cancel := context.WithTimeoutCause(b.Context(), standstill, fmt.Errorf("the poller waits for a page with %d messages to go, for %v", left, standstill))
		err := pgx.BeginFunc(ctx, w.pool, func(tx pgx.Tx) error {
			found, err := tx.Query(ctx, `select id, dedup, key, payload from plain order by id limit 1000 for update skip locked`)
			if err != nil {
				return err
			}
			rows, err := pgx.CollectRows(found, pgx.RowToStructByPos[plainRow])
			if err != nil {
				return err
			}
			for i := range rows {
				rows[i].Alike = alike
			}
			if err := send(ctx, rows); err != nil {
				return err
			}
			ids := make([]int64, len(rows))
			for i, row := range rows {
				ids[i] = row.ID
			}
			left -= len(rows)
			_, err = tx.Exec(ctx, `delete from plain where id = any($1)`, ids)
			return err
		})
		if err != nil {
			b.Fatal(errors.Join(err, context.Cause(ctx)))
		}
		cancel()
	}
	return measured()
}

// newDelay forwards connections to target and delays the bytes of each direction. It returns its address.
func newDelay(b testing.TB, target string, delay time.Duration) string {
	b.Helper()
	if delay == 0 {
		return target
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(b, err)
	b.Cleanup(func() { l.Close() })
	go func() {
		for {
			near, err := l.Accept()
			if err != nil {
				return
			}
			far, err := net.Dial("tcp", target)
			if err != nil {
				near.Close()
				continue
			}
			go delayed(far, near, delay)
			go delayed(near, far, delay)
		}
	}()
	return l.Addr().String()
}

// delayed copies bytes, each of them later by the delay.
func delayed(to, from net.Conn, delay time.Duration) {
	type chunk struct {
		due  time.Time
		data []byte
	}
	chunks := make(chan chunk, 1<<12)
	var writing sync.WaitGroup
	writing.Go(func() {
		defer to.Close()
		for c := range chunks {
			if wait := time.Until(c.due); wait > 0 {
				time.Sleep(wait)
			}
			if _, err := to.Write(c.data); err != nil {
				from.Close()
			}
		}
	})
	buffer := make([]byte, 64<<10)
	for {
		n, err := from.Read(buffer)
		if n > 0 {
			chunks <- chunk{time.Now().Add(delay), append([]byte(nil), buffer[:n]...)}
		}
		if err != nil {
			break
		}
	}
	close(chunks)
	writing.Wait()
	_, _ = io.Copy(io.Discard, from)
}
