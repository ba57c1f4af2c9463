package broker

import (
	"context"
	"testing"
	"time"

	"github.com/emitd/emitd/internal/storage/mem"
	"github.com/emitd/emitd/queue"
)

// TestOneReadOfTheListHangs: a request that got no answer holds the registry's lock. All others are answered, so no call is
// refused, and none waits longer than for one attempt.
func TestOneReadOfTheListHangs(t *testing.T) {
	for name, hangs := range map[string]func(ctx context.Context, n *node){
		"of another caller": func(ctx context.Context, n *node) { _, _ = n.Registry().List(ctx) },
		"of a call":         func(ctx context.Context, n *node) { _, _ = n.Registry().recent(ctx, 0) },
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				bucket := mem.New(mem.Config{})
				w := newWorld(t, bucket)
				w.declare(queue.Settings{})
				n := w.node("n1")
				n.serve(queue.DefaultQueue, 0)
				n.enqueue(queue.Job{})
				bucket.Inject(mem.ReadNewer, "v1/queues", mem.Fault{Kind: mem.LostRequest, Hang: true})
				attempt, cancel := context.WithTimeout(w.ctx, 15*time.Second)
				defer cancel()
				ended := make(chan struct{})
				go func() { defer close(ended); hangs(attempt, n) }()
				for range 40 {
					time.Sleep(maxListAge / 10)
					begun := time.Now()
					n.enqueue(queue.Job{})
					if _, err := n.Registry().Shards(w.ctx, queue.DefaultQueue); err != nil {
						t.Error(err)
					}
					if _, err := n.Registry().Layout(w.ctx, queue.DefaultQueue); err != nil {
						t.Error(err)
					}
					if took := time.Since(begun); took > listReadTimeout {
						t.Errorf("a call took %v", took)
					}
				}
				<-ended
			})
		})
	}
}

// TestCallsKeepTheListRecent: while there are calls, none of them waits for a read of the list. A node without calls reads it
// twice a minute at most.
func TestCallsKeepTheListRecent(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w, bucket, a, _ := slow(t, queue.Settings{})
		a.serve(queue.DefaultQueue, 0)
		a.claim(queue.ClaimRequest{})
		for range 100 {
			time.Sleep(maxListAge / 20)
			begun := time.Now()
			a.claim(queue.ClaimRequest{}) // needs no other request
			if took := time.Since(begun); took != 0 {
				t.Errorf("a call took %v", took)
			}
		}
		time.Sleep(time.Minute)
		before := bucket.Stats()[mem.ReadNewer].Calls
		time.Sleep(10 * time.Minute)
		if reads := bucket.Stats()[mem.ReadNewer].Calls - before; reads > 20 {
			t.Errorf("%d reads in ten minutes without calls", reads)
		}
		if _, err := a.Enqueue(w.ctx, queue.DefaultQueue, []queue.Job{{}}); err != nil {
			t.Error(err)
		}
	})
}

// TestHeartbeatsWhileTheStoreIsAway: they need nothing of the store, and keep the claims of running jobs. The number of shards,
// by which nodes find the broker, stays known.
func TestHeartbeatsWhileTheStoreIsAway(t *testing.T) {
	bubble(t, func(t *testing.T) {
		w, down := failing(t, mem.Config{}, func(mem.Call) bool { return true })
		w.declare(queue.Settings{})
		n := w.node("n1")
		n.serve(queue.DefaultQueue, 0)
		n.enqueue(queue.Job{ID: "x"})
		c := n.claimOne("x")
		wantOutcome(t, n.settle(queue.Extend, c), queue.Active, "")
		time.Sleep(time.Second)
		down.Store(true)
		for range 12 {
			time.Sleep(10 * time.Second)
			begun := time.Now()
			wantOutcome(t, n.settle(queue.Extend, c), queue.Active, "")
			if took := time.Since(begun); took != 0 {
				t.Errorf("a heartbeat took %v", took)
			}
			if shards, err := n.Registry().Shards(w.ctx, queue.DefaultQueue); shards != 1 || err != nil {
				t.Errorf("%d shards, %v", shards, err)
			}
			if _, err := n.Registry().Layout(w.ctx, queue.DefaultQueue); err != nil {
				t.Error(err)
			}
			if took := time.Since(begun); took > 2*knownWait {
				t.Errorf("to find the broker took %v", took)
			}
		}
		down.Store(false)
		time.Sleep(10 * time.Second)
		wantOutcome(t, n.settle(queue.Complete, c), queue.Completed, "")
	})
}
