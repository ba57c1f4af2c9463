package object_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/emitd/emitd/coordinator"
	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/internal/coordinator/lease"
	"github.com/emitd/emitd/internal/storage/mem"
	"github.com/emitd/emitd/node"
	"github.com/emitd/emitd/storage/object"
)

// guest is a node whose run and connection to the bucket a test can end.
type guest struct {
	*coordinator.Coordinator
	wire *wire
	stop context.CancelFunc
	over chan error
}

// enter starts a node with profile fast and four instances of a daemon.
func enter(t *testing.T, bucket *mem.Bucket, name string, edits ...func(*coordinator.Config)) *guest {
	t.Helper()
	began := time.Now()
	g := &guest{wire: &wire{Bucket: bucket}, over: make(chan error, 1)}
	cfg := coordinator.Config{
		Cluster: "test", Profile: coordinator.ProfileFast, Node: node.Identity{Name: name},
		Clock:  func() time.Duration { return time.Since(began) + time.Hour },
		Logger: slog.New(slog.DiscardHandler),
	}
	for _, edit := range edits {
		edit(&cfg)
	}
	var err error
	if g.Coordinator, err = coordinator.New(open(t, g.wire, object.Config{}), cfg); err != nil {
		t.Fatal(err)
	}
	if err := g.Register(daemon.Spec{ID: "acme:a", Instances: 4}, waits); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	g.stop = stop
	go func() { g.over <- g.Run(ctx) }()
	return g
}

// end stops the node and returns what its Run returned.
func (g *guest) end() error {
	g.stop()
	err := <-g.over
	g.over <- err
	return err
}

// full starts as many nodes with profile fast as a bucket of 50 ms a request can carry, and waits until they run.
func full(t *testing.T) (*mem.Bucket, []*guest) {
	t.Helper()
	bucket := mem.New(mem.Config{Latency: mem.Constant(50 * time.Millisecond)})
	var all []*guest
	for i := range 8 {
		all = append(all, enter(t, bucket, fmt.Sprintf("node-%d", i)))
	}
	<-time.After(20 * time.Second)
	return bucket, all
}

// A node on another host replaces a killed one as soon as the killed one's row no longer counts. A node that starts
// before another leaves, as in a rolling deploy, waits for that one's place and then runs. The others go on.
func TestNodeWaitsForRoom(t *testing.T) {
	t.Parallel()
	for name, vacate := range map[string]func(g *guest){
		"killed":  func(g *guest) { g.wire.cut.Store(true) },
		"stopped": func(g *guest) { g.stop() },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				bucket, all := full(t)
				next := enter(t, bucket, "next")
				<-time.After(3 * time.Second)
				if name == "killed" {
					vacate(all[7])
				}
				if ready := next.Ready(t.Context()); ready["heartbeat"] != nil || ready["store"] != nil {
					t.Errorf("it is not ready while it waits, and a rolling deploy would stand still: %v", ready)
				}
				if next.Degraded()["room"] == nil || next.Status().Registered {
					t.Errorf("while it waits: %v, %+v", next.Degraded(), next.Status())
				}
				if name == "stopped" {
					vacate(all[7])
				}
				<-time.After(15 * time.Second)
				if !next.Status().Registered || len(next.over) > 0 {
					t.Errorf("the next node has not joined: %+v", next.Status())
				}
				for i, g := range append(all[:7:7], next) {
					if err := g.end(); err != nil {
						t.Errorf("node %d: %v", i, err)
					}
				}
				all[7].stop()
				<-all[7].over
			})
		})
	}
}

// All nodes are killed at once, and as many start on other hosts. No node is left to remove the rows of the killed
// ones, but these rows no longer count.
func TestRoomAfterAllWereKilled(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		bucket, all := full(t)
		for _, g := range all {
			g.wire.cut.Store(true)
		}
		var next []*guest
		for i := range 8 {
			next = append(next, enter(t, bucket, fmt.Sprintf("next-%d", i)))
		}
		<-time.After(18 * time.Second)
		for _, g := range next {
			if !g.Status().Registered {
				t.Errorf("%s has not joined", g.Node().Name)
			}
			if err := g.end(); err != nil {
				t.Error(err)
			}
		}
		for _, g := range all {
			g.stop()
			<-g.over
		}
	})
}

