package postgres

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/emitd/emitd/internal/backoff"
	"github.com/emitd/emitd/outbox/sink"
)

// Two transactions may be in conflict although nothing is wrong with their messages: they deadlock, or the
// isolation level is serializable. The database rolls one of them back. The sink repeats it at once, as often
// as Config.Timeout allows, and no message counts an attempt.
//
// The sink does not know the rows that a user's statement or trigger writes, so it cannot put their locks into
// one order. Deliveries that had a conflict would soon have the next, and a deadlock costs a second (the
// database's deadlock_timeout). So after a conflict the sink delivers alone for aloneFor: each transaction
// begins with a lock on the table of fences that excludes all other deliveries, also those of other
// processes and subscriptions. Then only writers other than the sink can be in the way.

const (
	// aloneFor is how long a sink delivers alone after a conflict.
	aloneFor = time.Minute
	// excludeWait bounds the wait for the others to end. A delivery that hangs must not hold up all others.
	excludeWait = time.Second
)

// repetitions are the pauses before a transaction is repeated that was in conflict. The first repetition
// follows at once.
var repetitions = backoff.Policy{First: 5 * time.Millisecond, Limit: time.Second}

// inTx runs f in a transaction of limited duration, and classifies its error.
func (s *Sink) inTx(ctx context.Context, what string, f func(ctx context.Context, tx pgx.Tx) error) error {
	ctx, cancel := sink.WithDeadline(ctx, sink.TimeoutError{What: "the database", After: s.cfg.Timeout})
	defer cancel()
	if err := s.prepare(ctx); err != nil {
		return classify(ctx, "create the tables", err)
	}
	var last error // the conflict before this attempt
	for conflicts := 0; ; conflicts++ {
		err := s.once(ctx, what, f)
		if !conflict(err) {
			err = classify(ctx, what, err)
			if err != nil && last != nil && ctx.Err() != nil { // time ran out because of the conflicts
				err = fmt.Errorf("%w, and before: %s", err, classify(ctx, what, last).Error())
			}
			return err
		}
		last = err
		s.conflictNow()
		if conflicts > 0 && backoff.Sleep(ctx, repetitions.Jittered(conflicts)) != nil || ctx.Err() != nil {
			return classify(ctx, what, err)
		}
	}
}

// conflict reports whether a transaction failed only because of concurrent transactions. It was rolled
// back, and should be repeated at once.
func conflict(err error) bool {
	pg, _ := errors.AsType[*pgconn.PgError](err)
	return pg != nil && (pg.Code == "40001" || pg.Code == "40P01")
}

func (s *Sink) conflictNow() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.aloneUntil = time.Now().Add(aloneFor)
}

func (s *Sink) alone() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return time.Now().Before(s.aloneUntil)
}

// once runs f in one transaction, alone if there was a conflict.
func (s *Sink) once(ctx context.Context, what string, f func(ctx context.Context, tx pgx.Tx) error) error {
	conn, err := s.pool.Acquire(ctx)
	if err != nil {
		if ctx.Err() != nil && errors.Is(err, context.Canceled) {
			return fmt.Errorf("%s: not attempted: %w", what, context.Cause(ctx))
		}
		return sink.Down("connect", withoutConfig(ctx, err))
	}
	defer conn.Release()
	if s.alone() {
		err := pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
			if err := s.excludeOthers(ctx, tx); err != nil {
				return err
			}
			return f(ctx, tx)
		})
		if _, busy := errors.AsType[busyError](err); !busy {
			return err
		}
	}
	return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error { return f(ctx, tx) })
}

// busyError says that other deliveries did not end within excludeWait.
type busyError struct{ error }

// excludeOthers excludes other deliveries until the transaction ends. The statements have no snapshot, so that
// what those deliveries wrote is no conflict at higher isolation levels.
func (s *Sink) excludeOthers(ctx context.Context, tx pgx.Tx) error {
	err := tx.Conn().PgConn().Exec(ctx, s.sql.exclude).Close()
	if pg, _ := errors.AsType[*pgconn.PgError](err); pg != nil && pg.Code == "55P03" {
		return busyError{err}
	}
	return err
}
