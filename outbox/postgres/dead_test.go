package postgres

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
		w := newWorld(t, Config{DeadRetention: c.keep})
		w.publish(text("a", "a1"), text("b", "b1"), text("c", "c1"))
		cur := w.claim("s", 1)
		p, err := cur.Next(t.Context(), outbox.Limit{})
		ok(t, err)
		ok(t, cur.Advance(t.Context(), p.Mark, []outbox.Outcome{
			{Row: p.Rows[0], Kind: outbox.Dead, Attempts: 1}, {Row: p.Rows[1], Kind: outbox.Dead, Attempts: 1}, {Row: p.Rows[2], Kind: outbox.Held, Attempts: 1},
		}))
		w.exec("update ~outbox_dead set died_at = died_at - interval '61 minutes' where key = 'a'")
		w.exec("update ~outbox_parked set parked_at = parked_at - interval '61 minutes'")
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
