package sqlite

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/emitd/emitd/outbox"
	"github.com/emitd/emitd/outbox/internal/ranges"
)

// cursor implements [outbox.Cursor] for one range of one subscription. One goroutine may call Next while
// another calls one of the other methods, because they share no field that changes: Next writes pos,
// markedPos and markedAt, and the others write ownRows.
type cursor struct {
	log   *Log
	claim outbox.ClaimRequest
	outbox.Range
	file   os.FileInfo // the file in which the range was claimed
	parked []string
	// replayed is the end of the log at the time of the last replay. It stays valid for the life of the
	// cursor, because a replay invalidates the claim.
	replayed int64

	claimedRows []cursorRow // the rows as of the claim: messages up to a row's position are not read again
	pos         int64       // everything up to this id has been read, for all rows
	markedPos   int64       // the position of the last mark
	markedAt    time.Time   // when the last mark was made

	ownRows []cursorRow // the cursor rows as this cursor last wrote them
}

var _ outbox.Cursor = (*cursor)(nil)

// Limits of one page. Messages of other ranges lie between those of this one. So a page scans at most
// window ids: the time of a call must not depend on whose messages follow.
const (
	defaultRows  = 1000
	defaultBytes = 4 << 20
	window       = 50_000
	// A page without messages of this range gets a mark only if keepEvery ids or the time keepAfter have
	// passed since the last mark, because each mark leads to a write. Without any, the stored position would
	// stand still, and the log would keep all messages behind it: they are removed once all cursors have
	// passed them.
	keepEvery = 1000
	keepAfter = time.Second
)

// mark is an [outbox.Mark]: the position after a page, which Advance stores.
type mark struct {
	cursor *cursor
	pos    int64
}

// Parked implements [outbox.Cursor].
func (c *cursor) Parked() []string { return c.parked }

// Close implements [outbox.Cursor]. It does nothing, because the connections belong to the log.
func (c *cursor) Close() {}

func (c *cursor) explain(what string, err error) error {
	if err == nil {
		return nil
	}
	return explain(fmt.Sprintf("%s of %q, shards %v", what, c.claim.Subscription, c.Range), c.log.cfg.Path, err)
}

// Next implements [outbox.Cursor].
func (c *cursor) Next(ctx context.Context, limit outbox.Limit) (outbox.Page, error) {
	if limit.Rows <= 0 {
		limit.Rows = defaultRows
	}
	if limit.Bytes <= 0 {
		limit.Bytes = defaultBytes
	}
	ctx, cancel := c.log.bounded(ctx)
	defer cancel()
	var page outbox.Page
	pos := c.pos
	err := c.log.read(ctx, func(q *query) (err error) {
		page, pos, err = c.next(q, limit)
		return err
	})
	if err != nil {
		return outbox.Page{}, c.explain("read messages", err)
	}
	c.pos, page.Replayed = pos, c.replayed
	if len(page.Rows) > 0 || pos-c.markedPos >= keepEvery || pos > c.markedPos && c.log.cfg.Now().Sub(c.markedAt) >= keepAfter {
		page.Mark = mark{c, pos}
		c.markedPos, c.markedAt = pos, c.log.cfg.Now()
	}
	return page, nil
}

// next reads a page and returns the position after it.
func (c *cursor) next(q *query, limit outbox.Limit) (page outbox.Page, pos int64, err error) {
	pos = c.pos
	if err := c.checkOwned(q); err != nil {
		return page, pos, err
	}
	var oldest, end int64
	q.one(`SELECT (SELECT paused FROM ~outbox_subscription WHERE name = ?1),
			coalesce((SELECT min(id) FROM ~outbox), 0), coalesce((SELECT seq FROM sqlite_sequence WHERE name = '~outbox'), 0),
			EXISTS (SELECT 1 FROM ~outbox_lane WHERE subscription = ?1 AND held = 0 AND next_at <= ?4 AND shard BETWEEN ?2 AND ?3),
			EXISTS (SELECT 1 FROM ~outbox_delayed WHERE not_before <= ?4 AND shard BETWEEN ?2 AND ?3)`,
		[]any{c.claim.Subscription, c.Lo, c.Hi, nanos(q.now)}, &page.Paused, &oldest, &end, &page.Due, &page.Delayed)
	switch {
	case q.err != nil:
		return page, pos, q.err
	case pos > end:
		return page, pos, outbox.ErrMoved // the log went back: it is not the one that was read before
	case page.Paused:
		page.Due = false
		return page, pos, nil
	}
	from := max(pos, oldest-1)
	to := min(end, from+window)
	rows, full := c.rows(q, from, to, limit)
	if q.err != nil {
		return page, pos, q.err
	}
	pos = max(pos, to)
	if full {
		pos = rows[len(rows)-1].Seq
	}
	page.Rows, page.More = rows, pos < end
	return page, pos, nil
}

