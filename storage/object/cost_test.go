package object_test

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"slices"
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
	"github.com/emitd/emitd/storage"
	"github.com/emitd/emitd/storage/blob"
	"github.com/emitd/emitd/storage/object"
)

// meter counts the requests of a bucket by method and kind of object.
type meter struct {
	mu    sync.Mutex
	calls map[string]int
}

func (m *meter) see(call mem.Call) time.Duration {
	kind, _, _ := strings.Cut(call.Key, "/")
	if strings.HasPrefix(call.Key, "in/n/") {
		kind = "in/n"
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.calls == nil {
		m.calls = map[string]int{}
	}
	m.calls[string(call.Op)+" "+kind]++
	return 50 * time.Millisecond
}

func (m *meter) reset() map[string]int {
	m.mu.Lock()
	defer m.mu.Unlock()
	defer func() { m.calls = nil }()
	return m.calls
}

// price is what S3 charges in a month for these requests of an hour, in dollars.
func price(calls map[string]int) float64 {
	var sum float64
	for name, n := range calls {
		each := 0.4e-6
		if !strings.HasPrefix(name, "read") {
			each = 5e-6
		}
		sum += each * float64(n) * 730
	}
	return sum
}

// wire is a node's connection to the bucket; it can be cut.
type wire struct {
	blob.Bucket
	cut atomic.Bool
}

var errCut = fmt.Errorf("the line is cut: %w", blob.ErrUnavailable)

func (w *wire) Read(ctx context.Context, key string) (*blob.Object, error) {
	if w.cut.Load() {
		return nil, errCut
	}
	return w.Bucket.Read(ctx, key)
}

func (w *wire) ReadNewer(ctx context.Context, key string, known blob.Version) (*blob.Object, error) {
	if w.cut.Load() {
		return nil, errCut
	}
	return w.Bucket.ReadNewer(ctx, key, known)
}

func (w *wire) Replace(ctx context.Context, key string, data []byte, old blob.Version) (blob.Version, error) {
	if w.cut.Load() {
		return "", errCut
	}
	return w.Bucket.Replace(ctx, key, data, old)
}

// nodes runs whole nodes on a bucket, in virtual time, until the test ends, and returns their
// connections.
func nodes(t *testing.T, bucket *mem.Bucket, profile string, n int) []*wire {
	t.Helper()
	began := time.Now()
	ctx, stop := context.WithCancel(context.Background())
	wires := make([]*wire, n)
	var running sync.WaitGroup
	for i := range n {
		wires[i] = &wire{Bucket: bucket}
		c, err := coordinator.New(open(t, wires[i], object.Config{}), coordinator.Config{
			Cluster: "test", Profile: profile, Node: node.Identity{Name: fmt.Sprintf("node-%d", i)},
			Clock:  func() time.Duration { return time.Since(began) + time.Hour },
			Logger: slog.New(slog.DiscardHandler),
		})
		if err != nil {
			t.Fatal(err)
		}
		for _, id := range []daemon.ID{"acme:a", "acme:b", "acme:c"} {
			if err := c.Register(daemon.Spec{ID: id}, waits); err != nil {
				t.Fatal(err)
			}
		}
		running.Go(func() {
			if err := c.Run(ctx); err != nil && !wires[i].cut.Load() {
				t.Errorf("node-%d: %v", i, err)
			}
		})
	}
	t.Cleanup(func() {
		stop()
		running.Wait()
	})
	return wires
}

// waits is an agent that does nothing until it is asked to stop.
var waits = daemon.AgentFunc(func(ctx context.Context, a *daemon.Assignment) error {
	select {
	case <-a.Draining():
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
})

// TestCost runs whole nodes for an hour without changes, and counts the requests. The table in the
// package comment has these numbers.
func TestCost(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		profile        string
		nodes          int
		interval, span time.Duration
		most           int // requests an hour
	}{
		{coordinator.ProfileDefault, 3, 15 * time.Second, time.Hour, 2100},
		{coordinator.ProfileDefault, 10, 15 * time.Second, 20 * time.Minute, 9000},
		{coordinator.ProfileFast, 3, time.Second, 4 * time.Minute, 33_000},
	} {
		t.Run(fmt.Sprintf("%s, %d nodes", tt.profile, tt.nodes), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				m := &meter{}
				nodes(t, mem.New(mem.Config{Latency: m.see}), tt.profile, tt.nodes)
				<-time.After(5 * time.Minute)
				m.reset()
				<-time.After(tt.span)
				calls, sum := m.reset(), 0
				for _, name := range slices.Sorted(maps.Keys(calls)) {
					calls[name] = int(float64(calls[name]) * float64(time.Hour) / float64(tt.span))
					t.Logf("%6d %s", calls[name], name)
					sum += calls[name]
				}
				t.Logf("%6d requests an hour, $%.2f a month", sum, price(calls))
				if beats := int(time.Hour / tt.interval); calls["replace cluster"] > beats*6/5 {
					t.Errorf("%d writes of the cluster object, %d beats of its leader", calls["replace cluster"], beats)
				}
				if sum > tt.most {
					t.Errorf("%d requests, want at most %d", sum, tt.most)
				}
			})
		})
	}
}

// TestIdleHeartbeat: a heartbeat costs two requests, however many events about other things, in
// however many segments, follow the newest event about members.
func TestIdleHeartbeat(t *testing.T) {
	t.Parallel()
	m := &meter{}
	store := mem.New(mem.Config{Latency: func(c mem.Call) time.Duration { m.see(c); return 0 }})
	leader, p := start(t, store, 0).lead(), start(t, store, 1)
	for i := range 2*object.PerSegment + 1 {
		if _, err := leader.s.Submit(t.Context(), storage.Command{ID: fmt.Sprint(i), Kind: daemon.CommandResign, Term: 1}); err != nil {
			t.Fatal(err)
		}
	}
	if len(segments(t, store)) == 0 {
		t.Fatal("no segment was written")
	}
	cursor := p.beat(func(h *storage.Heartbeat) { h.EventsAfter = 0 }).Events[1].Seq
	m.reset()
	p.beat(func(h *storage.Heartbeat) { h.EventsAfter = cursor })
	if calls := m.reset(); !maps.Equal(calls, map[string]int{"replace in/n": 1, "read newer cluster": 1}) {
		t.Errorf("a heartbeat costs %v", calls)
	}
	start(t, store, 2) // news
	if r := p.beat(func(h *storage.Heartbeat) { h.EventsAfter = cursor }); len(r.Events) != 1 || r.EventsMissing {
		t.Errorf("told %d events of members, behind %v", len(r.Events), r.EventsMissing)
	}
}
