package sqlite

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/emitd/emitd/outbox"
)

// crowd publishes undeliverable messages: ofOne of one key, and one of each of keys other keys.
func (w *world) crowd(t testing.TB, ofOne, keys int) {
	t.Helper()
	var all []outbox.Message
	for i := range ofOne {
		all = append(all, text("bad", fmt.Sprint(i)))
	}
	for i := range keys {
		all = append(all, text(fmt.Sprint("bad-", i), "0"))
	}
	for part := range slices.Chunk(all, 2000) {
		w.publish(t, part...)
	}
}

// arrivals is a sink that refuses the crowd and records when the other messages came.
type arrivals struct {
	mu   sync.Mutex
	at   map[string]time.Time
	came chan string
}

func (a *arrivals) Deliver(_ context.Context, d outbox.Delivery) []error {
	a.mu.Lock()
	defer a.mu.Unlock()
	errs := make([]error, len(d.Rows))
	stuck := map[string]bool{}
	for i, r := range d.Rows {
		switch {
		case stuck[r.Key]:
			errs[i] = outbox.ErrSkipped
		case strings.HasPrefix(r.Key, "bad"):
			errs[i], stuck[r.Key] = errors.New("not this one"), true
		default:
			a.at[string(r.Payload)] = time.Now()
			a.came <- string(r.Payload)
		}
	}
	return errs
}

// others publishes messages of other keys, one after the other, and returns how long each took.
func (w *world) others(t testing.TB, a *arrivals, n int) (took []time.Duration) {
	t.Helper()
	for i := range n {
		name := fmt.Sprint("other ", i)
		w.publish(t, text(fmt.Sprint("k", i%20), name))
		began := time.Now()
		select {
		case got := <-a.came:
			if got != name {
				t.Fatalf("%s came, want %s", got, name)
			}
		case <-time.After(30 * time.Second):
			t.Fatalf("%s did not come", name)
		}
		a.mu.Lock()
		took = append(took, a.at[name].Sub(began))
		a.mu.Unlock()
	}
	return took
}

// TestHeadOfLine checks that ten thousand undeliverable messages of one key, and of a thousand other
// keys, at the head of the log hold back no other key. All of them must be kept, in order.
func TestHeadOfLine(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Config{QueryTimeout: time.Minute}) // all are listed at once
	w.crowd(t, 10_000, 1000)
	a := &arrivals{at: map[string]time.Time{}, came: make(chan string, 1000)}
	stop := w.relay(t, outbox.Config{Sink: a, Policy: outbox.Hold, Retry: outbox.Retry{Backoff: 100 * time.Millisecond, MaxBackoff: time.Second, MaxAttempts: -1}})
	w.others(t, a, 100)
	eventually(t, "the crowd has passed", func() bool {
		s, err := w.Stats(t.Context(), "s")
		ok(t, err)
		return s[0].ParkedKeys == 1001
	})
	stop()
	all, err := w.List(t.Context(), outbox.Filter{Subscription: "s", Limit: 20_000})
	ok(t, err)
	if len(all) != 11_000 {
		t.Errorf("%d messages are kept, want 11,000", len(all))
	}
	n := 0
	for _, e := range all {
		if e.Key == "bad" {
			if string(e.Payload) != fmt.Sprint(n) {
				t.Fatalf("message %s of the key is kept at place %d", e.Payload, n)
			}
			n++
		}
	}
}

// BenchmarkHeadOfLine measures the p99 of other keys, from the commit to the sink, beside a crowd that is
// tried again and again, and without one: five times each, alternating, the median of each.
func BenchmarkHeadOfLine(b *testing.B) {
	for b.Loop() {
		var with, without []float64
		for range 5 {
			without = append(without, p99(b, 0, 0))
			with = append(with, p99(b, 10_000, 1000))
		}
		slices.Sort(with)
		slices.Sort(without)
		b.ReportMetric(without[2], "p99-ms")
		b.ReportMetric(with[2], "p99-ms-beside")
	}
}

func p99(b *testing.B, ofOne, keys int) float64 {
	b.Helper()
	w := newWorld(b, Config{})
	w.crowd(b, ofOne, keys)
	a := &arrivals{at: map[string]time.Time{}, came: make(chan string, 1000)}
	stop := w.relay(b, outbox.Config{Sink: a})
	defer stop()
	eventually(b, "the crowd has passed", func() bool {
		s, err := w.Stats(b.Context(), "s")
		ok(b, err)
		return len(s) > 0 && s[0].ParkedKeys >= int64(keys)
	})
	took := w.others(b, a, 1000)
	slices.Sort(took)
	return float64(took[len(took)*99/100].Microseconds()) / 1000
}