// checkOwned checks that the rows still belong to this claim, are untouched by operators, and are in the same
// file.
func (c *cursor) checkOwned(q *query) error {
	if !os.SameFile(c.file, q.s.File) {
		return errReplaced
	}
	shards := q.number(`SELECT sum(hi - lo + 1) FROM ~outbox_cursor WHERE subscription = ? AND lo >= ? AND hi <= ? AND epoch = ? AND turn = ?`,
		c.claim.Subscription, c.Lo, c.Hi, c.claim.Epoch, c.claimedRows[0].ReadRev)
	if q.err == nil && int(shards) != c.Hi-c.Lo+1 {
		return c.refusal(q)
	}
	return q.err
}

// bodyOf lists the columns of a message in the order in which decoder.row reads them.
const bodyOf = "id, shard, created_at, dedup_id, key, topic, type, headers, traceparent, tracestate, payload"

// rows reads the messages of the range in (from, to], and reports whether it stopped at the limit.
func (c *cursor) rows(q *query, from, to int64, limit outbox.Limit) (rows []outbox.Row, full bool) {
	text := strings.Builder{}
	text.WriteString("SELECT " + bodyOf + " FROM ~outbox WHERE id > ? AND id <= ?")
	args := []any{from, to}
	switch behind := c.rowsAhead(from); {
	case behind != nil:
		text.WriteString(" AND (0")
		for _, p := range behind {
			text.WriteString(" OR shard BETWEEN ? AND ? AND id > ?")
			args = append(args, p.Lo, p.Hi, p.last)
		}
		text.WriteString(")")
	case c.Lo > 0 || c.Hi < outbox.Shards-1:
		text.WriteString(" AND shard BETWEEN ? AND ?")
		args = append(args, c.Lo, c.Hi)
	}
	text.WriteString(" ORDER BY id LIMIT ?")
	args = append(args, limit.Rows)
	size := 0
	var dec decoder
	q.each(text.String(), args, func(scan func(...any) error) (bool, error) {
		r, n, err := dec.row(scan)
		if err != nil {
			return false, err
		}
		if rows == nil {
			rows = make([]outbox.Row, 0, min(limit.Rows, int(to-from)))
		}
		r.Attempt = 1
		rows = append(rows, r)
		size += n
		full = len(rows) >= limit.Rows || size >= limit.Bytes
		return !full, nil
	})
	return rows, full
}

// rowsAhead returns the rows of the claim if one of them is ahead of from, else nil.
func (c *cursor) rowsAhead(from int64) []cursorRow {
	for _, p := range c.claimedRows {
		if p.last > from {
			return c.claimedRows
		}
	}
	return nil
}

