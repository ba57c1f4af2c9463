package sqlite

import (
	"context"
	"fmt"
	"slices"

	"github.com/emitd/emitd/outbox"
	"github.com/emitd/emitd/outbox/internal/ranges"
)

// cursorRow is a cursor row: the position of a range of shards, with its owner.
type cursorRow struct {
	ranges.CursorRow
	last int64 // everything up to this id is delivered or parked
}

// samePosition reports whether two adjacent rows stand at the same position.
func (p *cursorRow) samePosition(next cursorRow) bool { return p.last == next.last }

// Claim implements [outbox.Log].
func (l *Log) Claim(ctx context.Context, c outbox.ClaimRequest) (outbox.Cursor, error) {
	what := fmt.Sprintf("claim %q, unit %d of %d at epoch %d", c.Subscription, c.Index, c.Instances, c.Epoch)
	if err := ranges.Valid(c); err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	ctx, cancel := l.bounded(ctx)
	defer cancel()
	cur := &cursor{log: l, claim: c, Range: outbox.RangeOf(c.Index, c.Instances)}
	err := l.write(ctx, func(q *query) error {
		if err := cur.claimRows(q); err != nil {
			return err
		}
		cur.file = q.s.File
		cur.parked = q.parkedKeys(c.Subscription, cur.Range)
		return nil
	})
	if err != nil {
		return nil, explain(what, l.cfg.Path, err)
	}
	cur.begin()
	return cur, nil
}

// claimRows makes this cursor the owner of the range.
func (c *cursor) claimRows(q *query) error {
	instances, instancesEpoch := c.subscribe(q)
	rows := q.cursorRows(c.claim.Subscription)
	if q.err != nil {
		return q.err
	}
	if err := ranges.CheckClaim(rows, c.Range, c.claim, instances, instancesEpoch); err != nil {
		return err
	}
	q.exec(`UPDATE ~outbox_subscription SET instances = ?, instances_epoch = max(instances_epoch, ?) WHERE name = ?`,
		c.claim.Instances, c.claim.Epoch, c.claim.Subscription)
	rest, mine := ranges.SplitRows(rows, c.Range, c.claim.Epoch, (*cursorRow).samePosition)
	c.ownRows = mine
	return q.rewrite(c.claim.Subscription, c.claim.Node, rest, mine)
}

// subscribe creates the subscription if it is new. It returns the number of instances that it is claimed
// with, and the epoch stored with that number.
func (c *cursor) subscribe(q *query) (instances int, instancesEpoch int64) {
	name := c.claim.Subscription
	if q.one(`SELECT instances, instances_epoch, replayed FROM ~outbox_subscription WHERE name = ?`, []any{name}, &instances, &instancesEpoch, &c.replayed) || q.err != nil {
		return instances, instancesEpoch
	}
	now, oldest, end := nanos(q.now), q.number(`SELECT min(id) FROM ~outbox`), q.end()
	last := end
	if !c.claim.Newest && oldest > 0 {
		last = oldest - 1
	}
	q.exec(`INSERT INTO ~outbox_subscription (name, instances, instances_epoch, created_at) VALUES (?, ?, 0, ?)`, name, c.claim.Instances, now)
	q.exec(`INSERT INTO ~outbox_cursor (subscription, lo, hi, claim_lo, claim_hi, last, epoch, turn, rev, updated_at) VALUES (?, 0, ?, 0, ?, ?, 0, 0, 0, ?)`,
		name, outbox.Shards-1, outbox.Shards-1, last, now)
	return c.claim.Instances, 0
}

// end returns the highest id that a committed transaction has ever drawn.
func (q *query) end() int64 {
	return q.number(`SELECT seq FROM sqlite_sequence WHERE name = '~outbox'`)
}

