package postgres

import (
	"context"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/storage"
)

// SweepNodes implements [storage.Sweeper]. Adverts that no row names any more are deleted after the
// tombstones, in a transaction of their own, because a registration locks the advert before its
// row.
func (s *Store) SweepNodes(ctx context.Context, fence daemon.Fence, age time.Duration, limit int) (int, error) {
	n, err := s.sweep(ctx, fence, "nodes", func(m *message, run []any, n *int64) {
		m.count(receiveCount(n), "sweep_nodes", append(run, micros(age), max(limit, 0))...)
	})
	if err == nil {
		_, err = s.sweep(ctx, fence, "adverts", func(m *message, run []any, _ *int64) { m.do("sweep_adverts", run...) })
	}
	return n, err
}

// SweepEvents implements [storage.Sweeper].
func (s *Store) SweepEvents(ctx context.Context, fence daemon.Fence, keep storage.Retention, limit int) (int, error) {
	n, err := s.sweep(ctx, fence, "events", func(m *message, run []any, n *int64) {
		m.do("counter_lock")
		m.query(number64(n), "sweep_events", append(run, micros(keep.Age), max(keep.MaxEvents, 0), max(limit, 0), max(keep.MinEvents, 0))...)
	})
	if err != nil || n >= limit {
		return n, err
	}
	done, err := s.sweep(ctx, fence, "commands", func(m *message, run []any, done *int64) {
		m.count(receiveCount(done), "sweep_commands", append(run, micros(keep.Age), limit-n)...)
	})
	return n + done, err
}

// SweepLocks implements [storage.Sweeper].
func (s *Store) SweepLocks(ctx context.Context, fence daemon.Fence, age time.Duration, limit int) (int, error) {
	return s.sweep(ctx, fence, "locks", func(m *message, run []any, n *int64) {
		m.query(number64(n), "sweep_locks", append(run, micros(age), max(limit, 0))...)
	})
}

// sweep runs one step behind its fence: without the fence its statements do nothing, and the
// sweeper's next run waits for the step. step gets the run as arguments: daemon, index, generation.
func (s *Store) sweep(ctx context.Context, f daemon.Fence, what string, step func(m *message, run []any, n *int64)) (int, error) {
	var n, held int64
	err := s.call(ctx, "sweep "+what, writing, func(m *message) {
		d, i := unitOf(f)
		m.query(number64(&held), "hold_fence", d, i)
		step(m, []any{d, i, f.Generation}, &n)
	})
	if err == nil && !owns(f, held) {
		err = &daemon.StaleError{Fence: f, HeldGeneration: held}
	}
	if err != nil {
		return 0, s.fail("sweep "+what, err)
	}
	return int(n), nil
}

// receiveCount receives the number of affected rows.
func receiveCount(n *int64) func(int64) { return func(count int64) { *n = count } }

// number64 receives one number.
func number64(n *int64) func(*composite) error {
	return func(c *composite) error {
		*n = c.int()
		return nil
	}
}
