package postgres

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/emitd/emitd/outbox"
	"github.com/emitd/emitd/outbox/sink"
)

// pruneEvery is how often expired IDs are removed, a thousand at a time.
const pruneEvery = time.Minute

// Deliver writes the rows in one transaction.
func (s *Sink) Deliver(ctx context.Context, d outbox.Delivery) []error {
	if len(d.Rows) == 0 {
		return nil
	}
	c := fenceKey{subscription: d.Subscription, epoch: d.Epoch}
	for _, row := range d.Rows {
		c.shards = append(c.shards, int32(row.Shard)) // below 64
	}
	slices.Sort(c.shards)
	c.shards = slices.Compact(c.shards)

	err := s.write(ctx, c, func(ctx context.Context, tx pgx.Tx) error { return s.writeAll(ctx, tx, d) })
	if !isRowError(err) {
		if err == nil {
			s.prune(ctx)
			return nil
		}
		return []error{err}
	}
	// At least one row is at fault: each gets a savepoint.
	errs := make([]error, len(d.Rows))
	each := func(ctx context.Context, tx pgx.Tx) error {
		clear(errs) // from an attempt that was rolled back
		return s.writeEach(ctx, tx, d, errs)
	}
	if err = s.write(ctx, c, each); isRowError(err) { // the commit failed: a row breaks a deferred constraint
		err = s.write(ctx, c, func(ctx context.Context, tx pgx.Tx) error {
			if _, err := tx.Exec(ctx, checkAtOnce); err != nil {
				return err
			}
			return each(ctx, tx)
		})
	}
	if err != nil {
		return []error{err}
	}
	return errs
}

// checkAtOnce makes deferred constraints and triggers fail within the savepoint of the row that breaks them.
const checkAtOnce = "set constraints all immediate"

// write runs f in a transaction that holds the fence. If the relay has not called Fence, the epoch is raised
// first, in a transaction of its own: two deliveries that hold a fence row for share and then raise it would
// deadlock.
func (s *Sink) write(ctx context.Context, c fenceKey, f func(ctx context.Context, tx pgx.Tx) error) error {
	held := func(ctx context.Context, tx pgx.Tx) error {
		if err := s.hold(ctx, tx, c); err != nil {
			return err
		}
		return f(ctx, tx)
	}
	err := s.inTx(ctx, "write", held)
	if !errors.Is(err, errNotRaised) {
		return err
	}
	if err := s.inTx(ctx, "raise the fence", func(ctx context.Context, tx pgx.Tx) error { return s.raise(ctx, tx, c) }); err != nil {
		return err
	}
	return s.inTx(ctx, "write", held)
}

// writeAll writes all rows in one batch, in log order. All subscriptions of a log have that order, so those
// that write the same rows wait for each other and do not deadlock.
func (s *Sink) writeAll(ctx context.Context, tx pgx.Tx, d outbox.Delivery) error {
	unwritten, err := s.unwritten(ctx, tx, d.Subscription, d.Rows)
	if err != nil {
		return err
	}
	batch := &pgx.Batch{}
	for _, row := range unwritten {
		s.addTo(batch, d, row)
	}
	return tx.SendBatch(ctx, batch).Close()
}

// writeEach writes row by row, each in a savepoint, so that a failure affects only its row.
func (s *Sink) writeEach(ctx context.Context, tx pgx.Tx, d outbox.Delivery, errs []error) error {
	failed := map[string]bool{}
	for i, row := range d.Rows {
		if row.Key != "" && failed[row.Key] {
			errs[i] = outbox.ErrSkipped
			continue
		}
		err := pgx.BeginFunc(ctx, tx, func(point pgx.Tx) error { // a savepoint
			one := d
			one.Rows = d.Rows[i : i+1]
			return s.writeAll(ctx, point, one)
		})
		if err == nil {
			continue
		}
		if conflict(err) {
			return err
		}
		if err = classify(ctx, "write", err); !isRowError(err) {
			return err
		}
		errs[i], failed[row.Key] = err, true
	}
	return nil
}

// unwritten returns the rows for which the statement has not run yet, in order. The message table needs no
// such check, because its primary key refuses repetitions.
func (s *Sink) unwritten(ctx context.Context, tx pgx.Tx, subscription string, all []outbox.Row) ([]outbox.Row, error) {
	if s.cfg.Statement == "" {
		return all, nil
	}
	ids := make([]uuid.UUID, len(all))
	for i, row := range all {
		ids[i] = row.ID
	}
	result, err := tx.Query(ctx, s.sql.note, subscription, ids)
	if err != nil {
		return nil, err
	}
	noted, err := pgx.CollectRows(result, pgx.RowTo[uuid.UUID])
	if err != nil {
		return nil, err
	}
	left := map[uuid.UUID]bool{}
	for _, id := range noted {
		left[id] = true
	}
	var out []outbox.Row
	for _, row := range all {
		if left[row.ID] {
			out = append(out, row)
			delete(left, row.ID) // a repeated ID in a delivery is one message
		}
	}
	return out, nil
}