// cursorRows reads all rows of a subscription, ordered by shard.
func (q *query) cursorRows(subscription string) (out []cursorRow) {
	q.each(`SELECT lo, hi, claim_lo, claim_hi, last, epoch, turn, rev FROM ~outbox_cursor WHERE subscription = ? ORDER BY lo`,
		[]any{subscription}, func(scan func(...any) error) (bool, error) {
			var p cursorRow
			err := scan(&p.Lo, &p.Hi, &p.ClaimedRange.Lo, &p.ClaimedRange.Hi, &p.last, &p.Epoch, &p.ReadRev, &p.Rev)
			out = append(out, p)
			return true, err
		})
	return out
}

// rewrite replaces all rows of a subscription. Rows outside the claimed range keep their node, time and
// problem.
func (q *query) rewrite(subscription, node string, rest, mine []cursorRow) error {
	type owner struct {
		node    string
		at      int64
		problem string
	}
	owners := map[outbox.Range]owner{}
	q.each(`SELECT lo, hi, node, updated_at, trouble FROM ~outbox_cursor WHERE subscription = ?`, []any{subscription}, func(scan func(...any) error) (bool, error) {
		var r outbox.Range
		var o owner
		err := scan(&r.Lo, &r.Hi, &o.node, &o.at, &o.problem)
		owners[r] = o
		return true, err
	})
	q.exec(`DELETE FROM ~outbox_cursor WHERE subscription = ?`, subscription)
	put := func(p cursorRow, o owner) {
		q.exec(`INSERT INTO ~outbox_cursor (subscription, lo, hi, claim_lo, claim_hi, last, epoch, turn, rev, node, updated_at, trouble)
			VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`, subscription, p.Lo, p.Hi, p.ClaimedRange.Lo, p.ClaimedRange.Hi, p.last, p.Epoch, p.ReadRev, p.Rev, o.node, o.at, o.problem)
	}
	for _, p := range rest {
		for r, o := range owners {
			if ranges.Overlap(r, p.Range) {
				put(p, o)
				break
			}
		}
	}
	for _, p := range mine {
		put(p, owner{node: node, at: nanos(q.now)})
	}
	return q.err
}

// parkedKeys returns the parked keys of a range. Lanes of a single message are left out, because they stand for
// no key.
func (q *query) parkedKeys(subscription string, r outbox.Range) (out []string) {
	q.each(`SELECT key FROM ~outbox_lane WHERE subscription = ? AND shard BETWEEN ? AND ? AND solo = 0`,
		[]any{subscription, r.Lo, r.Hi}, func(scan func(...any) error) (bool, error) {
			var key string
			err := scan(&key)
			out = append(out, key)
			return true, err
		})
	return out
}

// refusal returns the error for a cursor whose rows are not as it left them: fenced if a higher epoch
// owns part of the range, else ErrMoved.
func (c *cursor) refusal(q *query) error {
	fenced := &outbox.FencedError{}
	for _, p := range q.cursorRows(c.claim.Subscription) {
		if ranges.Overlap(p.Range, c.Range) && p.Epoch > c.claim.Epoch {
			fenced.Floor = max(fenced.Floor, p.Epoch)
		}
	}
	if q.err != nil {
		return q.err
	}
	if fenced.Floor == 0 {
		return outbox.ErrMoved
	}
	instances, instancesEpoch := 0, int64(0)
	if q.one(`SELECT instances, instances_epoch FROM ~outbox_subscription WHERE name = ?`, []any{c.claim.Subscription}, &instances, &instancesEpoch) {
		fenced.Instances, fenced.Resized = instances, ranges.Resized(c.claim, instances, instancesEpoch)
	}
	return fenced
}

// begin starts reading at the lowest position of the range.
func (c *cursor) begin() {
	c.claimedRows = slices.Clone(c.ownRows)
	c.pos = slices.MinFunc(c.ownRows, func(a, b cursorRow) int { return int(min(max(a.last-b.last, -1), 1)) }).last
	c.markedPos, c.markedAt = c.pos, c.log.cfg.Now()
}
