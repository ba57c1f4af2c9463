package broker

import (
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/emitd/emitd/internal/storage/mem"
	"github.com/emitd/emitd/queue"
)

// TestTrustEndsMeanwhile: an answer that was decided while the assignment held and waits for the
// store is not given after the assignment has expired, if it refuses a part or wrote nothing.
func TestTrustEndsMeanwhile(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w, _, a, _ := slow(t, queue.Settings{})
		r := a.serve(queue.DefaultQueue, 0)
		a.enqueue(jobsWithIDs(2)...)
		claims := a.claim(queue.ClaimRequest{Max: 2})
		wantOutcome(t, a.settle(queue.Complete, claims[0]), queue.Completed, "")
		settle := func(what ...queue.Settlement) <-chan error {
			failed := make(chan error, 1)
			go func() {
				out, err := a.Settle(w.ctx, queue.DefaultQueue, what)
				if err == nil && out[0].Err != nil {
					err = out[0].Err
				}
				failed <- err
			}()
			synctest.Wait()
			return failed
		}
		done := queue.Settlement{Verb: queue.Complete, ID: "j1", Token: claims[1].Token}
		both := settle(queue.Settlement{Verb: queue.Fail, ID: "j0", Token: claims[0].Token}, done)
		again := settle(queue.Settlement{Verb: queue.Complete, ID: "j0", Token: claims[0].Token})
		r.trust.Store(0) // the writes are in flight
		wantRefusal(t, <-both, queue.UnknownOutcome)
		wantRefusal(t, <-again, queue.QueueNotOwner)
		r.kill()
	})
}

// TestDeadWhenDurable: a job is not dead before the record of its death is durable. A broker that
// takes over before that finds it as it was.
func TestDeadWhenDurable(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w, down := failing(t, mem.Config{Latency: mem.Constant(latency)}, isCreate)
		w.declare(queue.Settings{})
		n := w.node("n1")
		r := n.serve(queue.DefaultQueue, 0)
		n.enqueue(queue.Job{ID: "spent", Retry: queue.Retry{MaxAttempts: 1}}, queue.Job{ID: "late", TTL: 10 * time.Second})
		n.claimOne("spent")
		time.Sleep(5 * time.Second)
		down.Store(true)
		time.Sleep(time.Minute)
		alive := func() {
			t.Helper()
			if i, j, st := n.get("spent"), n.get("late"), n.stats(); i.State != queue.Active || j.State != queue.Waiting || st.Dead+st.Died+st.Expired != 0 {
				t.Fatalf("%s and %s, %+v", i.State, j.State, st)
			}
			if got := n.claim(queue.ClaimRequest{}); len(got) != 0 {
				t.Fatalf("handed out: %+v", got)
			}
		}
		alive()
		r.kill()
		down.Store(false)
		n.serve(queue.DefaultQueue, 0)
		time.Sleep(time.Second)
		if i := n.get("spent"); i.State != queue.Active {
			t.Fatalf("after a takeover: %+v", i)
		}
		time.Sleep(time.Minute)
		if i, j := n.get("spent"), n.get("late"); i.State != queue.Dead || j.State != queue.Dead || i.Cause == "" || j.Cause == "" {
			t.Fatalf("%+v, %+v", i, j)
		}
	})
}

// TestTimeGoesOn: a successor whose estimate is behind does not stop queue time, and does not keep
// it ahead for ever.
func TestTimeGoesOn(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w, _, a, b := slow(t, queue.Settings{})
		w.clock = func() time.Time { return time.Now().Add(time.Hour) }
		r := a.serve(queue.DefaultQueue, 0)
		a.enqueue(queue.Job{ID: "before", Delay: time.Minute})
		r.kill()
		w.clock = time.Now
		b.serve(queue.DefaultQueue, 0)
		begun := time.Now()
		b.enqueue(queue.Job{ID: "after", Delay: time.Minute})
		for _, id := range []string{"before", "after"} {
			c := b.claim(queue.ClaimRequest{Wait: queue.MaxWait})
			for len(c) == 0 && time.Since(begun) < 3*time.Minute {
				c = b.claim(queue.ClaimRequest{Wait: queue.MaxWait})
			}
			if took := time.Since(begun); len(c) != 1 || c[0].Job.ID != id || took < time.Minute || took > 65*time.Second {
				t.Fatalf("%+v after %v", c, took)
			}
			wantOutcome(t, b.settle(queue.Complete, c[0]), queue.Completed, "")
		}
		time.Sleep(16 * time.Hour)
		b.enqueue(queue.Job{ID: "new"})
		if ahead := time.Until(b.get("new").CreatedAt); ahead > time.Second {
			t.Fatalf("queue time is ahead by %v still", ahead)
		}
	})
}

// TestSettlingOnOneOfTwoShards: what a shard of this node has settled is answered, although another shard does not answer.
func TestSettlingOnOneOfTwoShards(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	w.declare(queue.Settings{Shards: 2})
	n := w.node("n1")
	n.serve(queue.DefaultQueue, 0)
	var ids [2]string
	for i := 0; ids[0] == "" || ids[1] == ""; i++ {
		id := fmt.Sprint("j", i)
		ids[shardOf(id, 2)] = id
	}
	n.enqueue(queue.Job{ID: ids[0]})
	c := n.claimOne(ids[0])
	elsewhere := queue.Settlement{Verb: queue.Complete, ID: ids[1], Worker: "w"}
	out, err := n.Settle(w.ctx, queue.DefaultQueue, []queue.Settlement{elsewhere, {Verb: queue.Complete, ID: ids[0], Token: c.Token}})
	if err != nil {
		t.Fatal(err)
	}
	wantOutcome(t, out[0], "", queue.QueueNotOwner)
	wantOutcome(t, out[1], queue.Completed, "")
	if out[0].ID != ids[1] {
		t.Errorf("the outcome of %q", out[0].ID)
	}
	_, err = n.Settle(w.ctx, queue.DefaultQueue, []queue.Settlement{elsewhere, elsewhere})
	wantRefusal(t, err, queue.QueueNotOwner)
}
