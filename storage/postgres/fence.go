package postgres

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/internal/pgerror"
)

// How a stamp waits for users' transactions; see stampWithRetry.
const (
	longWait  = time.Second            // how long a long attempt waits for the fence; after it, the wait is written as an event
	briefWait = 25 * time.Millisecond  // how long a short attempt waits for the fence
	placeWait = 200 * time.Millisecond // how long a stamp waits for one of the places of long attempts, between two short ones
)

// StampFence implements [storage.Store]. If it still waits for a user's transaction after a second, it
// writes the event fence.waiting and goes on waiting as long as ctx allows.
func (s *Store) StampFence(ctx context.Context, f daemon.Fence) error {
	held, err := s.stampWithRetry(ctx, f)
	if err == nil && !owns(f, held) {
		err = &daemon.StaleError{Fence: f, HeldGeneration: held}
	}
	return s.fail("stamp "+f.String(), err)
}

// stampWithRetry tries until the fence is raised or refused, or until something other than waiting
// fails. The first attempt is sent together with other stamps and does not wait for locks. After
// that it alternates between a short attempt and a long one. Each occupies a connection while it waits
// for the lock, so both need a place: the two groups together have places for at most half of the
// connections, and heartbeats always have the other half.
//
// Two groups are needed because a long attempt may wait in vain. Example: the long places are all taken
// by stamps whose fences are held by transactions that never end. Another fence is freed a second later.
// Its stamp soon gets a short place, because no stamp keeps one for longer than briefWait.
func (s *Store) stampWithRetry(ctx context.Context, f daemon.Fence) (held int64, err error) {
	began := time.Now()
	if held, err = s.stampBatched(ctx, f); err != nil || held >= f.Generation {
		return held, err
	}
	tries := []struct {
		places      chan struct{}
		place, lock time.Duration // the longest waits for a place, and then for the lock
	}{{s.briefWaiters, time.Hour, briefWait}, {s.lockWaiters, placeWait, longWait}}
	for eventWritten := false; ; {
		for _, try := range tries {
			if !s.acquirePlace(ctx, try.places, try.place) {
				continue
			}
			held, err = s.stamp(ctx, f, try.lock)
			<-try.places
			if pgerror.Code(err) != codeLockTimeout {
				return held, err
			}
		}
		switch {
		case ctx.Err() != nil:
			return 0, ctx.Err()
		case s.calls.Err() != nil:
			return 0, errClosed
		case !eventWritten && time.Since(began) >= longWait:
			eventWritten = true
			s.writeWaitingEvent(ctx, f)
		}
	}
}

// acquirePlace waits for a place in a bounded group of stamps. It reports whether it got one.
func (s *Store) acquirePlace(ctx context.Context, places chan struct{}, wait time.Duration) bool {
	late := time.NewTimer(wait)
	defer late.Stop()
	select {
	case places <- struct{}{}:
		return true
	case <-ctx.Done():
	case <-s.calls.Done():
	case <-late.C:
	}
	return false
}

// stamp raises the fence and returns the generation that it holds afterwards.
func (s *Store) stamp(ctx context.Context, f daemon.Fence, wait time.Duration) (held int64, err error) {
	err = s.callWithin(ctx, "stamp", writing, wait, func(m *message) {
		d, i := unitOf(f)
		m.do("stamp_row", d, i)
		m.do("stamp", d, i, f.Generation)
		m.query(number64(&held), "stamped", d, i)
	})
	return held, err
}

// unitOf returns a fence's unit as arguments.
func unitOf(f daemon.Fence) (daemon string, index int) {
	return columns(f.Unit)
}

