package broker

import (
	"testing"
	"time"

	"github.com/emitd/emitd/queue/internal/ledger"
)

// TestRecordDue: a claim whose visibility timeout is over expires at once and counts as an attempt.
// After the last attempt the job dies, and a job that waited too long dies too: both only when the
// record is durable.
func TestRecordDue(t *testing.T) {
	t.Parallel()
	g, log, _ := newCommits()
	g.clock.estimate, g.clock.log = func() time.Time { return g.clock.at }, new(floor)
	durable := func() {
		g.appendBatch(true)
		log.durable = log.NewestSlot()
		g.applyDurable()
	}
	pass := func(d time.Duration) {
		g.clock.local, g.clock.at = g.clock.local.Add(d), g.clock.at.Add(d)
		g.clock.now = g.clock.at.UnixMilli()
		g.advance()
	}
	if _, ok := untilDue(g); ok {
		t.Error("an empty ledger has a deadline")
	}
	tried := newJob("tried")
	tried.policy.Max = 2
	g.recordEnqueue(nil, tried)
	durable()
	n, _ := g.ledger.Best(nil)
	claim := func(delivery uint64) {
		g.applySoft(ledger.Record{
			Kind: ledger.Claim, Numbers: []uint64{n}, Deliveries: []uint64{delivery}, Worker: "w", Epoch: 1, Until: g.clock.now + 1000, Visibility: 1000,
		})
	}
	claim(1)
	if wait, ok := untilDue(g); !ok || wait <= 0 || wait > time.Second {
		t.Errorf("the claim ends in %v, %t", wait, ok)
	}
	if recordDue(g); !g.idle() {
		t.Error("something is due before its time")
	}
	pass(time.Second)
	recordDue(g)
	if j, _ := g.ledger.JobWithoutPayload(n); j.State != ledger.Waiting || j.Attempts != 1 || !g.idle() {
		t.Fatalf("after the first claim: state %v, %d attempts, idle %t", j.State, j.Attempts, g.idle())
	}
	claim(2)
	pass(time.Second)
	recordDue(g)
	if j, _ := g.ledger.JobWithoutPayload(n); j.State != ledger.Active || !j.Held {
		t.Fatalf("before its death is durable: state %v, held %t", j.State, j.Held)
	}
	durable()
	if j, _ := g.ledger.JobWithoutPayload(n); j.State != ledger.Dead {
		t.Errorf("after the last claim: state %v", j.State)
	}
	late := newJob("late")
	late.ttl = 500
	g.recordEnqueue(nil, late)
	durable()
	pass(time.Second)
	recordDue(g)
	if j, ok := g.ledger.Find("late"); !ok || j.State != ledger.Waiting || !j.Held {
		t.Errorf("before its end is durable: state %v, held %t", j.State, j.Held)
	}
	durable()
	if j, _ := g.ledger.Find("late"); j.State != ledger.Dead {
		t.Errorf("after its time to live: state %v", j.State)
	}
}
