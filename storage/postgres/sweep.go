package postgres

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/emitd/emitd/daemon"
)

// SweepNodes implements [storage.Sweeper]. Texts that no row advertises go with the tombstones,
// in a transaction of their own: a registration locks a text before its row.
func (s *Store) SweepNodes(ctx context.Context, fence daemon.Fence, age time.Duration, limit int) (int, error) {
	n, err := s.sweep(ctx, fence, "nodes", func(q *query, row []any, n *int) {
		q.add("sweep_nodes", append(row, micros(age), max(limit, 0))...).Exec(affected(n))
	})
	if err == nil && n > 0 {
		_, err = s.sweep(ctx, fence, "adverts", func(q *query, row []any, _ *int) { q.add("sweep_adverts", row...) })
	}
	return n, err
}

// SweepEvents implements [storage.Sweeper].
func (s *Store) SweepEvents(ctx context.Context, fence daemon.Fence, age time.Duration, keep, limit int) (int, error) {
	n, err := s.sweep(ctx, fence, "events", func(q *query, row []any, n *int) {
		q.add("counter_lock")
		q.add("sweep_events", append(row, micros(age), max(keep, 0), max(limit, 0))...).Query(count(n))
	})
	if err != nil || n >= limit {
		return n, err
	}
	done, err := s.sweep(ctx, fence, "commands", func(q *query, row []any, done *int) {
		q.add("sweep_commands", append(row, micros(age), limit-n)...).Exec(affected(done))
	})
	return n + done, err
}

// SweepLocks implements [storage.Sweeper].
func (s *Store) SweepLocks(ctx context.Context, fence daemon.Fence, age time.Duration, limit int) (int, error) {
	return s.sweep(ctx, fence, "locks", func(q *query, row []any, n *int) {
		q.add("sweep_locks", append(row, micros(age), max(limit, 0))...).Query(count(n))
	})
}

// sweep runs one step behind its fence: statements do nothing without it, and the sweeper's
// successor waits for the step.
func (s *Store) sweep(ctx context.Context, f daemon.Fence, what string, step func(q *query, row []any, n *int)) (int, error) {
	var n int
	var held int64
	err := s.call(ctx, "sweep "+what, writing, func(q *query) {
		q.sweepFence(f, &held)
		step(q, []any{string(f.Unit.Daemon), f.Unit.Index, f.Generation}, &n)
	})
	if err == nil && !owns(f, held) {
		err = &daemon.StaleError{Fence: f, Holds: held}
	}
	if err != nil {
		return 0, s.fail("sweep "+what, err)
	}
	return n, nil
}

func affected(n *int) func(pgconn.CommandTag) error {
	return func(tag pgconn.CommandTag) error {
		*n = int(tag.RowsAffected())
		return nil
	}
}

func count(n *int) func(pgx.Rows) error {
	var found bool
	return one(&found, n)
}
