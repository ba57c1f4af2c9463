package postgres

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/jackc/pgx/v5"

	"github.com/emitd/emitd/outbox"
	"github.com/emitd/emitd/outbox/internal/ranges"
)

// cursor implements [outbox.Cursor] for one range of one subscription. Next uses reader, the other
// methods use rows, and both use newestFloor under mu. So Next may run beside one other method.
type cursor struct {
	log   *Log
	claim outbox.ClaimRequest
	outbox.Range
	server server // the server on which the range was claimed
	parked []string
	// replayed is the end of the log at the time of the last replay. It stays valid for the life of the
	// cursor, because a replay invalidates the claim.
	replayed int64
	reader   reader

	mu          sync.Mutex
	newestFloor idFloor // the newest committed write of this cursor

	rows []cursorRow // the cursor rows as this cursor last wrote them
}

var _ outbox.Cursor = (*cursor)(nil)

// mark is a position after a page: one position for each claimed row, or one for all.
type mark struct {
	cursor *cursor
	at     []position
}

// begin prepares the reader.
func (c *cursor) begin() { c.reader.begin(c) }

// Parked implements [outbox.Cursor].
func (c *cursor) Parked() []string { return c.parked }

// Close implements [outbox.Cursor]. It waits until reading ahead has stopped.
func (c *cursor) Close() { c.reader.close() }

func (c *cursor) explain(what string, err error) error {
	if err == nil {
		return nil
	}
	return c.log.cfg.explain(fmt.Sprintf("%s of %q, shards %v", what, c.claim.Subscription, c.Range), err)
}

// recordFloor records the floor of a committed transaction, if it is newer.
func (c *cursor) recordFloor(w idFloor) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if w.tx > c.newestFloor.tx {
		c.newestFloor = w
	}
}

// floorOfWrites returns the newest floor.
func (c *cursor) floorOfWrites() idFloor {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.newestFloor
}

// Advance implements [outbox.Cursor]. Without outcomes it is a single statement.
func (c *cursor) Advance(ctx context.Context, to outbox.Mark, outcomes []outbox.Outcome) error {
	m, ok := to.(mark)
	if !ok || m.cursor != c {
		return c.explain("advance", errors.New("the mark belongs to another cursor"))
	}
	ctx, cancel := c.log.bounded(ctx)
	defer cancel()
	var moved []cursorRow
	var w idFloor
	work := func(q *query) (err error) {
		if moved, w, err = c.move(q, m.at); err == nil {
			err = c.storeOutcomes(q, outcomes)
		}
		return err
	}
	run := c.log.write
	if len(outcomes) == 0 && len(c.rows) == 1 {
		run = c.log.read // one statement is a transaction
	}
	if err := run(ctx, &c.server, work); err != nil {
		return c.explain("advance", err)
	}
	c.rows = moved
	c.recordFloor(w)
	return nil
}

// move writes positions to the cursor rows and returns the rows as they are now. A row must be exactly as
// this cursor left it. The whole row is compared, so that a cursor of another run, or one whose server
// has lost its last writes, cannot write even if one of its numbers happens to match. If to is one
// position for several rows, they become one row.
func (c *cursor) move(q *query, to []position) (moved []cursorRow, w idFloor, err error) {
	if len(to) > 1 && len(to) != len(c.rows) {
		return nil, w, errors.New("the mark is older than the stored position") // rows have been merged since
	}
	for i, p := range c.rows {
		at := to[min(i, len(to)-1)]
		floor, done := q.moveOne(c.claim.Subscription, p, at)
		if !done {
			if q.err != nil {
				return nil, w, q.err
			}
			return nil, w, c.refusal(q)
		}
		if i == 0 {
			w = floor // the other statements read the last id when the transaction had its ID already
		}
		p.position, p.drawn, p.Rev = at, floor.lastID, p.Rev+1
		moved = append(moved, p)
	}
	if len(to) > 1 || len(moved) == 1 {
		return moved, w, q.err
	}
	whole := moved[0]
	whole.Hi = moved[len(moved)-1].Hi
	q.exec(`delete from ~outbox_cursor where subscription = $1 and lo > $2 and hi <= $3`, c.claim.Subscription, whole.Lo, whole.Hi)
	q.exec(`update ~outbox_cursor set hi = $3 where subscription = $1 and lo = $2`, c.claim.Subscription, whole.Lo, whole.Hi)
	return []cursorRow{whole}, w, q.err
}

