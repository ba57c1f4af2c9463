package coordinator_test

import (
	"context"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/emitd/emitd/coordinator"
	"github.com/emitd/emitd/coordinator/coordinatortest"
	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/daemon/sweeper"
	"github.com/emitd/emitd/internal/coordinator/lease"
	"github.com/emitd/emitd/storage"
)

// The sweeper, run as a daemon of the cluster, removes what is old and nothing else.
func TestSweeperSweepsTheStore(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := coordinatortest.New(t, coordinatortest.Config{Nodes: 2})
		for i := range 2 {
			tasks := c.Node(i).SweepTasks(coordinator.Retention{Events: 20, EventAge: time.Hour, LockAge: time.Minute})
			if err := c.Node(i).RegisterBuiltin(sweeper.Spec(), sweeper.New(tasks, sweeper.Config{})); err != nil {
				t.Fatal(err)
			}
		}
		c.WaitUntil("it runs", func() bool { return c.Holder("emit:sweeper/0") >= 0 })
		lock, err := c.Store().Acquire(t.Context(), "backup", "owner", time.Second, storage.Lock{})
		if err == nil {
			err = c.Store().Release(t.Context(), lock)
		}
		if err != nil {
			t.Fatal(err)
		}
		for range 10 {
			if err := c.Stop(c.Add()); err != nil {
				t.Fatal(err)
			}
		}
		advance(lease.Fast().NodeRegistrationTTL)
		if n := tombstones(t, c); n != 10 {
			t.Errorf("%d tombstones soon afterwards, want all 10", n)
		}
		advance(20 * time.Minute)
		if n := tombstones(t, c); n != 0 {
			t.Errorf("%d tombstones are left", n)
		}
		page, err := c.Store().Events(t.Context(), 0, 1000)
		if err != nil || len(page.Events) > 20 || len(page.Events) < 10 {
			t.Errorf("%d events are left, %v", len(page.Events), err)
		}
	})
}

// forward is a store whose clock, from some moment on, is a month ahead.
type forward struct {
	storage.Store
	storage.Sweeper
	ahead *atomic.Int64
	kept  *record[storage.Retention]
}

func (f forward) Heartbeat(ctx context.Context, b storage.Heartbeat) (*storage.Reply, error) {
	r, err := f.Store.Heartbeat(ctx, b)
	if r != nil {
		r.Now = r.Now.Add(time.Duration(f.ahead.Load()))
	}
	return r, err
}

func (f forward) SweepEvents(_ context.Context, _ daemon.Fence, keep storage.Retention, _ int) (int, error) {
	f.kept.add(keep)
	return 0, nil
}

// A store's clock that is set a month ahead does not end the history: an age does not count until that clock has
// been measured for as long, and the newest events stay even then.
func TestNoHistoryIsLostToAStep(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var ahead atomic.Int64
		var kept record[storage.Retention]
		c := coordinatortest.New(t, coordinatortest.Config{Nodes: 1, Wrap: func(_ int, s storage.Store) storage.Store {
			return forward{s, s.(storage.Sweeper), &ahead, &kept}
		}})
		tasks := c.Node(0).SweepTasks(coordinator.Retention{EventAge: time.Hour})
		if err := c.Node(0).RegisterBuiltin(sweeper.Spec(), sweeper.New(tasks, sweeper.Config{})); err != nil {
			t.Fatal(err)
		}
		const month = 30 * 24 * time.Hour
		newest := func() storage.Retention { all := kept.all(); return all[len(all)-1] }
		advance(70 * time.Minute)
		if k := newest(); k.Age != time.Hour || k.MinEvents != 10_000 || k.MaxEvents != 100_000 {
			t.Errorf("before the step: %+v", k)
		}
		ahead.Store(int64(month))
		advance(10 * time.Minute)
		if k := newest(); k.Age <= 2*month {
			t.Errorf("soon after the step: %+v", k)
		}
		advance(70 * time.Minute)
		if k := newest(); k.Age != time.Hour || k.MinEvents != 10_000 {
			t.Errorf("long after the step: %+v", k)
		}
	})
}

// Rows of nodes that left can be kept longer for people to see.
func TestNodeAge(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := coordinatortest.New(t, coordinatortest.Config{Nodes: 1})
		tasks := c.Node(0).SweepTasks(coordinator.Retention{NodeAge: time.Hour})
		if err := c.Node(0).RegisterBuiltin(sweeper.Spec(), sweeper.New(tasks, sweeper.Config{})); err != nil {
			t.Fatal(err)
		}
		c.WaitUntil("it runs", func() bool { return c.Holder("emit:sweeper/0") >= 0 })
		if err := c.Stop(c.Add()); err != nil {
			t.Fatal(err)
		}
		advance(59 * time.Minute)
		if n := tombstones(t, c); n != 1 {
			t.Errorf("%d tombstones within the age, want 1", n)
		}
		advance(10 * time.Minute)
		if n := tombstones(t, c); n != 0 {
			t.Errorf("%d tombstones are left", n)
		}
	})
}

// A process that is killed twice within the time for which a loss counts flaps, also where the rows of nodes that left are
// kept for no longer than they must be.
func TestKilledProcessesFlap(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := coordinatortest.New(t, coordinatortest.Config{Nodes: 2, Configure: func(i int, cfg *coordinator.Config) {
			if i >= 2 {
				cfg.Node.Name = "returns"
			}
		}})
		for i := range 2 {
			tasks := c.Node(i).SweepTasks(coordinator.Retention{NodeAge: time.Second})
			if err := c.Node(i).RegisterBuiltin(sweeper.Spec(), sweeper.New(tasks, sweeper.Config{})); err != nil {
				t.Fatal(err)
			}
		}
		advance(30 * time.Minute) // the sweeper has measured the store's clock
		for range 2 {
			i := c.Add()
			advance(time.Minute)
			c.Kill(i)
			advance(3 * time.Minute)
		}
		c.Add()
		advance(5 * time.Second)
		page, err := c.Store().Events(t.Context(), 0, 1000)
		if err != nil {
			t.Fatal(err)
		}
		sick := slices.ContainsFunc(page.Events, func(e daemon.Event) bool {
			return e.Kind == daemon.LedgerSick && strings.Contains(e.Reason, "lost 2 times")
		})
		if n := tombstones(t, c); !sick || n != 2 {
			t.Errorf("the node does not flap, %d tombstones", n)
		}
	})
}

func tombstones(t *testing.T, c *coordinatortest.Cluster) (n int) {
	t.Helper()
	snap, err := c.Store().Snapshot(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range snap.Nodes {
		if !m.Present() {
			n++
		}
	}
	return n
}

// A store without sweeping has no tasks.
func TestNoSweepTasks(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := coordinatortest.New(t, coordinatortest.Config{Wrap: func(_ int, s storage.Store) storage.Store { return struct{ storage.Store }{s} }})
		if tasks := c.Node(0).SweepTasks(coordinator.Retention{}); len(tasks) != 0 {
			t.Errorf("tasks: %+v", tasks)
		}
	})
}
