package coordinator_test

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/emitd/emitd/coordinator"
	"github.com/emitd/emitd/coordinator/coordinatortest"
	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/internal/coordinator/lease"
	"github.com/emitd/emitd/storage"
	"github.com/emitd/emitd/storage/memory"
)

// ok reports whether all checks passed.
func ok(checks map[string]error) bool {
	for _, err := range checks {
		if err != nil {
			return false
		}
	}
	return true
}

// Before Run a node is alive, but neither started nor ready.
func TestHealthBeforeRun(t *testing.T) {
	t.Parallel()
	c, err := coordinator.New(memory.Open(memory.Config{}), coordinator.Config{})
	if err != nil {
		t.Fatal(err)
	}
	if !ok(c.Live()) || ok(c.Started()) || ok(c.Ready(t.Context())) {
		t.Errorf("live %v, started %v, ready %v", c.Live(), c.Started(), c.Ready(t.Context()))
	}
}

// Readiness depends on the store and on a stop, never on leadership. Liveness depends on none of
// them.
func TestHealthFollowsTheStore(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c, taps := tapped(t, coordinatortest.Config{Nodes: 2})
		i := 1 - c.Elect()
		advance(time.Second)
		n := c.Node(i)
		if !ok(n.Live()) || !ok(n.Started()) || !ok(n.Ready(t.Context())) {
			t.Errorf("a follower: live %v, started %v, ready %v", n.Live(), n.Started(), n.Ready(t.Context()))
		}
		taps[i].set(func(ctx context.Context, _ string, _ any, _ error) error { <-ctx.Done(); return ctx.Err() }, nil)
		began := time.Now()
		c.WaitUntil("it is not ready", func() bool { return !ok(n.Ready(t.Context())) })
		if took := time.Since(began); took > 5*lease.Fast().QueryTimeout {
			t.Errorf("it took %v", took)
		}
		advance(time.Minute)
		if !ok(n.Live()) || !ok(n.Started()) {
			t.Errorf("without a store: live %v, started %v", n.Live(), n.Started())
		}
		taps[i].set(nil, nil)
		if !ok(n.Ready(t.Context())) {
			t.Error("the store answers, but it is not ready")
		}
	})
}

// A node that drains is not ready from the first moment on, although the store answers.
func TestDrainingIsNotReady(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := coordinatortest.New(t, coordinatortest.Config{Nodes: 1})
		goOn := make(chan struct{})
		c.Register(daemon.Spec{ID: "acme:x"}, daemon.AgentFunc(func(_ context.Context, a *daemon.Assignment) error {
			<-a.Draining()
			<-goOn
			return nil
		}))
		c.WaitUntil("it runs", func() bool { return c.Holder("acme:x/0") == 0 })
		stopped := make(chan error)
		go func() { stopped <- c.Stop(0) }()
		advance(0)
		checks := c.Node(0).Ready(t.Context())
		if checks["stopping"] == nil || checks["store"] != nil || !ok(c.Node(0).Live()) || !c.Node(0).Status().Stopping {
			t.Errorf("while it drains: ready %v, live %v", checks, c.Node(0).Live())
		}
		close(goOn)
		if err := <-stopped; err != nil {
			t.Error(err)
		}
		if ok(c.Node(0).Live()) {
			t.Error("a stopped coordinator calls itself alive")
		}
	})
}

// However many callers ask whether the store answers, it gets one question at a time. A caller that
// does not want to wait need not.
func TestManyReadinessProbesAreOneQuestion(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c, taps := tapped(t, coordinatortest.Config{})
		c.Elect()
		var requested atomic.Int32
		goOn := make(chan struct{})
		taps[0].set(func(_ context.Context, op string, _ any, _ error) error {
			if op == "events" {
				requested.Add(1)
				<-goOn
			}
			return storage.ErrUnavailable
		}, nil)
		advance(5 * time.Second)
		var results record[bool]
		for range 50 {
			go func() { results.add(ok(c.Node(0).Ready(t.Context()))) }()
		}
		advance(100 * time.Millisecond)
		if requested.Load() != 1 {
			t.Errorf("50 probes asked %d questions", requested.Load())
		}
		impatient, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		defer cancel()
		if err := c.Node(0).Ready(impatient)["store"]; err == nil || !strings.Contains(err.Error(), "not answered yet") {
			t.Errorf("an impatient probe: %v", err)
		}
		advance(2 * lease.Fast().QueryTimeout)
		if results.count(false) != 50 {
			t.Errorf("results: %v", results.all())
		}
		close(goOn)
		advance(0)
		taps[0].set(nil, nil)
	})
}

// A question that the store never answers, whatever its context says, stands in the way of no later one.
func TestAProbeThatIsNeverAnsweredBlocksNoOther(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c, taps := tapped(t, coordinatortest.Config{})
		c.Elect()
		goOn := make(chan struct{})
		var requested atomic.Int32
		taps[0].set(func(_ context.Context, op string, _ any, _ error) error {
			if op != "events" {
				return storage.ErrUnavailable
			}
			if requested.Add(1) == 1 {
				<-goOn
			}
			return nil
		}, nil)
		advance(2*lease.Fast().QueryTimeout + time.Second)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := c.Node(0).Ready(ctx)["store"]; err == nil {
			t.Error("a store that does not answer is reachable")
		}
		if err := c.Node(0).Ready(ctx)["store"]; err != nil {
			t.Errorf("a store that answers: %v", err)
		}
		close(goOn)
		taps[0].set(nil, nil)
	})
}

// Status shows the node's own view.
func TestStatus(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := coordinatortest.New(t, coordinatortest.Config{})
		c.Register(daemon.Spec{ID: "acme:x", Instances: 2}, worker)
		c.WaitUntil("they run", func() bool { return c.Holder("acme:x/0") == 0 && c.Holder("acme:x/1") == 0 })
		s := c.Node(0).Status()
		if s.Cluster != "test" || s.Node.Name != "node-0" || !s.Leading || s.Term.Ordinal != 1 || !s.Registered ||
			s.SinceAnswer > 2*time.Second || s.Trust <= 0 || s.Trust > trustFor() || s.StoreID != "memory" || len(s.Runs) != 2 {
			t.Errorf("%+v", s)
		}
		for i, r := range s.Runs {
			if r.Fence.Unit.Index != i || r.Phase != "running" || r.Trust <= 0 {
				t.Errorf("run %d: %+v", i, r)
			}
		}
	})
}

// A node knows the store's time between two answers, and not before the first.
func TestStoreTime(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := coordinatortest.New(t, coordinatortest.Config{})
		c.Elect()
		advance(300 * time.Millisecond)
		s, err := c.Node(0).Snapshot(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		if now, known := c.Node(0).StoreTime(); !known || now.Sub(s.Now).Abs() > 50*time.Millisecond {
			t.Errorf("the store's time is %v (%v), the store says %v", now, known, s.Now)
		}
		fresh, err := coordinator.New(memory.Open(memory.Config{}), coordinator.Config{})
		if err != nil {
			t.Fatal(err)
		}
		if _, known := fresh.StoreTime(); known {
			t.Error("a node that has heard nothing knows the store's time")
		}
	})
}