// moveOne writes one row, guarded by a comparison of the whole row. What it returns is a floor only if it is the first
// statement of its transaction that writes.
func (q *query) moveOne(subscription string, p cursorRow, to position) (w idFloor, done bool) {
	done = q.one(writing+`
		update ~outbox_cursor c set snap_from = $1::pg_snapshot, base_from = $2, snap_to = nullif($3::text, '')::pg_snapshot, base_to = $4,
			last = $5, floor = $6, again = nullif($7::bigint, -1), drawn = at.drawn, rev = c.rev + 1, updated_at = clock_timestamp()
		from at
		where c.subscription = $8 and c.lo = $9 and c.hi = $10 and c.epoch = $11 and c.turn = $12 and c.rev = $13 and c.last = $14 and c.era = $15
		returning at.drawn, at.tx::text::bigint`,
		[]any{
			string(to.from.at), to.from.base, string(to.to.at), to.to.base, to.last, to.floor, to.replayAfter,
			subscription, p.Lo, p.Hi, p.Epoch, p.ReadRev, p.Rev, p.last, p.era,
		}, &w.lastID, &w.tx)
	return w, done
}

// lockRows writes the rows with unchanged positions. This checks that they are still this cursor's, locks
// them and updates their time.
func (c *cursor) lockRows(q *query) ([]cursorRow, idFloor, error) {
	at := make([]position, len(c.rows))
	for i, p := range c.rows {
		at[i] = p.position
	}
	return c.move(q, at)
}

// whileOwner runs fn in a transaction in which lockRows has succeeded.
func (c *cursor) whileOwner(ctx context.Context, what string, fn func(*query) error) error {
	ctx, cancel := c.log.bounded(ctx)
	defer cancel()
	var moved []cursorRow
	var w idFloor
	err := c.log.write(ctx, &c.server, func(q *query) (err error) {
		if moved, w, err = c.lockRows(q); err == nil {
			err = fn(q)
		}
		return err
	})
	if err != nil {
		return c.explain(what, err)
	}
	c.rows = moved
	c.recordFloor(w)
	return nil
}

const bodyColumns = "dedup_id, key, topic, type, headers, traceparent, tracestate, payload"

// SetProblem implements [outbox.Cursor].
func (c *cursor) SetProblem(ctx context.Context, text string) error {
	ctx, cancel := c.log.bounded(ctx)
	defer cancel()
	return c.explain("store the sink's problem", c.log.read(ctx, &c.server, func(q *query) error { // one statement is a transaction
		q.exec(`update ~outbox_cursor set trouble = $5 where subscription = $1 and lo >= $2 and hi <= $3 and epoch = $4`,
			c.claim.Subscription, c.Lo, c.Hi, c.claim.Epoch, ranges.Cause(text))
		return q.err
	}))
}

// Promote implements [outbox.Cursor]. Rows are locked in the order in which they are moved, so relays of
// several subscriptions may wait for each other but cannot deadlock. The second relay moves what the
// first has left.
func (c *cursor) Promote(ctx context.Context, limit int) (promoted int, err error) {
	if limit <= 0 {
		limit = defaultRows
	}
	err = c.whileOwner(ctx, "promote delayed messages", func(q *query) error {
		var due []int64
		q.each(`select id from ~outbox_delayed where not_before <= `+clock+` and shard between $1 and $2
			order by not_before, id limit $3 for update`, []any{c.Lo, c.Hi, limit}, func(row pgx.Rows) error {
			due = append(due, 0)
			return row.Scan(&due[len(due)-1])
		})
		// created_at becomes not_before, if that is later: a message that nobody could deliver yet does not
		// count as lag. It is not earlier than that of the message before in the log, because a replay by time
		// counts on times that grow with the ids.
		promoted = int(q.exec(`with due as materialized (delete from ~outbox_delayed where id = any($1) returning *)
			insert into ~outbox (shard, created_at, `+bodyColumns+`)
			select shard, greatest(created_at, not_before, (select o.created_at from ~outbox o order by o.id desc limit 1)), `+bodyColumns+` from due order by not_before, due.id`, due))
		return nil
	})
	if err != nil {
		return 0, err
	}
	if promoted > 0 {
		c.log.listeners.wakeAll()
	}
	return promoted, nil
}
