package client

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/node"
	"github.com/emitd/emitd/queue"
)

// moving is a cluster whose queue q has a new broker in each snapshot.
type moving struct {
	generation int64
	err        error
}

func (m *moving) Snapshot(context.Context) (*daemon.Snapshot, error) {
	m.generation++
	holder := node.Member{State: node.Live}
	holder.Incarnation, holder.Address = "i", "broker:1"
	gone := node.Identity{Incarnation: "gone"}
	return &daemon.Snapshot{Nodes: []node.Member{holder}, Units: []daemon.Record{
		{Unit: daemon.Unit{Daemon: "emit:queue/q"}, State: daemon.Active, Generation: m.generation, Holder: holder.Identity},
		{Unit: daemon.Unit{Daemon: "emit:queue/q", Index: 1}, State: daemon.Active, Generation: m.generation, Holder: gone},
		{Unit: daemon.Unit{Daemon: "emit:queue/q", Index: 2}, Generation: m.generation},
		{Unit: daemon.Unit{Daemon: "emit:queue/q", Index: 3}, Retired: true},
	}}, m.err
}

// TestDoubts: a snapshot is used for a while; after Invalidate, only until the next read is allowed. So
// calls that wait for a broker do not each read the store.
func TestDoubts(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		l := NewLocator(LocatorConfig{Cluster: &moving{}})
		for n, step := range []struct {
			after time.Duration
			doubt bool
			want  int64
		}{
			{0, false, 1},
			{snapshotAge - 1, false, 1},
			{1, false, 2},
			{0, true, 2},
			{invalidatedAge - 1, false, 2},
			{1, false, 3}, // the earlier doubt
			{invalidatedAge, false, 3},
			{0, true, 4},
		} {
			time.Sleep(step.after)
			if step.doubt {
				l.Invalidate()
			}
			addr, generation, err := l.Broker(t.Context(), "q", 0)
			if addr != "broker:1" || generation != step.want || err != nil {
				t.Errorf("step %d: %q at generation %d, %v; want %d", n, addr, generation, err, step.want)
			}
		}
	})
}

// away is a cluster whose store may be away: it refuses, or does not answer.
type away struct {
	mu sync.Mutex
	moving
	hangs bool
}

func (a *away) Snapshot(ctx context.Context) (*daemon.Snapshot, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.hangs {
		a.mu.Unlock()
		<-ctx.Done()
		a.mu.Lock()
		return nil, ctx.Err()
	}
	return a.moving.Snapshot(ctx)
}

func (a *away) change(f func(a *away, on bool), on bool) (generation int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	f(a, on)
	return a.generation
}

// TestStoreIsAway: the last snapshot is used, and calls hardly wait for the store, until it answers again.
func TestStoreIsAway(t *testing.T) {
	t.Parallel()
	for name, fault := range map[string]func(a *away, on bool){
		"hangs":   func(a *away, on bool) { a.hangs = on },
		"refuses": func(a *away, on bool) { a.err = map[bool]error{true: errors.New("no connection")}[on] },
	} {
		synctest.Test(t, func(t *testing.T) {
			a := &away{}
			l := NewLocator(LocatorConfig{Cluster: a})
			locate := func() int64 {
				t.Helper()
				begun := time.Now()
				addr, generation, err := l.Broker(t.Context(), "q", 0)
				if n, shardsErr := l.Shards(t.Context(), "q"); addr != "broker:1" || err != nil || n != 3 || shardsErr != nil {
					t.Errorf("%s: %q, %v, %d shards, %v", name, addr, err, n, shardsErr)
				}
				if took := time.Since(begun); took > snapshotWait {
					t.Errorf("%s: it took %v", name, took)
				}
				return generation
			}
			locate()
			a.change(fault, true)
			for range 20 {
				time.Sleep(snapshotAge)
				l.Invalidate()
				if got := locate(); name == "hangs" && got != 1 {
					t.Errorf("%s: generation %d", name, got)
				}
			}
			before := a.change(fault, false)
			time.Sleep(snapshotTimeout + snapshotPause)
			if got := locate(); got <= before {
				t.Errorf("%s: generation %d of %d, although the store answers", name, got, before)
			}
		})
	}
}

// TestNobody: a shard without a broker has no address and no error, and Exists decides whether the
// queue exists if no unit shows it.
func TestNobody(t *testing.T) {
	t.Parallel()
	unsure := errors.New("the list of queues does not answer")
	exists := func(known bool, err error) func(context.Context, string) (bool, error) {
		return func(context.Context, string) (bool, error) { return known, err }
	}
	for n, c := range []struct {
		exists func(context.Context, string) (bool, error)
		queue  string
		shard  int
		tag    queue.Tag
		err    error
	}{
		{nil, "q", 1, "", nil},
		{nil, "q", 2, "", nil},
		{nil, "other", 0, "", nil},
		{exists(true, nil), "other", 0, "", nil},
		{exists(true, nil), "q", 1, "", nil},
		{exists(false, nil), "other", 0, queue.QueueNotFound, nil},
		{exists(false, unsure), "other", 0, "", unsure},
		{exists(false, unsure), "q", 1, "", nil},
	} {
		addr, _, err := NewLocator(LocatorConfig{Cluster: &moving{}, Exists: c.exists}).Broker(t.Context(), c.queue, c.shard)
		if addr != "" || queue.TagOf(err) != c.tag || c.tag == "" && !errors.Is(err, c.err) {
			t.Errorf("case %d: %q, %v", n, addr, err)
		}
	}
	down := NewLocator(LocatorConfig{Cluster: &moving{err: unsure}})
	if _, _, err := down.Broker(t.Context(), "q", 0); !errors.Is(err, unsure) {
		t.Error(err)
	}
	if _, err := down.Shards(t.Context(), "q"); !errors.Is(err, unsure) {
		t.Error(err)
	}
}

// draining is a cluster whose queue q is being revoked from its broker, which serves until it has drained.
type draining struct{ moving }

func (d *draining) Snapshot(ctx context.Context) (*daemon.Snapshot, error) {
	snap, err := d.moving.Snapshot(ctx)
	for i := range snap.Units {
		snap.Units[i].State = daemon.Revoking
	}
	return snap, err
}

// TestDrainingBroker: a broker is found until it has drained; one that is gone is not.
func TestDrainingBroker(t *testing.T) {
	t.Parallel()
	l := NewLocator(LocatorConfig{Cluster: &draining{}})
	for shard, want := range []string{"broker:1", ""} {
		if addr, _, err := l.Broker(t.Context(), "q", shard); addr != want || err != nil {
			t.Errorf("shard %d is at %q, %v; want %q", shard, addr, err, want)
		}
	}
}

// TestShards: retired units do not count.
func TestShards(t *testing.T) {
	t.Parallel()
	l := NewLocator(LocatorConfig{Cluster: &moving{}})
	for name, want := range map[string]int{"q": 3, "other": 1} {
		if n, err := l.Shards(t.Context(), name); n != want || err != nil {
			t.Errorf("%s has %d shards, %v; want %d", name, n, err, want)
		}
	}
}
