package broker

import (
	"strings"
	"testing"
	"time"

	"github.com/emitd/emitd/queue"
	"github.com/emitd/emitd/queue/internal/ledger"
)

// deliver makes a job one that waits and was delivered this often.
func (n *node) deliver(id string, deliveries uint64) {
	n.w.t.Helper()
	err := n.shard(queue.DefaultQueue, 0).inquire(n.w.ctx, func(s *shard) {
		j, _ := s.ledger.Find(id)
		s.commits.applySoft(ledger.Record{Kind: ledger.Claim, Numbers: []uint64{j.Number}, Deliveries: []uint64{deliveries}, Epoch: s.epoch, Until: s.clock.now + 1000})
		s.commits.applySoft(ledger.Record{Kind: ledger.Release, Numbers: []uint64{j.Number}})
	})
	if err != nil {
		n.w.t.Fatal(err)
	}
}

// TestDeliveriesHaveAnEnd: a job whose counter of deliveries has reached its end is dead for good, and whoever names it to
// redrive it is told so. Another delivery could not be stored.
func TestDeliveriesHaveAnEnd(t *testing.T) {
	t.Parallel()
	w, n, r := serving(t, queue.Settings{})
	n.enqueue(queue.Job{ID: "a", Retry: queue.Retry{MaxAttempts: 10_000}}, queue.Job{ID: "b"})
	n.deliver("a", ledger.MaxDeliveries-1)
	wantOutcome(t, n.settle(queue.Release, n.claimOne("a")), queue.Dead, "")
	wantOutcome(t, n.settle(queue.Fail, n.claimOne("b"), func(x *queue.Settlement) { x.Dead = true }), queue.Dead, "")
	if i := n.get("a"); i.Deliveries != ledger.MaxDeliveries || !strings.Contains(i.Cause, "submit it anew") {
		t.Errorf("%+v", i)
	}
	redrive := queue.Command{Act: queue.Redrive, IDs: []string{"a"}}
	met, err := n.Do(w.ctx, queue.DefaultQueue, redrive)
	if wantRefusal(t, err, queue.BadRequest); met != 0 || !strings.Contains(err.Error(), `"a"`) {
		t.Errorf("redriven %d: %v", met, err)
	}
	redrive.IDs = append(redrive.IDs, "b")
	if met := n.command(redrive); met != 1 {
		t.Errorf("redriven %d", met)
	}
	if met := n.command(queue.Command{Act: queue.Redrive}); met != 0 {
		t.Errorf("redriven %d of those that are left", met)
	}
	r.drain(t)
	n.serve(queue.DefaultQueue, 0)
	if a, b := n.get("a"), n.get("b"); a.State != queue.Dead || b.State != queue.Waiting {
		t.Errorf("%+v, %+v", a, b)
	}
}

// TestRedrivenTooOften: a job that an earlier version has redriven at the end of its counter is not delivered any more. It
// becomes a dead letter, and the claim gets the jobs behind it.
func TestRedrivenTooOften(t *testing.T) {
	t.Parallel()
	for name, req := range map[string]queue.ClaimRequest{"soft": {}, "durable": {Tokenless: true}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, n, r := serving(t, queue.Settings{})
			n.enqueue(queue.Job{ID: "a"}, queue.Job{ID: "b"})
			n.deliver("a", ledger.MaxDeliveries+1)
			req.Worker, req.Max = "w", 9
			if got := n.claim(req); len(got) != 1 || got[0].Job.ID != "b" {
				t.Fatalf("claimed %+v", got)
			}
			n.enqueue(queue.Job{ID: "c"})
			n.deliver("c", ledger.MaxDeliveries+1)
			if got := n.claim(req); len(got) != 0 {
				t.Fatalf("claimed %+v", got)
			}
			r.drain(t)
			n.serve(queue.DefaultQueue, 0)
			for _, id := range []string{"a", "c"} {
				if i := n.get(id); i.State != queue.Dead || !strings.Contains(i.Cause, "submit it anew") {
					t.Errorf("%+v", i)
				}
			}
		})
	}
}

// TestUnreadableRecordIsDamage: a shard whose log has a record that cannot be read is reported like one with a damaged
// object.
func TestUnreadableRecordIsDamage(t *testing.T) {
	t.Parallel()
	w, n, r := serving(t, queue.Settings{})
	n.enqueue(queue.Job{ID: "a"})
	err := n.shard(queue.DefaultQueue, 0).inquire(w.ctx, func(s *shard) {
		s.commits.encodeSoft(&ledger.Record{Kind: ledger.Claim, At: s.clock.now, Numbers: []uint64{1}, Deliveries: []uint64{1 << 16}, Epoch: s.epoch})
	})
	if err != nil {
		t.Fatal(err)
	}
	r.drain(t)
	second := w.node("n2")
	second.damagedWait = time.Hour
	refused := second.begin(queue.DefaultQueue, 0)
	refused.ready(t)
	_, err = second.Enqueue(w.ctx, queue.DefaultQueue, jobsWithIDs(1))
	wantRefusal(t, err, queue.Damaged)
	if refused.kill(); refused.err == nil || !strings.Contains(refused.err.Error(), "emitd queue verify") {
		t.Errorf("the run ended with %v", refused.err)
	}
	found, err := second.Registry().Verify(w.ctx, queue.DefaultQueue)
	if err != nil || len(found.Problems) == 0 {
		t.Errorf("%+v, %v", found, err)
	}
}
