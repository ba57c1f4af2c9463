package coordinatortest_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/emitd/emitd/coordinator"
	"github.com/emitd/emitd/coordinator/coordinatortest"
	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/internal/coordinator/lease"
	"github.com/emitd/emitd/node"
	"github.com/emitd/emitd/storage"
)

func bubble(t *testing.T, story func(t *testing.T)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, story)
}

var worker = daemon.AgentFunc(func(ctx context.Context, a *daemon.Assignment) error {
	select {
	case <-a.Draining():
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
})

// A dead node's unit moves to another within its bound, with a higher generation.
func TestKill(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := coordinatortest.New(t, coordinatortest.Config{Nodes: 3})
		var newest atomic.Int64
		c.Register(daemon.Spec{ID: "acme:x"}, daemon.AgentFunc(func(ctx context.Context, a *daemon.Assignment) error {
			if old := newest.Swap(a.Generation); old >= a.Generation {
				t.Errorf("generation %d after %d", a.Generation, old)
			}
			return worker(ctx, a)
		}))
		c.WaitUntil("it runs", func() bool { return c.Holder("acme:x/0") >= 0 })
		dead := c.Holder("acme:x/0")
		began := time.Now()
		c.Kill(dead)
		if c.Holder("acme:x/0") == dead {
			t.Error("a killed node still runs it")
		}
		c.WaitUntil("it runs elsewhere", func() bool { h := c.Holder("acme:x/0"); return h >= 0 && h != dead })
		if took := time.Since(began); took < 2*time.Second || took > 8*time.Second {
			t.Errorf("it runs elsewhere after %v", took)
		}
		if l := c.Elect(); l == dead {
			t.Error("a killed node leads")
		}
	})
}

// A partitioned node stops its own agents before another node runs them, and comes back.
func TestPartition(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := coordinatortest.New(t, coordinatortest.Config{Nodes: 3})
		var running atomic.Int32
		c.Register(daemon.Spec{ID: "acme:x"}, daemon.AgentFunc(func(ctx context.Context, a *daemon.Assignment) error {
			if running.Add(1) > 1 {
				t.Error("two run at once")
			}
			defer running.Add(-1)
			return worker(ctx, a)
		}))
		c.WaitUntil("it runs", func() bool { return c.Holder("acme:x/0") >= 0 })
		cut := c.Holder("acme:x/0")
		c.Partition(cut)
		c.WaitUntil("it runs elsewhere", func() bool { h := c.Holder("acme:x/0"); return h >= 0 && h != cut })
		if c.Leader() == cut {
			t.Error("a partitioned node leads")
		}
		c.Heal(cut)
		began := time.Now()
		c.WaitUntil("it is back", func() bool { return c.Node(cut).Status().SinceAnswer < time.Second })
		if took := time.Since(began); took > 1500*time.Millisecond {
			t.Errorf("it came back after %v", took)
		}
	})
}

// A node that receives no replies stops its agents like a partitioned one.
func TestLoseReplies(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := coordinatortest.New(t, coordinatortest.Config{Nodes: 2})
		i := c.Elect()
		c.LoseReplies(i)
		c.WaitUntil("the other leads", func() bool { return c.Leader() == 1-i })
		c.Heal(i)
		c.Advance(5 * time.Second)
		if c.Leader() != 1-i {
			t.Error("leadership moved although nothing is wrong")
		}
	})
}

// Expire and Resign move leadership, each with a higher term, the former by waiting out the lease.
func TestExpireAndResign(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := coordinatortest.New(t, coordinatortest.Config{Nodes: 2})
		a := c.Elect()
		began := time.Now()
		b := c.Expire()
		if took := time.Since(began); b == a || took < 3*time.Second || took > lease.Fast().LeaseDuration+time.Second {
			t.Errorf("from %d to %d in %v", a, b, took)
		}
		c.Advance(5 * time.Second)
		began = time.Now()
		if d := c.Resign(); d == b || time.Since(began) > 500*time.Millisecond {
			t.Errorf("from %d to %d in %v", b, d, time.Since(began))
		}
	})
}

// Nodes may join and leave; options reach them.
func TestAddStopAndOptions(t *testing.T) {
	bubble(t, func(t *testing.T) {
		wrapped := 0
		c := coordinatortest.New(t, coordinatortest.Config{
			Nodes: 1, Log: true,
			Configure: func(i int, cfg *coordinator.Config) { cfg.NeverLead = i == 0 },
			Wrap:      func(_ int, s storage.Store) storage.Store { wrapped++; return s },
		})
		c.Advance(time.Minute)
		if c.Leader() != -1 {
			t.Error("a node with NeverLead leads")
		}
		if i := c.Add(); c.Elect() != i {
			t.Error("the added node does not lead")
		}
		if err := c.Stop(1); err != nil {
			t.Error(err)
		}
		if c.Leader() != -1 || wrapped != 2 {
			t.Errorf("leader %d, %d wrapped", c.Leader(), wrapped)
		}
		snap, err := c.Store().Snapshot(t.Context())
		if err != nil || len(snap.Nodes) != 2 {
			t.Errorf("%+v, %v", snap, err)
		}
	})
}

// Await fails the test, with the text of what was awaited.
func TestAwaitGivesUp(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := &failing{TB: t}
		c := coordinatortest.New(f, coordinatortest.Config{Limit: time.Second})
		func() {
			defer func() { _ = recover() }() // Fatalf must not return
			c.WaitUntil("pigs fly", func() bool { return false })
		}()
		if f.printed == "" {
			t.Error("it waited for ever")
		}
	})
}

type failing struct {
	testing.TB
	printed string
}

func (f *failing) Fatalf(format string, _ ...any) { f.printed = format; panic("fatal") }

// Hooks and leadership contexts of a killed node end as well: no goroutine is left in the bubble.
func TestKillEndsContexts(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var cause atomic.Value
		c := coordinatortest.New(t, coordinatortest.Config{Configure: func(_ int, cfg *coordinator.Config) {
			cfg.Hooks.OnLeaderElected = func(ctx context.Context, _ node.Term) {
				<-ctx.Done()
				cause.Store(context.Cause(ctx))
			}
		}})
		c.Elect()
		c.Kill(0)
		c.Advance(0)
		if err, ok := cause.Load().(error); !ok || !errors.Is(err, coordinator.ErrNotLeading) {
			t.Errorf("cause: %v", err)
		}
	})
}