// addTo adds a row's statement to a batch.
func (s *Sink) addTo(batch *pgx.Batch, d outbox.Delivery, row outbox.Row) {
	headers, err := json.Marshal(row.Headers)
	if err != nil {
		panic(fmt.Sprintf("postgres sink: encode strings: %v", err))
	}
	if len(row.Headers) == 0 {
		headers = []byte("{}")
	}
	payload := row.Payload
	if payload == nil {
		payload = []byte{}
	}
	if s.cfg.Statement != "" {
		batch.Queue(s.cfg.Statement, pgx.NamedArgs{
			"id": row.ID, "subscription": d.Subscription, "topic": row.Topic, "key": row.Key, "type": row.Type,
			"headers": headers, "payload": payload, "created_at": row.CreatedAt,
		})
		return
	}
	batch.Queue(s.sql.insert, row.ID, d.Subscription, row.Topic, row.Key, row.Type, headers, payload,
		row.TraceParent, row.TraceState, row.CreatedAt)
}

// prune removes IDs that are older than KeepIDs, once per pruneEvery. Its errors are ignored, because the
// next call tries again.
func (s *Sink) prune(ctx context.Context) {
	if s.cfg.Statement == "" {
		return
	}
	s.mu.Lock()
	due := time.Since(s.pruned) >= pruneEvery
	if due {
		s.pruned = time.Now()
	}
	s.mu.Unlock()
	if due {
		_, _ = s.pool.Exec(ctx, s.sql.prune, s.cfg.KeepIDs)
	}
}

// prepare creates the tables once, if the configuration asks for it. It sends all statements in one
// message, which is one transaction, so a relay that stops in the middle blocks nothing.
func (s *Sink) prepare(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ready {
		return nil
	}
	err := s.pool.AcquireFunc(ctx, func(conn *pgxpool.Conn) error {
		return conn.Conn().PgConn().Exec(ctx, createLockSQL+s.sql.create).Close()
	})
	s.ready = err == nil
	return err
}

// rowError is the failure of a single row: the others can be written without it.
type rowError struct{ error }

func (e rowError) Unwrap() error { return e.error }

func isRowError(err error) bool {
	_, is := errors.AsType[rowError](err)
	return is
}

// classify returns the kind of an error of a statement.
func classify(ctx context.Context, what string, err error) error {
	pg, _ := errors.AsType[*pgconn.PgError](err)
	switch {
	case err == nil, errors.Is(err, outbox.ErrFenced), errors.Is(err, errNotRaised), errors.Is(err, outbox.ErrSinkDown), isRowError(err):
		return err
	case pg == nil && ctx.Err() != nil:
		return fmt.Errorf("%s: not confirmed: %w", what, context.Cause(ctx))
	case pg == nil:
		return sink.Down(what, withoutConfig(ctx, err))
	}
	text := fmt.Errorf("%s: %s (SQLSTATE %s)", what, pg.Message, pg.Code) // Detail may hold the payload
	switch class := pg.Code[:min(2, len(pg.Code))]; {
	case pg.Code == "57014": // a timeout of the server: the message may be the cause
		return rowError{text}
	case pg.Code == "23503":
		return rowError{text}
	case pg.Code == "42501" && pg.Routine == "ExecWithCheckOptions": // a policy of row-level security refuses this row
		return rowError{text}
	case class == "22", class == "23", pg.Code == "P0001":
		return rowError{sink.Permanent("%w", text)}
	case class == "08", class == "28", class == "42", class == "53", class == "57", class == "3D", class == "3F", pg.Code == "25006":
		return fmt.Errorf("%w: %w", outbox.ErrSinkDown, text)
	case conflict(err): // for as long as inTx could repeat it
		return fmt.Errorf("%w; other transactions get in the way each time, see which in the log of the database", text)
	case class == "40", pg.Code == "25P03": // rolled back; idle in the transaction for too long
		return text
	default:
		return rowError{text}
	}
}

// withoutConfig returns a connection's error without the configuration that it contains.
func withoutConfig(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if c, ok := errors.AsType[*pgconn.ConnectError](err); ok {
		return c.Unwrap()
	}
	return err
}
