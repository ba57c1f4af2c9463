package owner_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/emitd/emitd/coordinator/coordinatortest"
	"github.com/emitd/emitd/coordinator/owner"
	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/node"
	"github.com/emitd/emitd/storage"
	"github.com/emitd/emitd/storage/memory"
)

var globex = daemon.Unit{Daemon: "acme:tenants", Key: "globex"}

func agent(ctx context.Context, a *daemon.Assignment) error {
	select {
	case <-a.Draining():
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// TestOwner: the directory follows a unit over its whole life, from a node to another one to none.
func TestOwner(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := coordinatortest.New(t, coordinatortest.Config{Nodes: 2})
		c.Register(daemon.Spec{ID: globex.Daemon, Instances: daemon.Keyed}, daemon.AgentFunc(agent))
		d := owner.NewDirectory(c.Store())
		query := func() owner.Owner {
			t.Helper()
			time.Sleep(time.Second)
			o, err := d.Owner(t.Context(), globex)
			if err != nil {
				t.Fatal(err)
			}
			return o
		}
		if o := query(); o.Node.Name != "" || o.State != daemon.Unassigned {
			t.Errorf("without a key: %+v", o)
		}
		change := func(k storage.KeyChange) {
			t.Helper()
			k.Daemon = globex.Daemon
			if _, err := c.Store().ChangeKeys(t.Context(), k); err != nil {
				t.Fatal(err)
			}
		}
		change(storage.KeyChange{Add: []string{"globex"}})
		c.WaitUntil("it runs", func() bool { return c.Holder(globex.String()) >= 0 })
		first := c.Holder(globex.String())
		before := query()
		if before.Node != c.Node(first).Node() || before.State != daemon.Active || before.Generation == 0 {
			t.Errorf("%+v, want %s", before, c.Node(first).Node().Name)
		}
		c.Kill(first)
		c.WaitUntil("it runs elsewhere", func() bool { h := c.Holder(globex.String()); return h >= 0 && h != first })
		if o := query(); o.Node != c.Node(1-first).Node() || o.Generation <= before.Generation {
			t.Errorf("%+v, want %s", o, c.Node(1-first).Node().Name)
		}
		change(storage.KeyChange{Remove: []string{"globex"}})
		c.WaitUntil("it has ended", func() bool { return c.Holder(globex.String()) < 0 })
		if o := query(); o.Node.Name != "" || o.State != daemon.Deleted {
			t.Errorf("after its removal: %+v", o)
		}
	})
}

// TestWatch: a watch yields the present owner, and then each change.
func TestWatch(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := coordinatortest.New(t, coordinatortest.Config{Nodes: 2})
		c.Register(daemon.Spec{ID: "acme:reports"}, daemon.AgentFunc(agent))
		c.WaitUntil("it runs", func() bool { return c.Holder("acme:reports/0") >= 0 })
		first := c.Holder("acme:reports/0")
		killed := false
		for o, err := range owner.NewDirectory(c.Store()).Watch(t.Context(), "acme:reports") {
			switch {
			case err != nil:
				t.Fatal(err)
			case !killed && o.State == daemon.Active:
				if o.Node != c.Node(first).Node() {
					t.Errorf("%+v", o)
				}
				c.Kill(first)
				killed = true
			case killed && o.State == daemon.Active:
				if o.Node != c.Node(1-first).Node() {
					t.Errorf("%+v", o)
				}
				return
			}
		}
		t.Error("the watch has ended")
	})
}

// failedOver is a store with a unit in its rows and history, as a failover leaves it that has lost its newest events.
type failedOver struct {
	*memory.Store
	t     *testing.T
	nodes []node.Identity
	early *memory.Image // the unit is on the first node
}

// newFailedOver makes a store in which a unit runs on a node, and then on another one.
func newFailedOver(t *testing.T) *failedOver {
	f := &failedOver{Store: memory.Open(memory.Config{}), t: t}
	c := coordinatortest.New(t, coordinatortest.Config{Nodes: 2})
	c.Register(daemon.Spec{ID: globex.Daemon}, daemon.AgentFunc(agent))
	c.WaitUntil("it runs", func() bool { return c.Holder(single.String()) >= 0 })
	first := c.Holder(single.String())
	f.nodes = []node.Identity{c.Node(first).Node(), c.Node(1 - first).Node()}
	f.early = c.Store().Clone()
	c.Kill(first)
	c.WaitUntil("it runs elsewhere", func() bool { return c.Holder(single.String()) == 1-first })
	f.Restore(c.Store().Clone())
	return f
}

// failOver replaces the content by an earlier one, which soon has more events than the former one had.
func (f *failedOver) failOver(image *memory.Image) {
	f.t.Helper()
	snap, err := f.Snapshot(f.t.Context())
	if err != nil {
		f.t.Fatal(err)
	}
	f.Restore(image)
	f.SetStoreID("standby")
	for range snap.Head {
		if err := f.Record(f.t.Context(), daemon.Event{Kind: daemon.UnitsChanged}); err != nil {
			f.t.Fatal(err)
		}
	}
}

// single is a unit that is not keyed.
var single = daemon.Unit{Daemon: globex.Daemon}

