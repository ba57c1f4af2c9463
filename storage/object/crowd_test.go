package object_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/emitd/emitd/coordinator"
	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/internal/storage/mem"
	"github.com/emitd/emitd/node"
	"github.com/emitd/emitd/storage/object"
)

// TestManyNodesBegin: many nodes start at once on a bucket of 50 ms a request, with four units
// each. They elect one leader and, with few exceptions, start each unit once. Nodes beyond what the
// bucket can carry with their timings wait, end, and say what would work. The others run all units
// undisturbed.
func TestManyNodesBegin(t *testing.T) {
	t.Parallel()
	for _, x := range []struct {
		nodes   int
		profile string
		refused string // a part of the error
	}{
		{8, coordinator.ProfileFast, ""},
		{12, coordinator.ProfileFast, "query_timeout"},
		{20, coordinator.ProfileFast, "query_timeout"},
		{10, coordinator.ProfileDefault, ""},
	} {
		t.Run(fmt.Sprintf("%d nodes, %s", x.nodes, x.profile), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) { manyBegin(t, x.nodes, x.profile, x.refused) })
		})
	}
}

func manyBegin(t *testing.T, nodes int, profile, refused string) {
	bucket := mem.New(mem.Config{Latency: mem.Constant(50 * time.Millisecond)})
	var entered, running, ended atomic.Int64
	counts := daemon.AgentFunc(func(ctx context.Context, a *daemon.Assignment) error {
		entered.Add(1)
		running.Add(1)
		defer running.Add(-1)
		a.Ready()
		return waits(ctx, a)
	})
	began, units := time.Now(), 4*nodes
	ctx, stop := context.WithCancel(context.Background())
	var all sync.WaitGroup
	var last *object.Store
	for i := range nodes {
		last = open(t, bucket, object.Config{})
		c, err := coordinator.New(last, coordinator.Config{
			Cluster: "test", Profile: profile, Node: node.Identity{Name: fmt.Sprintf("node-%d", i)},
			Clock:  func() time.Duration { return time.Since(began) + time.Hour },
			Logger: slog.New(slog.DiscardHandler),
		})
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Register(daemon.Spec{ID: "acme:a", Instances: units}, counts); err != nil {
			t.Fatal(err)
		}
		all.Go(func() {
			err := c.Run(ctx)
			var slow *coordinator.SlowStoreError
			switch {
			case err == nil:
			case errors.As(err, &slow) && refused != "" && strings.Contains(err.Error(), refused):
				ended.Add(1)
				t.Logf("after %v: %v", time.Since(began), err)
			default:
				t.Errorf("node-%d: %v", i, err)
			}
		})
	}
	defer all.Wait()
	defer stop()
	<-time.After(2 * time.Minute)
	elections := 0
	page, err := last.Events(t.Context(), 0, 100_000)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range page.Events {
		if e.Kind == daemon.LeaderElected {
			elections++
		}
	}
	t.Logf("%d of %d nodes ended, %d elections, %d runs entered and %d running for %d units", ended.Load(), nodes, elections, entered.Load(), running.Load(), units)
	if (ended.Load() > 0) != (refused != "") || int(ended.Load()) == nodes {
		t.Errorf("%d of %d nodes ended", ended.Load(), nodes)
	}
	most := units * 3 / 2
	if refused != "" {
		most = 2 * units // on few nodes
	}
	if int(running.Load()) != units || elections != 1 || int(entered.Load()) > most {
		t.Errorf("%d elections, %d runs entered and %d running for %d units", elections, entered.Load(), running.Load(), units)
	}
}
