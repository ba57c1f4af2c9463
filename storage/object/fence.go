package object

import (
	"context"
	"sync"
	"time"

	"github.com/emitd/emitd/daemon"
)

// stampQueue holds the stamps of this process that wait for a write of the cluster object. Whoever
// begins a write takes along all that wait: a node that starts many runs at once writes once.
type stampQueue struct {
	turn    chan struct{} // held by who writes stamps
	mu      sync.Mutex
	waiting []*stamping
}

// stamping is one stamp that waits. Done and err are set by the write that took it along, before the
// turn is given on.
type stamping struct {
	fence daemon.Fence
	done  bool
	err   error
}

// stamp raises a unit's fence, which only grows, and only so.
func (s *Store) stamp(ctx context.Context, f daemon.Fence) error {
	own := &stamping{fence: f}
	q := &s.stamps
	q.add(own)
	select {
	case q.turn <- struct{}{}:
		defer func() { <-q.turn }()
	case <-ctx.Done():
		q.drop(own)
		return ctx.Err()
	}
	if own.done {
		return own.err
	}
	defer q.drop(own)
	all := q.list()
	_, err := s.run(ctx, step{apply: func(c *cluster, _ time.Time) (bool, error) { return c.stamp(all), nil }})
	if err != nil {
		return err // of this call: the others try for themselves
	}
	for _, st := range all {
		st.done = true
		q.drop(st)
	}
	return own.err
}

// stamp raises the fences of all that wait, tells each what became of it, and reports whether anything
// has changed.
func (c *cluster) stamp(all []*stamping) (changed bool) {
	for _, st := range all {
		if f := st.fence; f.Generation > c.Fences[f.Unit] {
			c.Fences[f.Unit], changed = f.Generation, true
		}
		st.err = nil
	}
	for _, st := range all { // after the highest of one unit is in place
		st.err = c.checkFence(st.fence)
	}
	return changed
}

func (q *stampQueue) add(st *stamping) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.waiting = append(q.waiting, st)
}

func (q *stampQueue) list() []*stamping {
	q.mu.Lock()
	defer q.mu.Unlock()
	return append([]*stamping(nil), q.waiting...)
}

func (q *stampQueue) drop(gone *stamping) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for i, st := range q.waiting {
		if st == gone {
			q.waiting = append(q.waiting[:i:i], q.waiting[i+1:]...)
			return
		}
	}
}

// checkFence accepts the run that has stamped the unit's fence last, and no other: a lower
// generation was overtaken, a higher one has not claimed yet. Generation 0 is nobody's.
func (c *cluster) checkFence(f daemon.Fence) error {
	if held := c.Fences[f.Unit]; held != f.Generation || f.Generation <= 0 {
		return &daemon.StaleError{Fence: f, Holds: held}
	}
	return nil
}
