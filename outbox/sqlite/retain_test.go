package sqlite

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/outbox"
)

// clock is a clock that tests set.
type clock struct{ now time.Time }

func newClock() *clock { return &clock{time.Date(2030, 1, 1, 0, 0, 0, 0, time.UTC)} }

func (c *clock) pass(d time.Duration) { c.now = c.now.Add(d) }
func (c *clock) read() time.Time      { return c.now }

// many publishes n messages.
func (w *world) many(t testing.TB, n int) {
	t.Helper()
	all := make([]outbox.Message, n)
	for i := range all {
		all[i] = text(fmt.Sprint("k", i%50), fmt.Sprint(i))
	}
	w.publish(t, all...)
}

// left returns the number of messages in the log.
func (w *world) left(t testing.TB) (n int) {
	t.Helper()
	ok(t, w.db.QueryRow("SELECT count(*) FROM emitd_outbox").Scan(&n))
	return n
}

func (w *world) sweepAll(t testing.TB) (n int) {
	t.Helper()
	for {
		m, err := w.Sweep(context.Background(), 500)
		ok(t, err)
		if n += m; m < 500 {
			return n
		}
	}
}

// TestSweep checks that messages which every cursor has passed are removed when they are old enough, in
// bounded transactions, and that ids continue.
func TestSweep(t *testing.T) {
	t.Parallel()
	c := newClock()
	w := newWorld(t, Config{Now: c.read, Retention: time.Hour})
	a, b := w.claim(t, "a", 1), w.claim(t, "b", 1)
	w.many(t, 1200)
	drain(t, a)
	c.pass(2 * time.Hour)
	if n := w.sweepAll(t); n != 0 {
		t.Errorf("%d messages went that b has not read", n)
	}
	p, err := b.Next(t.Context(), outbox.Limit{Rows: 700})
	ok(t, err)
	if n := w.sweepAll(t); n != 0 {
		t.Errorf("%d messages went that b has read but not confirmed", n)
	}
	ok(t, b.Advance(t.Context(), p.Mark, nil))
	if n := w.sweepAll(t); n != 700 || w.left(t) != 500 {
		t.Errorf("%d messages went, %d are left", n, w.left(t))
	}
	drain(t, b)
	w.many(t, 10) // recent
	drain(t, a)
	drain(t, b)
	if n := w.sweepAll(t); n != 500 || w.left(t) != 10 {
		t.Errorf("%d messages went, %d are left", n, w.left(t))
	}
	c.pass(2 * time.Hour)
	if n := w.sweepAll(t); n != 10 || w.left(t) != 0 {
		t.Errorf("%d messages went, %d are left", n, w.left(t))
	}
	w.publish(t, text("k", "next"))
	if got := drain(t, a); len(got) != 1 {
		t.Errorf("after the log was empty, %d messages came", len(got))
	}
	if first := w.claim(t, "new", 1); len(drain(t, first)) != 1 {
		t.Error("a new subscription does not begin with the oldest message")
	}
}

// TestIdleRangeIsNoBound checks that a range without messages does not hold back the removal of other
// messages for ever.
func TestIdleRangeIsNoBound(t *testing.T) {
	t.Parallel()
	c := newClock()
	w := newWorld(t, Config{Now: c.read, Retention: -1})
	var units []outbox.Cursor
	for i := range 2 {
		u, err := w.Claim(t.Context(), outbox.ClaimRequest{Subscription: "s", Index: i, Instances: 2, Epoch: 1})
		ok(t, err)
		units = append(units, u)
	}
	busy := units[outbox.ShardOf("busy")/32]
	for range 3 {
		w.publish(t, text("busy", "x"), text("busy", "y"))
		c.pass(2 * time.Second)
		for _, u := range units {
			drain(t, u)
		}
	}
	_ = busy
	if n := w.sweepAll(t); n != 6 {
		t.Errorf("%d of 6 messages went", n)
	}
}

