package coordinator_test

import (
	"context"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/emitd/emitd/coordinator"
	"github.com/emitd/emitd/coordinator/coordinatortest"
	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/storage"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// bubble runs a test in virtual time.
func bubble(t *testing.T, story func(t *testing.T)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, story)
}

// advance lets virtual time pass.
func advance(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

// record is a list that many goroutines append to.
type record[T comparable] struct {
	mu   sync.Mutex
	list []T
}

func (r *record[T]) add(v T) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.list = append(r.list, v)
}

func (r *record[T]) all() []T {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.list)
}

func (r *record[T]) count(v T) (n int) {
	for _, w := range r.all() {
		if w == v {
			n++
		}
	}
	return n
}

func (r *record[T]) want(t *testing.T, what string, want ...T) {
	t.Helper()
	if got := r.all(); !slices.Equal(got, want) {
		t.Errorf("%s: got %v, want %v", what, got, want)
	}
}

// worker is an agent that finishes at once when it drains.
var worker = daemon.AgentFunc(func(ctx context.Context, a *daemon.Assignment) error {
	select {
	case <-a.Draining():
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
})

// tap intercepts every call of a node to the store, and may stop or change it.
type tap struct {
	storage.Store
	mu sync.Mutex
	// before is called with the name of the method and its request. If it returns an error, the
	// caller gets that and the call is not made. after is called with the store's own answer and
	// returns what the caller gets. Nil is skipped.
	before, after func(ctx context.Context, op string, request any, err error) error
}

func (tp *tap) set(before, after func(ctx context.Context, op string, request any, err error) error) {
	tp.mu.Lock()
	defer tp.mu.Unlock()
	tp.before, tp.after = before, after
}

func (tp *tap) call(ctx context.Context, op string, request any, f func() error) error {
	tp.mu.Lock()
	before, after := tp.before, tp.after
	tp.mu.Unlock()
	if before != nil {
		if err := before(ctx, op, request, nil); err != nil {
			return err
		}
	}
	err := f()
	if after != nil {
		err = after(ctx, op, request, err)
	}
	return err
}

func (tp *tap) Heartbeat(ctx context.Context, b storage.Heartbeat) (r *storage.Reply, err error) {
	err = tp.call(ctx, "heartbeat", b, func() error { r, err = tp.Store.Heartbeat(ctx, b); return err })
	return r, err
}

func (tp *tap) Report(ctx context.Context, rep storage.Report) (o []storage.Outcome, err error) {
	err = tp.call(ctx, "report", rep, func() error { o, err = tp.Store.Report(ctx, rep); return err })
	return o, err
}

func (tp *tap) Leave(ctx context.Context, l storage.Leave) error {
	return tp.call(ctx, "leave", l, func() error { return tp.Store.Leave(ctx, l) })
}

func (tp *tap) Commit(ctx context.Context, c storage.Commit) (o []storage.Outcome, err error) {
	err = tp.call(ctx, "commit", c, func() error { o, err = tp.Store.Commit(ctx, c); return err })
	return o, err
}

func (tp *tap) Snapshot(ctx context.Context) (s *daemon.Snapshot, err error) {
	err = tp.call(ctx, "snapshot", nil, func() error { s, err = tp.Store.Snapshot(ctx); return err })
	return s, err
}

func (tp *tap) StampFence(ctx context.Context, f daemon.Fence) error {
	return tp.call(ctx, "stamp", f, func() error { return tp.Store.StampFence(ctx, f) })
}

func (tp *tap) Events(ctx context.Context, after int64, limit int) (p *storage.EventPage, err error) {
	err = tp.call(ctx, "events", after, func() error { p, err = tp.Store.Events(ctx, after, limit); return err })
	return p, err
}

func (tp *tap) Watch(ctx context.Context, wake func(storage.WakeUp)) error {
	return tp.Store.(storage.Watcher).Watch(ctx, wake)
}

// tapped is a cluster whose nodes' calls are intercepted.
func tapped(t *testing.T, cfg coordinatortest.Config) (*coordinatortest.Cluster, []*tap) {
	t.Helper()
	var taps []*tap
	cfg.Wrap = func(_ int, s storage.Store) storage.Store {
		tp := &tap{Store: s}
		taps = append(taps, tp)
		return tp
	}
	return coordinatortest.New(t, cfg), taps
}

// follow collects a node's transitions until the test ends.
func follow(t *testing.T, c *coordinator.Coordinator) *record[coordinator.Transition] {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	r := &record[coordinator.Transition]{}
	done := make(chan struct{})
	seq := c.Subscribe(ctx)
	go func() {
		defer close(done)
		for tr := range seq {
			r.add(tr)
		}
	}()
	t.Cleanup(func() { cancel(); <-done })
	return r
}

// leads returns the Leading field of each transition.
func leads(r *record[coordinator.Transition]) (out []bool) {
	for _, tr := range r.all() {
		out = append(out, tr.Leading)
	}
	return out
}