// Advance implements [outbox.Cursor].
func (c *cursor) Advance(ctx context.Context, to outbox.Mark, outcomes []outbox.Outcome) error {
	m, ok := to.(mark)
	if !ok || m.cursor != c {
		return c.explain("advance", errors.New("the mark belongs to another cursor"))
	}
	ctx, cancel := c.log.bounded(ctx)
	defer cancel()
	var moved []cursorRow
	err := c.log.write(ctx, func(q *query) (err error) {
		if moved, err = c.move(q, m.pos); err != nil {
			return err
		}
		for _, o := range outcomes {
			if err := c.storeOutcome(q, o, m.pos); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return c.explain("advance", err)
	}
	c.ownRows = moved
	return nil
}

// move writes a position to the cursor rows and returns the rows as they are now. A row must be exactly
// as this cursor left it. The whole row is compared, so that a cursor of another run, or of an older copy
// of the file, cannot write even if one of its numbers happens to match. When all rows stand at one
// position, they become one row.
func (c *cursor) move(q *query, pos int64) ([]cursorRow, error) {
	if !os.SameFile(c.file, q.s.File) {
		return nil, errReplaced
	}
	moved := make([]cursorRow, len(c.ownRows))
	same := true
	for i, p := range c.ownRows {
		n := q.exec(`UPDATE ~outbox_cursor SET last = max(last, ?), rev = rev + 1, updated_at = ?
			WHERE subscription = ? AND lo = ? AND hi = ? AND epoch = ? AND turn = ? AND rev = ? AND last = ?`,
			pos, nanos(q.now), c.claim.Subscription, p.Lo, p.Hi, p.Epoch, p.ReadRev, p.Rev, p.last)
		if q.err != nil {
			return nil, q.err
		}
		if n != 1 {
			return nil, c.refusal(q)
		}
		p.last, p.Rev = max(p.last, pos), p.Rev+1
		moved[i] = p
		same = same && p.last == moved[0].last
	}
	if !same || len(moved) == 1 {
		return moved, nil
	}
	whole := moved[0]
	whole.Hi = moved[len(moved)-1].Hi
	q.exec(`DELETE FROM ~outbox_cursor WHERE subscription = ? AND lo > ? AND hi <= ?`, c.claim.Subscription, whole.Lo, whole.Hi)
	q.exec(`UPDATE ~outbox_cursor SET hi = ? WHERE subscription = ? AND lo = ?`, whole.Hi, c.claim.Subscription, whole.Lo)
	return []cursorRow{whole}, q.err
}

// lockRows checks that the rows are still this cursor's and updates their time.
func (c *cursor) lockRows(q *query) ([]cursorRow, error) { return c.move(q, 0) }

// SetProblem implements [outbox.Cursor].
func (c *cursor) SetProblem(ctx context.Context, text string) error {
	ctx, cancel := c.log.bounded(ctx)
	defer cancel()
	return c.explain("store the sink's problem", c.log.write(ctx, func(q *query) error {
		q.exec(`UPDATE ~outbox_cursor SET trouble = ? WHERE subscription = ? AND lo >= ? AND hi <= ? AND epoch = ?`,
			ranges.Cause(text), c.claim.Subscription, c.Lo, c.Hi, c.claim.Epoch)
		return q.err
	}))
}

// Promote implements [outbox.Cursor].
func (c *cursor) Promote(ctx context.Context, limit int) (int, error) {
	if limit <= 0 {
		limit = defaultRows
	}
	ctx, cancel := c.log.bounded(ctx)
	defer cancel()
	var held []cursorRow
	promoted := 0
	err := c.log.write(ctx, func(q *query) (err error) {
		if held, err = c.lockRows(q); err != nil {
			return err
		}
		var due []int64
		q.each(`SELECT id FROM ~outbox_delayed WHERE not_before <= ? AND shard BETWEEN ? AND ? ORDER BY not_before, id LIMIT ?`,
			[]any{nanos(q.now), c.Lo, c.Hi, limit}, func(scan func(...any) error) (bool, error) {
				var id int64
				err := scan(&id)
				due = append(due, id)
				return true, err
			})
		for _, id := range due {
			// created_at becomes not_before, if that is later: a message that nobody could deliver yet does not
			// count as lag. It is not earlier than that of the message before in the log, because a replay by time
			// counts on times that grow with the ids.
			q.exec(`INSERT INTO ~outbox (shard, created_at, `+bodyColumns+`)
				SELECT shard, max(created_at, not_before, coalesce((SELECT o.created_at FROM ~outbox o ORDER BY o.id DESC LIMIT 1), 0)), `+bodyColumns+`
				FROM ~outbox_delayed WHERE id = ?`, id)
			q.exec(`DELETE FROM ~outbox_delayed WHERE id = ?`, id)
		}
		promoted = len(due)
		return q.err
	})
	if err != nil {
		return 0, c.explain("promote delayed messages", err)
	}
	c.ownRows = held
	if promoted > 0 {
		commits.wakeAll(c.log.cfg.Path)
	}
	return promoted, nil
}
