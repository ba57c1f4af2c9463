package sqlite

import (
	"testing"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/outbox"
)

// TestDeadRetention checks that the sweeper deletes dead letters that are older than DeadRetention, and no
// others, and nothing without a limit.
func TestDeadRetention(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		keep time.Duration
		left int
	}{{time.Hour, 2}, {-1, 3}, {0, 3}} {
		clock := newClock()
		w := newWorld(t, Config{Now: clock.read, DeadRetention: c.keep})
		cur := w.claim(t, "s", 1)
		die := func(kinds ...outbox.Kind) {
			t.Helper()
			for i := range kinds {
				w.publish(t, text(string(rune('a'+i)), "x"))
			}
			p, err := cur.Next(t.Context(), outbox.Limit{})
			ok(t, err)
			var outcomes []outbox.Outcome
			for i, kind := range kinds {
				outcomes = append(outcomes, outbox.Outcome{Row: p.Rows[i], Kind: kind, Attempts: 1})
			}
			ok(t, cur.Advance(t.Context(), p.Mark, outcomes))
		}
		die(outbox.Dead, outbox.Held)
		clock.pass(time.Hour)
		die(outbox.Dead)
		clock.pass(time.Second)
		for _, task := range w.Tasks()[1:] {
			_, err := task.Step(t.Context(), daemon.Fence{}, 10)
			ok(t, err)
		}
		all, err := w.List(t.Context(), outbox.Filter{})
		ok(t, err)
		if len(all) != c.left {
			t.Errorf("kept for %v: %d are left, want %d", c.keep, len(all), c.left)
		}
	}
}