// A node for which there is no room waits for the time in which a dead or leaving node's place may become free.
// Then it ends with the figures, and has written nothing.
func TestNoRoom(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		bucket, all := full(t)
		last := enter(t, bucket, "last")
		err := <-last.over
		var slow *coordinator.SlowStoreError
		if !errors.As(err, &slow) || slow.Nodes != 9 {
			t.Errorf("it ended with %v", err)
		}
		page, err := open(t, bucket, object.Config{}).Events(t.Context(), 0, 1000)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range page.Events {
			if e.Node == "last" {
				t.Errorf("the history has %+v", e)
			}
		}
		for _, g := range all {
			if err := g.end(); err != nil {
				t.Error(err)
			}
		}
	})
}

// If a bucket becomes slow while nodes run, the log says so once, and so do the checks, the metrics and the rows.
func TestBucketThatBecomesSlow(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var latency atomic.Int64
		latency.Store(int64(40 * time.Millisecond))
		bucket := mem.New(mem.Config{Latency: func(mem.Call) time.Duration { return time.Duration(latency.Load()) }})
		reader, printed := metric.NewManualReader(), &bytes.Buffer{}
		all := []*guest{enter(t, bucket, "node-0", func(cfg *coordinator.Config) {
			cfg.MeterProvider = metric.NewMeterProvider(metric.WithReader(reader))
			cfg.Logger = slog.New(slog.NewTextHandler(printed, nil))
		})}
		for i := range 2 {
			all = append(all, enter(t, bucket, fmt.Sprint("other-", i)))
		}
		expect := func(when string, slow bool, change time.Duration) {
			t.Helper()
			if err := all[0].Degraded()["room"]; (err != nil) != slow {
				t.Errorf("%s: the check says %v", when, err)
			}
			got := gauges(t, reader)
			limit := lease.Fast().AcknowledgeTimeout / 18
			if got["emitd.store.change.duration"] != change.Seconds() || got["emitd.store.change.limit"] != limit.Seconds() {
				t.Errorf("%s: the metrics are %v, want %v of %v", when, got, change, limit)
			}
			snap, err := open(t, bucket, object.Config{}).Snapshot(t.Context())
			if err != nil || len(snap.Nodes) != 3 || snap.Nodes[0].ChangeTime != change {
				t.Errorf("%s: %v, %+v", when, err, snap)
			}
		}
		<-time.After(20 * time.Second)
		expect("at 40 ms", false, 80*time.Millisecond)
		latency.Store(int64(150 * time.Millisecond))
		<-time.After(5 * time.Minute)
		expect("at 150 ms", true, 300*time.Millisecond)
		for _, g := range all {
			if err := g.end(); err != nil {
				t.Error(err)
			}
		}
		if n := strings.Count(printed.String(), "too slow for the timings"); n != 1 || !strings.Contains(printed.String(), "3 nodes need query_timeout 450ms") {
			t.Errorf("told %d times:\n%s", n, printed)
		}
	})
}

// gauges reads the gauges of package coordinator by name.
func gauges(t *testing.T, r metric.Reader) map[string]float64 {
	t.Helper()
	var all metricdata.ResourceMetrics
	if err := r.Collect(t.Context(), &all); err != nil {
		t.Fatal(err)
	}
	out := map[string]float64{}
	for _, scope := range all.ScopeMetrics {
		for _, m := range scope.Metrics {
			if g, ok := m.Data.(metricdata.Gauge[float64]); ok && len(g.DataPoints) == 1 {
				out[m.Name] = g.DataPoints[0].Value
			}
		}
	}
	return out
}
