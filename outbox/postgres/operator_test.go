package postgres

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/emitd/emitd/outbox"
)

// TestForgetIsInParts checks that the parts of a deletion begin small, and that nothing is left.
func TestForgetIsInParts(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Config{})
	c := w.claim("s", 1)
	const messages = 5000 // half of them are parked, the others are dead
	var all []outbox.Message
	for i := range messages {
		all = append(all, text(fmt.Sprint("k", i/4), fmt.Sprint(i)))
	}
	w.publish(all...)
	for seen := 0; seen < messages; {
		page, err := c.Next(t.Context(), outbox.Limit{})
		ok(t, err)
		var outcomes []outbox.Outcome
		for i, r := range page.Rows {
			outcomes = append(outcomes, outbox.Outcome{Row: r, Kind: []outbox.Kind{outbox.Behind, outbox.Dead}[i%2]})
		}
		if seen += len(page.Rows); page.Mark != nil {
			ok(t, c.Advance(t.Context(), page.Mark, outcomes))
		}
	}
	w.exec(`create function ~outbox_few() returns trigger language plpgsql as $$ begin
		if (select count(*) from gone) > 2000 then raise exception 'too many rows at once'; end if;
		return null;
	end $$`)
	for _, table := range []string{"parked", "dead"} {
		w.exec(`create trigger few after delete on ~outbox_` + table + ` referencing old table as gone for each statement execute function ~outbox_few()`)
	}
	const left = `select (select count(*) from ~outbox_parked) + (select count(*) from ~outbox_dead) + (select count(*) from ~outbox_lane) + (select count(*) from ~outbox_cursor)`
	if n := value[int](w, left); n < messages {
		t.Fatalf("%d rows at first", n)
	}
	ok(t, w.Delete(t.Context(), "s"))
	if n := value[int](w, left); n > 0 {
		t.Errorf("%d rows are left", n)
	}
}

// TestForgottenHalf checks that a lane whose first messages were deleted is like any other when a subscription whose deletion was
// interrupted is resumed: what was stored of it is about a message that is gone.
func TestForgottenHalf(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Config{})
	w.publish(text("a", "1"), text("b", "1"), text("a", "2"), text("b", "2"))
	c := w.claim("s", 1)
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