// TestSweepLeavesNoHoles checks that only a prefix of the log is removed, even if later messages have
// older times after the clock was set back.
func TestSweepLeavesNoHoles(t *testing.T) {
	t.Parallel()
	c := newClock()
	w := newWorld(t, Config{Now: c.read, Retention: time.Hour})
	w.many(t, 5)
	c.pass(-10 * time.Hour)
	w.many(t, 5)
	c.pass(10*time.Hour + time.Minute)
	if n := w.sweepAll(t); n != 0 {
		t.Errorf("%d messages went from the middle", n)
	}
	c.pass(time.Hour)
	if n := w.sweepAll(t); n != 10 {
		t.Errorf("%d of 10 messages went", n)
	}
}

// TestLanesOutliveTheLog checks that lanes and dead letters outlive the log's messages.
func TestLanesOutliveTheLog(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Config{Retention: -1})
	w.publish(t, text("a", "a1"), text("b", "b1"))
	cur := w.claim(t, "s", 1)
	p, err := cur.Next(t.Context(), outbox.Limit{})
	ok(t, err)
	ok(t, cur.Advance(t.Context(), p.Mark, []outbox.Outcome{
		{Row: p.Rows[0], Kind: outbox.Held, Attempts: 1}, {Row: p.Rows[1], Kind: outbox.Dead, Attempts: 1},
	}))
	if n := w.sweepAll(t); n != 2 {
		t.Fatalf("%d messages went", n)
	}
	n, err := w.Retry(t.Context(), "s")
	ok(t, err)
	lanes, err := cur.Due(t.Context(), 10)
	ok(t, err)
	if n != 2 || len(lanes) != 2 {
		t.Errorf("%d retried, %d due", n, len(lanes))
	}
}

// TestReplayOfRemovedMessages checks that a range of which the log has nothing any more is refused, and that the rest
// of one that is partly gone is delivered.
func TestReplayOfRemovedMessages(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Config{Retention: -1})
	cur := w.claim(t, "s", 1)
	w.many(t, 5)
	drain(t, cur)
	if n := w.sweepAll(t); n != 5 {
		t.Fatalf("%d messages went", n)
	}
	if _, _, err := w.Replay(t.Context(), outbox.ReplayRequest{Subscription: "s", UpTo: 5}); !errors.Is(err, outbox.ErrNotFound) {
		t.Errorf("a range of an empty log: %v", err)
	}
	w.many(t, 3)
	drain(t, cur)
	_, _, err := w.Replay(t.Context(), outbox.ReplayRequest{Subscription: "s", UpTo: 5})
	if !errors.Is(err, outbox.ErrNotFound) || !strings.Contains(err.Error(), "the log begins with message 6 ") {
		t.Errorf("a range that is gone: %v", err)
	}
	_, counts, err := w.Replay(t.Context(), outbox.ReplayRequest{Subscription: "s", After: 2, UpTo: 7})
	ok(t, err)
	if len(counts) != 1 || counts[outbox.Delivered] != 2 {
		t.Errorf("of a range that is partly gone come %v", counts)
	}
}

