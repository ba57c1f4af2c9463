package queue

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/emitd/emitd/storage/blob/mem"
)

// TestTrustEndsMeanwhile: an answer that was decided while the assignment held and waits for the
// store is not given after the assignment has expired, if it refuses a part or wrote nothing.
func TestTrustEndsMeanwhile(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w, _, a, _ := slow(t, Settings{})
		r := a.serve(DefaultQueue, 0)
		a.enqueue(ids(2)...)
		claims := a.claim(ClaimRequest{Max: 2})
		want(t, a.say(Complete, claims[0]), Completed, "")
		settle := func(what ...Settlement) <-chan error {
			failed := make(chan error, 1)
			go func() {
				out, err := a.Settle(w.ctx, DefaultQueue, what)
				if err == nil && out[0].Err != nil {
					err = out[0].Err
				}
				failed <- err
			}()
			synctest.Wait()
			return failed
		}
		done := Settlement{Verb: Complete, ID: "j1", Token: claims[1].Token}
		both := settle(Settlement{Verb: Fail, ID: "j0", Token: claims[0].Token}, done)
		again := settle(Settlement{Verb: Complete, ID: "j0", Token: claims[0].Token})
		r.trust.Store(0) // the writes are in flight
		refusedAs(t, <-both, UnknownOutcome)
		refusedAs(t, <-again, QueueNotOwner)
		r.kill()
	})
}

// TestDeadWhenDurable: a job is not dead before the record of its death is durable. A broker that
// takes over before that finds it as it was.
func TestDeadWhenDurable(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var down atomic.Bool
		w := newWorld(t, mem.New(mem.Config{Latency: mem.Constant(latency), Faults: func(c mem.Call) mem.Fault {
			if down.Load() && c.Op == mem.Create {
				return mem.Fault{Kind: mem.Unavailable}
			}
			return mem.Fault{}
		}}))
		w.declare(Settings{})
		n := w.node("n1")
		r := n.serve(DefaultQueue, 0)
		n.enqueue(Job{ID: "spent", Retry: Retry{MaxAttempts: 1}}, Job{ID: "late", TTL: 10 * time.Second})
		n.one("spent")
		time.Sleep(5 * time.Second)
		down.Store(true)
		time.Sleep(time.Minute)
		alive := func() {
			t.Helper()
			if i, j, st := n.get("spent"), n.get("late"), n.stat(); i.State != Active || j.State != Waiting || st.Dead+st.Died+st.Expired != 0 {
				t.Fatalf("%s and %s, %+v", i.State, j.State, st)
			}
			if got := n.claim(ClaimRequest{}); len(got) != 0 {
				t.Fatalf("handed out: %+v", got)
			}
		}
		alive()
		r.kill()
		down.Store(false)
		n.serve(DefaultQueue, 0)
		time.Sleep(time.Second)
		if i := n.get("spent"); i.State != Active {
			t.Fatalf("after a takeover: %+v", i)
		}
		time.Sleep(time.Minute)
		if i, j := n.get("spent"), n.get("late"); i.State != Dead || j.State != Dead || i.Cause == "" || j.Cause == "" {
			t.Fatalf("%+v, %+v", i, j)
		}
	})
}

// TestTimeGoesOn: a successor whose estimate is behind does not stop queue time, and does not keep
// it ahead for ever.
func TestTimeGoesOn(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w, _, a, b := slow(t, Settings{})
		w.clock = func() time.Time { return time.Now().Add(time.Hour) }
		r := a.serve(DefaultQueue, 0)
		a.enqueue(Job{ID: "before", Delay: time.Minute})
		r.kill()
		w.clock = time.Now
		b.serve(DefaultQueue, 0)
		begun := time.Now()
		b.enqueue(Job{ID: "after", Delay: time.Minute})
		for _, id := range []string{"before", "after"} {
			c := b.claim(ClaimRequest{Wait: MaxWait})
			for len(c) == 0 && time.Since(begun) < 3*time.Minute {
				c = b.claim(ClaimRequest{Wait: MaxWait})
			}
			if took := time.Since(begun); len(c) != 1 || c[0].Job.ID != id || took < time.Minute || took > 65*time.Second {
				t.Fatalf("%+v after %v", c, took)
			}
			want(t, b.say(Complete, c[0]), Completed, "")
		}
		time.Sleep(16 * time.Hour)
		b.enqueue(Job{ID: "new"})
		if ahead := time.Until(b.get("new").CreatedAt); ahead > time.Second {
			t.Fatalf("queue time is ahead by %v still", ahead)
		}
	})
}
