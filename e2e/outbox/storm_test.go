package outbox

import (
	"fmt"
	"testing"
	"time"

	"github.com/emitd/emitd/e2e/drill"
	"github.com/emitd/emitd/outbox"
)

// TestDrillStorm kills relays with kill -9, and stops one cleanly, while 32 writers publish: with
// savepoints, rollbacks, commits in any order, and on Postgres another transaction that stays open for 4
// s, for which no relay may wait.
func TestDrillStorm(t *testing.T) {
	drill.ParallelUnlessMeasured(t)
	for _, s := range []struct{ database, receiver string }{
		{"sqlite", "webhook"},
		{"sqlite", "nats"},
		{"sqlite", "queue"},
		{"postgres", "webhook"},
		{"postgres", "postgres"},
		{"postgres", "kafka"},
	} {
		t.Run(s.database+" to "+s.receiver, func(t *testing.T) {
			drill.ParallelUnlessMeasured(t)
			storm(t, databases[s.database](t), receivers[s.receiver](t), s.receiver)
		})
	}
}

func storm(t *testing.T, db *database, to receiver, name string) {
	c := relays(t, db, to, 2)
	c.relaying()
	w := write(t, db, 32)
	kills := 1
	if drill.Full() {
		kills = 10
	}
	for i := range kills {
		w.more(500)
		victim := c.relaying()[i%2]
		victim.node.Kill()
		c.join()
		c.moved(victim)
	}
	if db.openTransaction != nil {
		c.holdTransaction(w, to)
	}
	w.more(500)
	leaver := c.relaying()[kills%2]
	leaver.node.Stop()
	c.join()
	c.moved(leaver)
	w.more(500)
	w.end()
	c.drained()
	w.ledger.check(to.arrivals(c)).report(t, fmt.Sprintf("%s to %s, relays killed %d times", db.name, name, kills), to.again)
}

// holdTransaction holds a transaction open for 4 s and until three messages of others have been delivered. The
// transaction publishes a message at its beginning. If the relays waited for it, none of the three would
// be delivered.
func (c *cluster) holdTransaction(w *writers, to receiver) {
	c.t.Helper()
	done, enough := make(chan error, 1), make(chan struct{})
	m := message("key-of-a-stranger")
	go func() {
		done <- c.db.openTransaction(c.t.Context(), m, enough, func() { w.ledger.note([]outbox.Message{m}, nil) })
	}()
	if to.arrived == nil { // the final check shows that the message is not lost
		close(enough)
		if err := <-done; err != nil {
			c.t.Error(err)
		}
		return
	}
	var took []time.Duration
	for {
		probe := message("key-of-a-passer-by")
		began := time.Now()
		w.publish(probe)
		until(c.t, time.Minute, "a message arrives", func() bool { return to.arrived(probe.ID) })
		select {
		case err := <-done:
			if err != nil {
				c.t.Error(err)
			}
			drill.Measure(c.t, c.db.name+": commit until arrival, 32 writers beside, a stranger's transaction open for 4 s", drill.Bound{Other: "nobody waits for it"}, took)
			return
		default:
			if took = append(took, time.Since(began)); len(took) == 3 { // they arrived while the transaction was open
				close(enough)
			}
		}
	}
}
