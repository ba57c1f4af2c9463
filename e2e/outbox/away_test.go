package outbox

import (
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/emitd/emitd/e2e/drill"
	"github.com/emitd/emitd/outbox"
)

// TestDrillSinkAway takes the receiver away for two minutes, in which 100,000 messages are published. No message
// may be parked or given up for it: all must be delivered afterwards, once and in order, and the first of them soon.
func TestDrillSinkAway(t *testing.T) {
	drill.ParallelUnlessMeasured(t)
	for name, open := range databases {
		t.Run(name, func(t *testing.T) {
			drill.ParallelUnlessMeasured(t)
			sinkAway(t, open(t))
		})
	}
}

func sinkAway(t *testing.T, db *database) {
	const batch = 100
	n, away := 1000, time.Second
	if drill.Full() {
		n, away = 100_000, 2*time.Minute
	}
	h := newHook(t)
	to, door := h.receiver(), newDoor(t, h)
	to.address, to.sink = "", func(string) string { // no proxy in front: it would accept connections
		return fmt.Sprintf(`{kind: webhook, url: "http://%s", parallel: 32}`, door.address)
	}
	c := relays(t, db, to, 2)
	c.relaying()
	w := write(t, db, 0)
	first := message("first")
	w.publish(first)
	until(t, time.Minute, "a message arrives", func() bool { return to.arrived(first.ID) })
	c.drained()

	door.shut()
	tick := time.NewTicker(away / time.Duration(n/batch))
	defer tick.Stop()
	for i := range n / batch {
		<-tick.C
		messages := make([]outbox.Message, batch)
		for j := range messages {
			messages[j] = message(fmt.Sprintf("key-%d", (i*batch+j)%500))
		}
		w.publish(messages...)
		first = messages[0]
	}
	s, ok := db.stats(t.Context())
	if !ok || s.Pending != int64(n) && s.PendingExact || s.ParkedKeys > 0 || s.Dead > 0 || !problem(s) {
		t.Errorf("while the receiver is away: %+v", s)
	}
	door.open()
	what := fmt.Sprintf("%s: receiver away for %v, %d messages waiting", db.name, away, n)
	soon := until(t, time.Minute, "the first message arrives", func() bool { return len(to.arrivals(c)) > 1 })
	drill.Measure(t, what+", return until the first arrives", drill.Bound{Max: 40 * time.Second, Other: "the longest pause between attempts is 30 s"}, []time.Duration{soon})
	began := time.Now()
	c.drained()
	drill.Amount(t, what+", then delivered", float64(n)/time.Since(began).Seconds(), "messages/s", 0)
	w.end()
	w.ledger.check(to.arrivals(c)).report(t, what, never)
}

// problem reports whether a relay has stored that its sink is down.
func problem(s outbox.Stats) bool {
	for _, c := range s.Cursors {
		if c.Problem != "" {
			return true
		}
	}
	return false
}

// door is the listener of a receiver, which can be shut and opened again.
type door struct {
	t       *testing.T
	to      http.Handler
	address string
	server  *http.Server
}

// newDoor opens a door on a port that the system gives to no connection meanwhile.
func newDoor(t *testing.T, to http.Handler) *door {
	t.Helper()
	d := &door{t: t, to: to}
	for range 100 {
		d.address = fmt.Sprintf("127.0.0.1:%d", 10_000+rand.IntN(20_000))
		if l, err := net.Listen("tcp", d.address); err == nil {
			d.serve(l)
			t.Cleanup(d.shut)
			return d
		}
	}
	t.Fatal("no port is free")
	return nil
}

func (d *door) serve(l net.Listener) {
	d.server = &http.Server{Handler: d.to, ReadHeaderTimeout: time.Minute}
	go d.server.Serve(l) //nolint:errcheck // it ends with shut
}

func (d *door) open() {
	d.t.Helper()
	l, err := net.Listen("tcp", d.address)
	must(d.t, err)
	d.serve(l)
}

// shut refuses new connections and cuts the others.
func (d *door) shut() { _ = d.server.Close() }
