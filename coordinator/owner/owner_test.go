package owner_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/emitd/emitd/coordinator/coordinatortest"
	"github.com/emitd/emitd/coordinator/owner"
	"github.com/emitd/emitd/daemon"
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
