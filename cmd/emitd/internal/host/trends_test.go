package host

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.opentelemetry.io/otel/metric"

	"github.com/emitd/emitd/cmd/emitd/internal/backend"
	"github.com/emitd/emitd/cmd/emitd/internal/telemetry"
	"github.com/emitd/emitd/cmd/emitd/internal/trend"
	"github.com/emitd/emitd/coordinator/admin"
	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/internal/access"
	"github.com/emitd/emitd/node"
	"github.com/emitd/emitd/storage"
)

// members is a store with nodes.
type members struct {
	storage.Store
	nodes []node.Member
}

// Snapshot implements [storage.Store].
func (m *members) Snapshot(context.Context) (*daemon.Snapshot, error) {
	return &daemon.Snapshot{Nodes: m.nodes}, nil
}

// measuring is a process that measures, and answers others.
type measuring struct {
	*trends
	server *httptest.Server
	calls  atomic.Int64
	dead   atomic.Bool
}

func newMeasuring(t *testing.T, store *members, name string) *measuring {
	t.Helper()
	tel, err := telemetry.New(t.Context(), telemetry.Options{Cluster: "test", Handler: quiet.Handler()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tel.Close(context.Background()) })
	h := &host{tel: tel, log: quiet, guard: &guard{}, up: Running{Store: &backend.Store{Store: store}}}
	h.guard.id.Store(&identity{})
	m := &measuring{trends: newTrends(h)}
	h.trends = m.trends
	m.server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		m.calls.Add(1)
		if m.dead.Load() || r.Header.Get("Authorization") != "Bearer "+token {
			http.Error(w, "gone", http.StatusServiceUnavailable)
			return
		}
		m.serve(w, r)
	}))
	t.Cleanup(m.server.Close)
	h.up.Advertised = strings.TrimPrefix(m.server.URL, "http://")
	store.nodes = append(store.nodes, node.Member{Identity: node.Identity{Name: name}, Traits: node.Traits{Address: h.up.Advertised}, State: node.Live})
	return m
}

// shown returns what a caller is shown, and how many points it has.
func (m *measuring) shown(t *testing.T, caller *access.Caller) (*admin.Trends, int) {
	t.Helper()
	r := httptest.NewRequest(http.MethodGet, "/", nil)
	r.Header.Set("Authorization", "Bearer "+token)
	if caller != nil {
		r = r.WithContext(withCaller(r.Context(), caller))
	}
	out, err := m.show(r, "", "")
	if err != nil {
		t.Fatal(err)
	}
	points := 0
	for _, l := range out.Trends {
		for _, v := range l.Points {
			if v != nil {
				points++
			}
		}
	}
	return out, points
}

// TestTrendsOfAll: a process that is asked has what others have measured, asks each step once, and still has it when the
// other one is gone.
func TestTrendsOfAll(t *testing.T) {
	t.Parallel()
	store := &members{}
	a, b := newMeasuring(t, store, "a"), newMeasuring(t, store, "b")
	heartbeats, err := b.h.tel.Meter.Meter("test").Float64Histogram("emitd.node.heartbeat.duration", metric.WithUnit("s"), metric.WithExplicitBucketBoundaries(0.1, 1))
	if err != nil {
		t.Fatal(err)
	}
	heartbeats.Record(t.Context(), 0.25)
	now := time.Now()
	a.sample(now)
	b.sample(now)
	got, points := a.shown(t, nil)
	if got.Nodes != 2 || len(got.Missing) != 0 || points != 3 || got.Step != trend.Step {
		t.Errorf("%d processes, without %v, %d points", got.Nodes, got.Missing, points)
	}
	if _, points := a.shown(t, nil); points != 3 || b.calls.Load() != 1 {
		t.Errorf("within a step: %d points, %d calls", points, b.calls.Load())
	}
	b.dead.Store(true)
	a.gathered = time.Time{}
	if got, points := a.shown(t, nil); got.Nodes != 1 || len(got.Missing) != 1 || got.Missing[0] != "b" || points != 3 {
		t.Errorf("after b has gone: %d processes, without %v, %d points", got.Nodes, got.Missing, points)
	}
}

// TestTrendsAfterACallerHasGone: a caller that goes while others are asked does not leave the next one without them.
func TestTrendsAfterACallerHasGone(t *testing.T) {
	t.Parallel()
	store := &members{}
	a := newMeasuring(t, store, "a")
	newMeasuring(t, store, "b")
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := a.show(httptest.NewRequestWithContext(gone, http.MethodGet, "/", nil), "", ""); err != nil {
		t.Fatal(err)
	}
	if got, _ := a.shown(t, nil); got.Nodes != 2 || len(got.Missing) != 0 {
		t.Errorf("%d processes, without %v", got.Nodes, got.Missing)
	}
}

// TestOthersWhileTrendsAreGathered: whoever signs out asks for the other nodes, while trends are fetched from them. With
// the race detector, this fails if the two share anything.
func TestOthersWhileTrendsAreGathered(t *testing.T) {
	t.Parallel()
	store := &members{}
	a := newMeasuring(t, store, "a")
	newMeasuring(t, store, "b")
	var shown sync.WaitGroup
	shown.Go(func() { a.shown(t, nil) })
	others, err := a.h.others(t.Context())
	if err != nil || len(others) != 1 || others[0].Name != "b" {
		t.Errorf("%v, %v", others, err)
	}
	shown.Wait()
}

// TestTrendsOfOneQueue: who may not read everything gets what the node itself has, and no call is made for that caller.
func TestTrendsOfOneQueue(t *testing.T) {
	t.Parallel()
	store := &members{}
	a, b := newMeasuring(t, store, "a"), newMeasuring(t, store, "b")
	b.sample(time.Now())
	if got, points := a.shown(t, &access.Caller{Name: "limited"}); got.Nodes != 1 || points != 0 || b.calls.Load() != 0 {
		t.Errorf("%d processes, %d points, %d calls", got.Nodes, points, b.calls.Load())
	}
}
