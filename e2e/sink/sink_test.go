// Package sink_test runs the sinks of the outbox against real receivers: an embedded NATS server, a Kafka
// cluster in the process, RabbitMQ as a private node, Postgres, and HTTPS servers. Each runs the suite of
// outbox/sink/sinktest. Features of a single receiver (fences, transactions, returns, alarms) have their
// own tests.
package sink_test

import (
	"context"
	"errors"
	"flag"
	"io"
	"net"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/emitd/emitd/e2e/drill"
	"github.com/emitd/emitd/internal/pgtest"
	"github.com/emitd/emitd/outbox"
	"github.com/emitd/emitd/outbox/sink/sinktest"
)

// stop holds the functions that end the servers of this test binary, called in reverse order.
var stop []func()

func TestMain(m *testing.M) {
	// Most of these tests wait for a silent receiver, not for the processor. -parallel takes precedence.
	if err := flag.Set("test.parallel", "16"); err != nil {
		panic(err)
	}
	code := pgtest.Run(m)
	if err := drill.WriteMeasurements(filepath.Join("..", "..", "docs", "measurements.md"), "sink drills"); err != nil {
		panic(err)
	}
	for i := len(stop) - 1; i >= 0; i-- {
		stop[i]()
	}
	os.Exit(code)
}

// altered changes messages on their way to the sink. So a receiver without faults of its own has a reason
// to fail: an unknown topic, a full queue.
type altered struct {
	outbox.Sink
	mu     sync.Mutex
	change map[uuid.UUID]func(*outbox.Row)
}

func (a *altered) set(ids []uuid.UUID, change func(*outbox.Row)) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.change = map[uuid.UUID]func(*outbox.Row){}
	for _, id := range ids {
		a.change[id] = change
	}
}

// to sends messages to another topic.
func (a *altered) to(topic string, ids []uuid.UUID) {
	a.set(ids, func(r *outbox.Row) { r.Topic = topic })
}

func (a *altered) Deliver(ctx context.Context, d outbox.Delivery) []error {
	a.mu.Lock()
	rows := make([]outbox.Row, len(d.Rows))
	for i, r := range d.Rows {
		if change := a.change[r.ID]; change != nil {
			change(&r)
		}
		rows[i] = r
	}
	a.mu.Unlock()
	d.Rows = rows
	return a.Sink.Deliver(ctx, d)
}

// fencer is a sink that can fence.
type fencer interface {
	outbox.Sink
	outbox.Fencer
	io.Closer
}

// fence tests the fence of one receiver with any number of relays.
type fence struct {
	open     func(t *testing.T) fencer
	received func(t *testing.T) []sinktest.Taken
	topic    string
	// compares says that the receiver compares epochs, so that even a late Fence of the replaced relay is
	// refused.
	compares bool
}

func deliver(t *testing.T, s outbox.Sink, shards string, epoch int64, rows []outbox.Row) []error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), sinktest.Bound)
	defer cancel()
	return sinktest.Spread(s.Deliver(ctx, outbox.Delivery{Subscription: "billing", Range: shards, Epoch: epoch, Rows: rows}), len(rows))
}

func raise(t *testing.T, s outbox.Fencer, shards string, epoch int64) error {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), sinktest.Bound)
	defer cancel()
	return s.Fence(ctx, "billing", shards, epoch)
}

func all(t *testing.T, errs []error, kind error) {
	t.Helper()
	for i, err := range errs {
		if kind == nil && err != nil || kind != nil && !errors.Is(err, kind) {
			t.Fatalf("row %d: %v, want %v", i, err, kind)
		}
	}
}

