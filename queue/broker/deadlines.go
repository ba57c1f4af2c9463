package broker

import (
	"fmt"
	"time"

	"github.com/emitd/emitd/queue/internal/ledger"
)

// maxDue is how many jobs of each kind recordDue handles in one round.
const maxDue = 1000

// recordDue makes the records that time causes: a waiting job whose time to live is over dies, a claim
// whose visibility timeout is over expires. At most maxDue of each are handled in one round.
func recordDue(g *commits) {
	for _, n := range g.ledger.ExpiredTTLs(g.clock.now, maxDue) {
		g.record(nil, &ledger.Record{Kind: ledger.DeadLetter, Numbers: []uint64{n}, Cause: "it waited longer than its time to live", TTLExpired: true})
	}
	for _, n := range g.ledger.ExpiredClaims(g.clock.now, maxDue) {
		j, _ := g.ledger.JobWithoutPayload(n)
		if j.Exhausted(true) {
			r := ledger.Record{Kind: ledger.DeadLetter, Numbers: []uint64{n}, Cause: exhausted(&j, "its last claim expired without a report from the worker "+j.Worker)}
			g.record(nil, &r)
			continue
		}
		r := ledger.Record{
			Kind: ledger.Expire, Numbers: []uint64{n}, Deliveries: []uint64{uint64(j.Deliveries)}, Epoch: j.Epoch,
			Cause: "the claim of the worker " + j.Worker + " expired without a report",
		}
		if j.Policy.Back {
			r.Places = []uint64{g.ledger.NextNumber()}
		}
		g.applySoft(r)
	}
}

// untilDue returns how long it is until recordDue has something to do; ok is false if nothing is
// to come.
func untilDue(g *commits) (wait time.Duration, ok bool) {
	at, ok := g.ledger.NextDeadline()
	if !ok {
		return 0, false
	}
	_, now := g.clock.time()
	return max(0, millisecond(at-now.UnixMilli())), true
}

// exhausted returns the cause of a job's death after its last attempt or delivery.
func exhausted(j *ledger.Job, why string) string {
	if j.DeliveriesEnded() {
		why += "; it was delivered as often as a job can be: submit it anew with another id"
	}
	return fmt.Sprintf("given up after %d of %d attempts and %d deliveries: %s", j.Attempts, j.Policy.Max, j.Deliveries, why)
}