// writeWaitingEvent writes the event fence.waiting. The event only informs people, so failing to write it
// stops nothing.
func (s *Store) writeWaitingEvent(ctx context.Context, f daemon.Fence) {
	err := s.call(ctx, "fence waiting", writing, func(m *message) {
		d, i := unitOf(f)
		m.do("fence_waiting", d, i, f.Generation)
	})
	if err != nil && ctx.Err() == nil {
		s.cfg.Logger.Warn("a fence stamp waits for a transaction of an earlier run", "fence", f.String(), "error", s.fail("write the event", err))
	}
}

// owns reports whether a run has the fence: it must have stamped it last. A run that has not
// stamped does not own the unit yet, and might read data that an earlier run is still about to
// change. Generation 0 belongs to no run.
func owns(f daemon.Fence, held int64) bool { return held == f.Generation && f.Generation > 0 }

// maxIdle bounds how long a fenced transaction may idle, whatever the validity of the assignment.
const maxIdle = 5 * time.Second

// Fence ties the caller's transaction to a run. It fails with a [daemon.StaleError] unless exactly
// this run has stamped its unit's fence last. Otherwise it holds the fence until the transaction
// ends, so that no later run can stamp the unit before. Call it first in the transaction. Roll back
// a transaction that it refused.
//
// The next run of the unit, and no other call, may have to wait for the transaction. The
// server therefore ends a transaction that has been idle for 5 s, or for the remaining validity of
// the run's assignment if that is shorter (ctx must be that of the run, see [daemon.Validity]). The role of the transaction needs the
// rights of [Roles].App.
func (s *Store) Fence(ctx context.Context, tx pgx.Tx, f daemon.Fence) error {
	what := "fence " + f.String()
	bound := maxIdle
	if validity, ok := daemon.Validity(ctx); ok {
		bound = min(bound, validity)
	}
	if bound < time.Millisecond {
		return fmt.Errorf("%s: the assignment of the run is not valid any more: %w", what, &daemon.StaleError{Fence: f})
	}
	var held int64
	var timeout string
	name, index := unitOf(f)
	err := tx.QueryRow(ctx, s.sql.get("fence"), name, index, bound.Milliseconds()).Scan(&held, &timeout)
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return s.fail(what, err)
	}
	if !owns(f, held) {
		return fmt.Errorf("%s: %w", what, &daemon.StaleError{Fence: f, HeldGeneration: held})
	}
	return nil
}

// Beginner begins transactions: a pgxpool.Pool or a pgx.Conn.
type Beginner interface {
	Begin(ctx context.Context) (pgx.Tx, error)
}

// InTx runs fn in a fenced transaction of the caller's database connections and commits it. For a
// run that was superseded it does not call fn and returns a [daemon.StaleError]. An error of fn
// rolls back.
//
// An error of the commit itself that is [storage.ErrUnavailable] means that the outcome is
// *unknown*: the effects may be there. Read in a new fenced transaction to find out, or make fn
// repeatable.
func (s *Store) InTx(ctx context.Context, pool Beginner, f daemon.Fence, fn func(pgx.Tx) error) error {
	what := "transaction of " + f.String()
	tx, err := pool.Begin(ctx)
	if err != nil {
		return s.fail(what, err)
	}
	defer func() {
		// After a commit there is nothing to roll back. The rollback must be sent even if ctx has
		// ended, because the next run may wait for it.
		over, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.cfg.QueryTimeout)
		defer cancel()
		_ = tx.Rollback(over)
	}()
	if err := s.Fence(ctx, tx, f); err != nil {
		return err
	}
	if err := fn(tx); err != nil {
		return err
	}
	if err := tx.Commit(ctx); err != nil {
		return s.fail(what+": commit", unknown(err))
	}
	return nil
}

// unknown marks a commit's error as one after which the effects may be there, unless the server
// itself said that they are not.
func unknown(err error) error {
	if pgerror.Code(err) != "" || errors.Is(err, pgx.ErrTxCommitRollback) || errors.Is(err, pgx.ErrTxClosed) {
		return err
	}
	return &unavailable{"the outcome is unknown, read again before acting", pgerror.Strip(err, "")}
}