// TestMaxRetained checks that a log that is too large skips undelivered messages of a lagging
// subscription only if OnLag is forget, and logs it in any case. The subscription remains.
func TestMaxRetained(t *testing.T) {
	t.Parallel()
	for _, policy := range []string{LagKeep, LagForget} {
		t.Run(policy, func(t *testing.T) {
			t.Parallel()
			var reported bytes.Buffer
			c := newClock()
			w := newWorld(t, Config{Now: c.read, Retention: time.Hour, MaxRetained: 10_000, OnLag: policy, Logger: slog.New(slog.NewTextHandler(&reported, nil))})
			slow, fast := w.claim(t, "slow", 1), w.claim(t, "fast", 1)
			w.publish(t, text("dead", "dead"))
			p, err := slow.Next(t.Context(), outbox.Limit{})
			ok(t, err)
			ok(t, slow.Advance(t.Context(), p.Mark, []outbox.Outcome{{Row: p.Rows[0], Kind: outbox.Dead, Attempts: 1}}))
			ok(t, w.Pause(t.Context(), "slow", true))
			w.many(t, 1000)
			drain(t, fast)
			w.sweepAll(t)
			if reported.Len() > 0 {
				t.Errorf("within the retention: %s", reported.String())
			}
			c.pass(2 * time.Hour)
			w.sweepAll(t)
			all, err := w.Stats(t.Context(), "slow")
			ok(t, err)
			s := all[0]
			if !strings.Contains(reported.String(), "slow messages=") || strings.Contains(reported.String(), "fast") || !s.Paused || s.Dead != 1 {
				t.Errorf("%+v, told: %s", s, reported.String())
			}
			if policy == LagKeep && (s.Pending != 1000 || w.left(t) != 1000) { // the dead one was removed
				t.Errorf("%d messages left, %d pending", w.left(t), s.Pending)
			}
			if policy == LagForget && (s.Retained > 10_000 || s.Retained < 9_000 || int(s.Pending) != w.left(t)) {
				t.Errorf("%d messages left of %d bytes, %d pending", w.left(t), s.Retained, s.Pending)
			}
			ok(t, w.Pause(t.Context(), "slow", false))
			if got := drain(t, w.claim(t, "slow", 2)); len(got) != int(s.Pending) || got[len(got)-1] != "999" {
				t.Errorf("then came %d", len(got))
			}
		})
	}
}

// TestForgetWithLivingRelay checks that a log with a bound is swept despite a running relay whose sink is
// down or that is paused.
func TestForgetWithLivingRelay(t *testing.T) {
	t.Parallel()
	for _, paused := range []bool{false, true} {
		t.Run(fmt.Sprint("paused ", paused), func(t *testing.T) {
			t.Parallel()
			c := newClock()
			w := newWorld(t, Config{Now: c.read, Retention: time.Hour, MaxRetained: 10_000, OnLag: LagForget, Logger: slog.New(slog.DiscardHandler)})
			w.claim(t, "s", 1).Close()
			ok(t, w.Pause(t.Context(), "s", paused))
			w.many(t, 1000)
			c.pass(2 * time.Hour)
			var up atomic.Bool
			came := make(chan string, 2000)
			called := make(chan struct{}, 1)
			w.relay(t, outbox.Config{Sink: outbox.SinkFunc(func(_ context.Context, d outbox.Delivery) []error {
				select {
				case called <- struct{}{}:
				default:
				}
				if !up.Load() {
					return []error{fmt.Errorf("gone: %w", outbox.ErrSinkDown)}
				}
				for _, r := range d.Rows {
					came <- string(r.Payload)
				}
				return nil
			})})
			if !paused {
				<-called
			}
			for range 3 {
				w.sweepAll(t)
			}
			all, err := w.Stats(t.Context(), "s")
			ok(t, err)
			if s := all[0]; s.Retained > 10_000 || s.Paused != paused || int(s.Pending) != w.left(t) {
				t.Errorf("%d messages left: %+v", w.left(t), s)
			}
			up.Store(true)
			ok(t, w.Pause(t.Context(), "s", false))
			late := time.After(20 * time.Second)
			for text := ""; text != "999"; {
				select {
				case text = <-came:
				case <-late:
					t.Fatal("the rest does not come")
				}
			}
		})
	}
}

// TestTasks checks that the sweeper's task does the same as Sweep.
func TestTasks(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Config{Retention: -1})
	w.many(t, 30)
	task := w.Tasks()[0]
	n, err := task.Step(t.Context(), daemon.Fence{}, 20)
	ok(t, err)
	m, err := task.Step(t.Context(), daemon.Fence{}, 20)
	ok(t, err)
	if n != 20 || m != 10 || task.Name == "" || task.Every <= 0 {
		t.Errorf("%d and %d messages went by %+v", n, m, task)
	}
}
