package object_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/internal/storage/mem"
	"github.com/emitd/emitd/node"
	"github.com/emitd/emitd/storage"
	"github.com/emitd/emitd/storage/object"
)

// TestHungRequest: the request of a call whose own deadline is far gets no answer. The heartbeats of its process go on
// once QueryTimeout is over, and the call fails.
func TestHungRequest(t *testing.T) {
	t.Parallel()
	const interval, limit = time.Second, 500 * time.Millisecond
	for _, op := range []mem.Op{mem.ReadNewer, mem.Replace} {
		for _, leads := range []bool{true, false} {
			t.Run(string(op)+map[bool]string{true: ", of a leader", false: ", of a follower"}[leads], func(t *testing.T) {
				t.Parallel()
				synctest.Test(t, func(t *testing.T) {
					store := mem.New(mem.Config{Latency: mem.Constant(10 * time.Millisecond)})
					p := start(t, store, 0)
					if leads {
						p.lead()
					}
					p.s = open(t, store, object.Config{QueryTimeout: limit})
					p.beat()
					store.Inject(op, object.ClusterKey, mem.Fault{Kind: mem.LostRequest, Hang: true})
					hung := make(chan error, 1)
					go func() {
						ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
						defer cancel()
						hung <- p.s.StampFence(ctx, daemon.Fence{Unit: unit, Generation: 1})
					}()
					synctest.Wait()
					failed := 0
					for range 5 {
						ctx, cancel := context.WithTimeout(t.Context(), limit)
						if _, err := p.try(ctx); err != nil {
							failed++
						}
						<-ctx.Done()
						cancel()
						<-time.After(interval - limit)
					}
					if failed > 1 {
						t.Errorf("%d heartbeats of 5 failed, want 1 at most", failed)
					}
					select {
					case err := <-hung:
						if !errors.Is(err, storage.ErrUnavailable) {
							t.Errorf("the call returned %v", err)
						}
					default:
						t.Fatal("the call still waits")
					}
					if err := p.s.StampFence(t.Context(), daemon.Fence{Unit: unit, Generation: 2}); err != nil {
						t.Error(err)
					}
				})
			})
		}
	}
}

// TestHungRequestOfAnyNode: without a QueryTimeout of its own, the store takes that of the process's nodes, the longest one. So a
// request that hangs holds up a fast node no longer than its own calls, and what a slow one has time for is not broken off.
func TestHungRequestOfAnyNode(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		nodes []time.Duration
		limit time.Duration
	}{
		"fast":          {[]time.Duration{500 * time.Millisecond}, 500 * time.Millisecond},
		"slow":          {[]time.Duration{20 * time.Second}, 20 * time.Second},
		"fast and slow": {[]time.Duration{500 * time.Millisecond, 20 * time.Second, time.Second}, 20 * time.Second},
		"unknown":       {[]time.Duration{0}, 5 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				store := mem.New(mem.Config{})
				p := start(t, store, 0)
				for _, timeout := range c.nodes {
					p.beat(func(h *storage.Heartbeat) {
						h.Advert = &daemon.Advert{Traits: node.Traits{Capacity: 1, Timing: node.Timing{QueryTimeout: timeout}}}
					})
				}
				store.Inject(mem.ReadNewer, object.ClusterKey, mem.Fault{Kind: mem.LostRequest, Hang: true})
				ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
				defer cancel()
				began := time.Now()
				if err := p.s.StampFence(ctx, daemon.Fence{Unit: unit, Generation: 1}); !errors.Is(err, storage.ErrUnavailable) {
					t.Errorf("the call returned %v", err)
				}
				if took := time.Since(began); took != c.limit {
					t.Errorf("the call took %v, want %v", took, c.limit)
				}
			})
		})
	}
}
