package coordinator_test

import (
	"context"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/emitd/emitd/coordinator/coordinatortest"
	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/internal/coordinator/lease"
	"github.com/emitd/emitd/node"
	"github.com/emitd/emitd/storage"
)

// stopBound is the bound that Run promises.
func stopBound() time.Duration {
	t := lease.Fast()
	return t.LeaderStopTimeout + t.DrainTimeout + t.StopTimeout + 2*t.QueryTimeout
}

// Whatever agents, hooks, leader-only work, the log and the store do, Run returns nil within its
// bound.
func TestRunReturnsWithinItsBound(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		name  string
		agent func(release <-chan struct{}) daemon.AgentFunc
		setup func(c *coordinatortest.Cluster, tp *tap, release <-chan struct{})
		// atMost is how long the stop may take; 0 is the bound.
		atMost time.Duration
	}{
		{name: "nothing in the way", atMost: 100 * time.Millisecond},
		{
			name: "agent drains for a second", atMost: 1100 * time.Millisecond,
			agent: func(<-chan struct{}) daemon.AgentFunc {
				return func(_ context.Context, a *daemon.Assignment) error {
					<-a.Draining()
					<-time.After(time.Second)
					return nil
				}
			},
		},
		{
			name: "agent ignores draining",
			agent: func(<-chan struct{}) daemon.AgentFunc {
				return func(ctx context.Context, _ *daemon.Assignment) error { <-ctx.Done(); return ctx.Err() }
			},
		},
		{
			name: "agent ignores everything",
			agent: func(release <-chan struct{}) daemon.AgentFunc {
				return func(context.Context, *daemon.Assignment) error { <-release; return nil }
			},
		},
		{
			name: "agent panics while draining", atMost: time.Second,
			agent: func(<-chan struct{}) daemon.AgentFunc {
				return func(_ context.Context, a *daemon.Assignment) error { <-a.Draining(); panic("boom") }
			},
		},
		{
			name: "leader-only work ignores its context",
			setup: func(c *coordinatortest.Cluster, _ *tap, release <-chan struct{}) {
				c.Node(0).WhileLeader("stubborn", func(context.Context, node.Term) error { <-release; return nil })
			},
		},
		{
			name: "the store hangs",
			setup: func(_ *coordinatortest.Cluster, tp *tap, _ <-chan struct{}) {
				tp.set(func(ctx context.Context, _ string, _ any, _ error) error { <-ctx.Done(); return ctx.Err() }, nil)
			},
		},
		{
			name: "the store ignores its context",
			setup: func(_ *coordinatortest.Cluster, tp *tap, release <-chan struct{}) {
				tp.set(func(context.Context, string, any, error) error { <-release; return storage.ErrUnavailable }, nil)
			},
		},
		{
			name: "the store fails at once",
			setup: func(_ *coordinatortest.Cluster, tp *tap, _ <-chan struct{}) {
				tp.set(func(context.Context, string, any, error) error { return storage.ErrUnavailable }, nil)
			},
		},
		{
			name: "everything at once",
			agent: func(release <-chan struct{}) daemon.AgentFunc {
				return func(context.Context, *daemon.Assignment) error { <-release; return nil }
			},
			setup: func(c *coordinatortest.Cluster, tp *tap, release <-chan struct{}) {
				c.Node(0).WhileLeader("stubborn", func(context.Context, node.Term) error { <-release; return nil })
				advance(0)
				tp.set(func(context.Context, string, any, error) error { <-release; return storage.ErrUnavailable }, nil)
			},
		},
	} {
		t.Run(tc.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				release := make(chan struct{})
				defer close(release)
				c, taps := tapped(t, coordinatortest.Config{})
				agent := worker
				if tc.agent != nil {
					agent = tc.agent(release)
				}
				c.Register(daemon.Spec{ID: "acme:x", Instances: 3}, agent)
				c.WaitUntil("it runs", func() bool { return c.Holder("acme:x/2") == 0 })
				if tc.setup != nil {
					tc.setup(c, taps[0], release)
				}
				advance(100 * time.Millisecond)
				began := time.Now()
				if err := c.Stop(0); err != nil {
					t.Error(err)
				}
				limit := tc.atMost
				if limit == 0 {
					limit = stopBound()
				}
				if took := time.Since(began); took > limit {
					t.Errorf("stopping took %v, at most %v is promised", took, limit)
				}
				taps[0].set(nil, nil)
			})
		})
	}
}

