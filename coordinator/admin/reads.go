package admin

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/internal/admin/view"
)

// state is the cluster as one read of the store has shown it. Its fields are shared by calls and never written to.
type state struct {
	snap   *daemon.Snapshot
	status func() view.Status // without what is gone
	all    func() view.Status // with nodes that have left, and units that are no longer declared
}

// of returns the status that a call asks for.
func (s *state) of(all bool) view.Status {
	if all {
		return s.all()
	}
	return s.status()
}

// shared shares a read between calls: many browsers that look at one cluster cost as much as one. A call gets what was
// read since maxAge before it came, and nothing that was read before the last forget.
type shared[T any] struct {
	read   func(context.Context) (T, error)
	maxAge time.Duration

	mu      sync.Mutex
	has     bool
	last    T
	begun   time.Time      // when the read of last began
	running *sharedRead[T] // under way, nil if none is
}

// stateAge is how old a shared state of the cluster may be. It is short for a person, and long for a store.
const stateAge = 250 * time.Millisecond

// partAge is the same for the queues and the outbox.
const partAge = time.Second

// sharedRead is a read that is under way.
type sharedRead[T any] struct {
	done  chan struct{}
	value T
	err   error
}

// get returns what was read.
func (r *shared[T]) get(ctx context.Context) (T, error) {
	r.mu.Lock()
	if r.has && time.Since(r.begun) <= r.maxAge {
		defer r.mu.Unlock()
		return r.last, nil
	}
	f := r.running
	if f == nil {
		f = &sharedRead[T]{done: make(chan struct{})}
		r.running = f
		// Others wait for this read, so it goes on when its first caller has gone. The read is bounded.
		go r.run(context.WithoutCancel(ctx), f)
	}
	r.mu.Unlock()
	select {
	case <-f.done:
		return f.value, f.err
	case <-ctx.Done():
		var none T
		return none, ctx.Err()
	}
}

// run reads for everybody who waits for f.
func (r *shared[T]) run(ctx context.Context, f *sharedRead[T]) {
	begun := time.Now()
	f.value, f.err = r.read(ctx)
	r.mu.Lock()
	if r.running == f {
		r.running = nil
		if f.err == nil {
			r.has, r.last, r.begun = true, f.value, begun
		}
	}
	r.mu.Unlock()
	close(f.done)
}

// forget makes the next call read anew. It is called when something was changed: the caller wants to see the effect.
func (r *shared[T]) forget() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.has, r.running = false, nil
}

// read reads the cluster.
func (a *API) read(ctx context.Context) (*state, error) {
	ctx, cancel := a.bounded(ctx)
	defer cancel()
	snap, err := a.cfg.Store.Snapshot(ctx)
	if err != nil {
		return nil, fmt.Errorf("read the cluster: %w", err)
	}
	schedules := a.readSchedules(ctx)
	of := func(all bool) view.Status {
		s := view.Of(snap, a.reader(all))
		schedules(&s)
		return s
	}
	return &state{
		snap:   snap,
		status: sync.OnceValue(func() view.Status { return of(false) }),
		all:    sync.OnceValue(func() view.Status { return of(true) }),
	}, nil
}

// readSchedules reads the schedules of periodic daemons. It returns a function that adds them to a status, or a notice
// that says why they are not known.
func (a *API) readSchedules(ctx context.Context) func(*view.Status) {
	store, ok := a.cfg.Store.(daemon.StateStore)
	if !ok {
		return func(*view.Status) {}
	}
	states, err := store.UnitStates(ctx, daemon.Unit{})
	if err != nil {
		err = errors.New(a.fault(err).What)
	}
	return func(s *view.Status) { s.AddSchedules(states, err) }
}
