package sqlite

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/emitd/emitd/outbox"
)

// TestForgetIsInParts checks that a subscription with much that is parked or dead is deleted in transactions of their own,
// between which others can write, and that one whose deletion ends in the middle is paused and can be deleted again.
func TestForgetIsInParts(t *testing.T) {
	t.Parallel()
	var transactions atomic.Int64 // each reads the clock once
	var end atomic.Pointer[func()]
	w := newWorld(t, Config{Now: func() time.Time {
		if stop := end.Load(); transactions.Add(1) == 3 && stop != nil {
			(*stop)()
		}
		return time.Now()
	}})
	const messages = 5000 // half of them are parked, the others are dead
	var all []outbox.Message
	for i := range messages {
		all = append(all, text(fmt.Sprint("k", i/4), fmt.Sprint(i)))
	}
	w.publish(t, all...)
	for _, name := range []string{"one", "two"} {
		c := w.claim(t, name, 1)
		for seen := 0; seen < messages; {
			page, err := c.Next(t.Context(), outbox.Limit{})
			ok(t, err)
			var outcomes []outbox.Outcome
			for i, r := range page.Rows {
				outcomes = append(outcomes, outbox.Outcome{Row: r, Kind: []outbox.Kind{outbox.Behind, outbox.Dead}[i%2]})
			}
			seen += len(page.Rows)
			ok(t, c.Advance(t.Context(), page.Mark, outcomes))
		}
	}
	transactions.Store(0)
	ok(t, w.Delete(t.Context(), "one"))
	if n := transactions.Load(); n < 6 || n > 12 {
		t.Errorf("%d messages were deleted in %d transactions", messages, n)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	stop := func() { cancel() }
	end.Store(&stop)
	transactions.Store(0)
	if err := w.Delete(ctx, "two"); !errors.Is(err, context.Canceled) {
		t.Errorf("a deletion that ends in the middle: %v", err)
	}
	s, err := w.Stats(t.Context(), "")
	ok(t, err)
	if len(s) != 1 || s[0].Subscription != "two" || !s[0].Paused || s[0].Dead != messages/2 {
		t.Errorf("left are %+v", s)
	}
	var empty int
	ok(t, w.db.QueryRow(`SELECT count(*) FROM emitd_outbox_lane l WHERE NOT EXISTS (SELECT 1 FROM emitd_outbox_parked p
		WHERE p.subscription = l.subscription AND p.shard = l.shard AND p.key = l.key AND p.solo = l.solo)`).Scan(&empty))
	if empty > 0 {
		t.Errorf("%d lanes have no messages", empty)
	}
	if lanes, err := w.claim(t, "two", 1).Due(t.Context(), 10); err != nil || len(lanes) > 0 {
		t.Errorf("%d lanes are due: %v", len(lanes), err)
	}
	ok(t, w.Delete(t.Context(), "two"))
	for _, table := range []string{"subscription", "cursor", "lane", "parked", "dead"} {
		var n int
		ok(t, w.db.QueryRow("SELECT count(*) FROM emitd_outbox_"+table).Scan(&n))
		if n > 0 {
			t.Errorf("%d rows of %s are left", n, table)
		}
	}
}

// TestForgottenHalf checks that a lane whose first messages were deleted is like any other when a subscription whose deletion was
// interrupted is resumed: what was stored of it is about a message that is gone.
func TestForgottenHalf(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Config{})
	w.publish(t, text("a", "1"), text("b", "1"), text("a", "2"), text("b", "2"))
	c := w.claim(t, "s", 1)
	page, err := c.Next(t.Context(), outbox.Limit{})
	ok(t, err)
	ok(t, c.Advance(t.Context(), page.Mark, []outbox.Outcome{
		{Row: page.Rows[0], Kind: outbox.Held, Attempts: 9, Cause: "bad"},
		{Row: page.Rows[1], Kind: outbox.Waiting, Attempts: 9, RetryIn: time.Hour, Cause: "bad"},
		{Row: page.Rows[2], Kind: outbox.Behind},
		{Row: page.Rows[3], Kind: outbox.Behind},
	}))
	ok(t, w.change(t.Context(), "forget half of", "s", func(q *query) error { q.forgetParked("s", 2); return nil }))
	lanes, err := c.Due(t.Context(), 10)
	ok(t, err)
	var due []string
	for _, lane := range lanes {
		due = append(due, fmt.Sprintf("%s%s attempt %d", lane[0].Key, lane[0].Payload, lane[0].Attempt))
	}
	if slices.Sort(due); !slices.Equal(due, []string{"a2 attempt 1", "b2 attempt 1"}) {
		t.Errorf("due are %v", due)
	}
}
