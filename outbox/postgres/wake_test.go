package postgres

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
)

// TestNotifyByHand checks that a program in any language wakes relays with the statement that the
// documentation gives it.
func TestNotifyByHand(t *testing.T) {
	t.Parallel()
	if name := (names{"emitd", ""}).channel(); name != "emitd.emitd.outbox" {
		t.Errorf("the channel is %s", name)
	}
	w := newWorld(t, Config{})
	woken := w.WakeUps(t.Context())
	tick := time.NewTicker(10 * time.Millisecond) // the log begins to listen at a time of its own
	defer tick.Stop()
	bound := time.After(time.Minute)
	for wakeUps := 0; wakeUps < 3; { // the first may be that of the connection
		_, err := w.app.Exec(t.Context(), "notify "+pgx.Identifier{w.names.channel()}.Sanitize())
		ok(t, err)
		select {
		case <-woken:
			wakeUps++
		case <-tick.C:
		case <-bound:
			t.Fatal("no notification came")
		}
	}
}