// The order of a clean stop: not ready and contexts cancelled, then resign and drain in one call,
// then the agents, then deregister.
func TestOrderOfAStop(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c, taps := tapped(t, coordinatortest.Config{})
		var order record[string]
		c.Register(daemon.Spec{ID: "acme:x"}, daemon.AgentFunc(func(_ context.Context, a *daemon.Assignment) error {
			<-a.Draining()
			order.add("drained")
			return nil
		}))
		c.WaitUntil("it runs", func() bool { return c.Holder("acme:x/0") == 0 })
		_, ctx, _ := c.Node(0).Leadership()
		taps[0].set(func(_ context.Context, op string, req any, _ error) error {
			switch req := req.(type) {
			case storage.Leave:
				if ctx.Err() == nil {
					order.add("leadership goes on")
				}
				switch {
				case req.Deregister:
					order.add("deregister")
				case req.Resign != 0 && req.Drain:
					order.add("resign and drain")
				default:
					order.add(op)
				}
			case storage.Report:
				for _, u := range req.Units {
					order.add(string(u.Step))
				}
			}
			return nil
		}, nil)
		if err := c.Stop(0); err != nil {
			t.Fatal(err)
		}
		order.want(t, "the stop", "resign and drain", "drained", "confirm", "deregister")
	})
}

// Leader-only work that returns late but in time: the term is not given up before.
func TestResignWaitsForWork(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c, taps := tapped(t, coordinatortest.Config{})
		c.Elect()
		var returned atomic.Bool
		c.Node(0).WhileLeader("slow", func(ctx context.Context, _ node.Term) error {
			<-ctx.Done()
			<-time.After(500 * time.Millisecond)
			returned.Store(true)
			return nil
		})
		advance(0)
		taps[0].set(func(_ context.Context, _ string, req any, _ error) error {
			if l, ok := req.(storage.Leave); ok && l.Resign != 0 && !returned.Load() {
				t.Error("the term was given up while its work runs")
			}
			return nil
		}, nil)
		if err := c.Stop(0); err != nil {
			t.Fatal(err)
		}
		if snap, _ := c.Store().Snapshot(t.Context()); !snap.Term.Vacant {
			t.Error("the term was not given up")
		}
	})
}

// A hook that hangs is left behind after StopTimeout, with a line in the log. Hooks queued behind
// it are still called once it returns.
func TestStopLeavesHangingHookBehind(t *testing.T) {
	bubble(t, func(t *testing.T) {
		release := make(chan struct{})
		var seen record[string]
		h := recording(&seen)
		h.OnNodeRegistered = func(node.Member) { <-release }
		c := hooked(t, 1, h)
		c.Register(daemon.Spec{ID: "acme:x"}, worker)
		c.WaitUntil("it runs", func() bool { return c.Holder("acme:x/0") == 0 })
		began := time.Now()
		if err := c.Stop(0); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(began); took > lease.Fast().StopTimeout+100*time.Millisecond {
			t.Errorf("stopping took %v", took)
		}
		if seen.count("started acme:x/0") != 0 {
			t.Error("hooks came out of order")
		}
		close(release)
		advance(0)
		if seen.count("stopped acme:x/0 drained") != 1 {
			t.Errorf("a hook was skipped: %q", seen.all())
		}
	})
}

// Run can be called once, and a stopped coordinator accepts no daemons.
func TestRunOnce(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := coordinatortest.New(t, coordinatortest.Config{})
		c.Elect()
		if err := c.Node(0).Run(t.Context()); err == nil || !strings.Contains(err.Error(), "once") {
			t.Errorf("running twice at once: %v", err)
		}
		if err := c.Stop(0); err != nil {
			t.Fatal(err)
		}
		if err := c.Node(0).Run(t.Context()); err == nil {
			t.Error("running again succeeded")
		}
		if err := c.Node(0).Register(daemon.Spec{ID: "acme:x"}, worker); err == nil || !strings.Contains(err.Error(), "stopped") {
			t.Errorf("registering after the end: %v", err)
		}
	})
}

// A context that has ended before Run, or that ends during the first call, stops the node cleanly
// too.
func TestStopAtOnce(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c, taps := tapped(t, coordinatortest.Config{Nodes: 1})
		taps[0].set(func(ctx context.Context, _ string, _ any, _ error) error { <-ctx.Done(); return ctx.Err() }, nil)
		began := time.Now()
		if err := c.Stop(0); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(began); took > stopBound() {
			t.Errorf("stopping took %v", took)
		}
		taps[0].set(nil, nil)
	})
}

// Nodes with daemons that stop at the same time pass on or free everything.
func TestAllStopTogether(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := coordinatortest.New(t, coordinatortest.Config{Nodes: 3})
		c.Register(daemon.Spec{ID: "acme:x", Instances: 9}, worker)
		c.WaitUntil("all run", func() bool {
			for i := range 9 {
				if c.Holder(daemon.Unit{Daemon: "acme:x", Index: i}.String()) < 0 {
					return false
				}
			}
			return true
		})
		var ends record[int]
		for i := range 3 {
			go func() {
				if err := c.Stop(i); err != nil {
					t.Error(err)
				}
				ends.add(i)
			}()
		}
		c.WaitUntil("all stopped", func() bool { return len(ends.all()) == 3 })
		snap, err := c.Store().Snapshot(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if snap.Term.Held() || slices.ContainsFunc(snap.Nodes, node.Member.Present) ||
			slices.ContainsFunc(snap.Units, func(r daemon.Record) bool { return !r.State.IsFree() }) {
			t.Errorf("something was left: %+v", snap)
		}
	})
}