// TestOwnerAfterLostEvents: a directory notices that the events that it has read are lost, also if the store has written
// others with the same numbers since.
func TestOwnerAfterLostEvents(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newFailedOver(t)
		d := owner.NewDirectory(s)
		for i, want := range []node.Identity{s.nodes[1], s.nodes[0]} {
			time.Sleep(time.Second)
			if o, err := d.Owner(t.Context(), single); err != nil || o.Node != want {
				t.Errorf("%d: %+v, %v; want %s", i, o, err, want.Name)
			}
			if i == 0 {
				s.failOver(s.early)
			}
		}
	})
}

// TestWatchOfALostUnit: a watch yields that a unit is free if the store does not have it any more.
func TestWatchOfALostUnit(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := newFailedOver(t)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		var last owner.Owner
		for o, err := range owner.NewDirectory(s).Watch(ctx, single.Daemon) {
			if err != nil {
				t.Fatal(err)
			}
			if last = o; o.Node == s.nodes[1] {
				s.failOver(memory.Open(memory.Config{}).Clone())
			}
		}
		if last.Unit != single || last.Node.Name != "" || last.State != daemon.Unassigned {
			t.Errorf("at last %+v", last)
		}
	})
}

// churn is a store whose keys each get an owner, lose it, and are swept: two events for each.
type churn struct {
	storage.Store
	head      int64
	snapshots int
	broken    bool // it answers no snapshot
}

var alpha = node.Identity{Name: "alpha", ID: "1", Incarnation: "1"}

func (s *churn) Snapshot(context.Context) (*daemon.Snapshot, error) {
	s.snapshots++
	if s.broken {
		return nil, errors.New("no answer")
	}
	return &daemon.Snapshot{Head: s.head, Nodes: []node.Member{{Identity: alpha}}}, nil
}

func (s *churn) Events(_ context.Context, after int64, limit int) (*storage.EventPage, error) {
	page := &storage.EventPage{Head: s.head, Oldest: 1}
	for seq := after + 1; seq <= s.head && len(page.Events) < limit; seq++ {
		e := daemon.Event{Seq: seq, Kind: daemon.AssignmentAssigned, Unit: churned(seq - 1), Generation: 1, Incarnation: alpha.Incarnation}
		if seq%2 == 0 {
			e.Kind = daemon.AssignmentDeleted
		}
		page.Events = append(page.Events, e)
	}
	return page, nil
}

// churned is the unit of the event after the n-th.
func churned(n int64) daemon.Unit {
	return daemon.Unit{Daemon: globex.Daemon, Key: fmt.Sprint("k", n/2)}
}

// TestOwnersOfKeysThatAreGone: the directory forgets keys that come and go, and seldom reads the whole cluster for that.
func TestOwnersOfKeysThatAreGone(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &churn{}
		d := owner.NewDirectory(s)
		for _, step := range []struct {
			head      int64
			key       int64
			state     daemon.State
			snapshots int
		}{
			{2, 2, daemon.Unassigned, 1},
			{2002, 2, daemon.Deleted, 1},
			{2004, 2, daemon.Unassigned, 2},
			{4004, 3000, daemon.Deleted, 2},
			{4006, 3000, daemon.Unassigned, 3},
		} {
			s.head = step.head
			time.Sleep(time.Second)
			o, err := d.Owner(t.Context(), churned(step.key))
			if err != nil || o.State != step.state || s.snapshots != step.snapshots {
				t.Errorf("after %d events: %+v, %v, after %d snapshots; want %s, %d", step.head, o, err, s.snapshots, step.state, step.snapshots)
			}
		}
	})
}

// TestOwnersWhileNothingCanBeForgotten: what the history says is enough for an answer if the cluster cannot be read anew just to
// forget keys, such as by a caller with little time. That is tried again only after as many more have gone.
func TestOwnersWhileNothingCanBeForgotten(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &churn{head: 2}
		d := owner.NewDirectory(s)
		for _, step := range []struct {
			head      int64
			state     daemon.State
			snapshots int
		}{{2, daemon.Unassigned, 1}, {2004, daemon.Deleted, 2}, {2006, daemon.Deleted, 2}, {4005, daemon.Assigning, 2}, {4008, daemon.Deleted, 3}} {
			s.head = step.head
			o, err := d.Owner(t.Context(), churned(step.head-1))
			if err != nil || o.State != step.state || s.snapshots != step.snapshots {
				t.Errorf("after %d events: %+v, %v, after %d snapshots; want %s, %d", step.head, o, err, s.snapshots, step.state, step.snapshots)
			}
			s.broken = true
			time.Sleep(time.Second)
		}
	})
}

// silent is a store that does not answer a snapshot until its caller gives up.
type silent struct{ storage.Store }

func (silent) Snapshot(ctx context.Context) (*daemon.Snapshot, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

// TestOwnerEndsWithItsContext: a caller does not wait for the slow store of another one any longer than its own context
// lasts.
func TestOwnerEndsWithItsContext(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		d := owner.NewDirectory(silent{memory.Open(memory.Config{})})
		long, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		go func() { _, _ = d.Owner(long, globex) }()
		synctest.Wait()
		begin := time.Now()
		ctx, stop := context.WithTimeout(t.Context(), time.Second)
		defer stop()
		if _, err := d.Owner(ctx, globex); !errors.Is(err, context.DeadlineExceeded) || time.Since(begin) > time.Minute {
			t.Errorf("%v after %v", err, time.Since(begin))
		}
		cancel()
	})
}