// run tests a relay that is replaced while it is paused, and a later change of the number of relays.
func (f fence) run(t *testing.T) {
	t.Parallel()
	rows := sinktest.Rows(f.topic, 30, 5)
	old, young, third := f.open(t), f.open(t), f.open(t)

	all(t, []error{raise(t, old, "0-63", 5)}, nil)
	all(t, deliver(t, old, "0-63", 5, rows[:10]), nil)

	all(t, []error{raise(t, young, "0-63", 6)}, nil)
	all(t, deliver(t, old, "0-63", 5, rows[10:20]), outbox.ErrFenced)
	if n := len(f.received(t)); n != 10 {
		t.Fatalf("readers see %d messages after the take-over, want 10: the deposed relay published", n)
	}
	if f.compares {
		all(t, []error{raise(t, old, "0-63", 5)}, outbox.ErrFenced)
	}
	all(t, deliver(t, young, "0-63", 6, rows[10:20]), nil)
	all(t, deliver(t, old, "0-63", 5, rows[20:]), outbox.ErrFenced)

	var mine []outbox.Row // rows that the third relay, one of two now, takes over
	for _, r := range rows[20:] {
		if r.Shard < 32 {
			mine = append(mine, r)
		}
	}
	if len(mine) == 0 {
		t.Fatal("no key of the test falls into the shards 0-31")
	}
	all(t, []error{raise(t, third, "0-31", 7)}, nil)
	all(t, deliver(t, young, "0-63", 6, mine), outbox.ErrFenced)
	all(t, deliver(t, third, "0-31", 7, mine), nil)

	seen := map[string]int{}
	for _, m := range f.received(t) {
		seen[m.ID]++
	}
	for i, r := range append(rows[:20:20], mine...) {
		if seen[r.ID.String()] != 1 {
			t.Errorf("message %d arrived %d times", i, seen[r.ID.String()])
		}
	}
	if want := 20 + len(mine); len(seen) != want {
		t.Errorf("readers see %d messages, want %d", len(seen), want)
	}
}

// wire forwards connections through this process, and can hold their bytes.
type wire struct {
	listener net.Listener
	to, from gate         // of what goes to the target, and of its answers
	sent     atomic.Int64 // bytes to the target that were passed on

	mu    sync.Mutex
	conns []net.Conn
}

// gate lets bytes pass while it is not held.
type gate struct {
	mu   sync.Mutex
	free chan struct{} // nil while bytes pass, else closed when they may
}

func (g *gate) hold(on bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if held := g.free != nil; on && !held {
		g.free = make(chan struct{})
	} else if !on && held {
		close(g.free)
		g.free = nil
	}
}

func (g *gate) pass() {
	g.mu.Lock()
	free := g.free
	g.mu.Unlock()
	if free != nil {
		<-free
	}
}

func newWire(t *testing.T, target string) *wire {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	w := &wire{listener: l}
	t.Cleanup(w.cut)
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
			w.mu.Lock()
			w.conns = append(w.conns, near, far)
			w.mu.Unlock()
			go pump(far, near, &w.to, &w.sent)
			go pump(near, far, &w.from, new(atomic.Int64))
		}
	}()
	return w
}

func (w *wire) addr() string { return w.listener.Addr().String() }

func pump(to, from net.Conn, g *gate, passed *atomic.Int64) {
	defer to.Close()
	defer from.Close()
	buffer := make([]byte, 32<<10)
	for {
		n, err := from.Read(buffer)
		g.pass()
		if _, werr := to.Write(buffer[:n]); err != nil || werr != nil {
			return
		}
		passed.Add(int64(n))
	}
}

// hold holds bytes back, or lets them pass.
func (w *wire) hold(on bool) {
	w.to.hold(on)
	w.from.hold(on)
}

// drop closes the connections; new ones are accepted.
func (w *wire) drop() {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, c := range w.conns {
		c.Close()
	}
	w.conns = nil
}

// cut closes the listener and all connections.
func (w *wire) cut() {
	w.listener.Close()
	w.hold(false)
	w.drop()
}

// eventually waits for a condition.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	deadline := time.After(sinktest.Bound)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("%s: not within %v", what, sinktest.Bound)
		}
	}
}
