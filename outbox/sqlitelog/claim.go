package sqlitelog

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/emitd/emitd/outbox"
)

// part is a row of the cursors: where a range of shards stands.
type part struct {
	outbox.Range
	claim outbox.Range // the bounds by which its owner claimed
	last  int64        // what has an id up to it is seen to
	epoch int64
	turn  int64
	rev   int64
}

// Claim implements [outbox.Log].
func (l *Log) Claim(ctx context.Context, c outbox.Claim) (outbox.Cursor, error) {
	what := fmt.Sprintf("claim %q, unit %d of %d at epoch %d", c.Subscription, c.Index, c.Instances, c.Epoch)
	if err := checkClaim(c); err != nil {
		return nil, fmt.Errorf("%s: %w", what, err)
	}
	ctx, cancel := l.bounded(ctx)
	defer cancel()
	cur := &cursor{log: l, claim: c, Range: outbox.RangeOf(c.Index, c.Instances)}
	err := l.write(ctx, func(q *query) error {
		if err := cur.take(q); err != nil {
			return err
		}
		cur.file = q.s.file
		cur.parked = q.keys(c.Subscription, cur.Range)
		return nil
	})
	if err != nil {
		return nil, explain(what, l.cfg.Path, err)
	}
	cur.begin()
	return cur, nil
}

func checkClaim(c outbox.Claim) error {
	switch {
	case c.Subscription == "" || len(c.Subscription) > 255:
		return fmt.Errorf("the subscription's name has %d bytes, want 1 to 255", len(c.Subscription))
	case c.Instances < 1 || c.Instances > outbox.Shards:
		return fmt.Errorf("there are %d instances, want 1 to %d", c.Instances, outbox.Shards)
	case c.Index < 0 || c.Index >= c.Instances:
		return fmt.Errorf("there is no unit %d of %d", c.Index, c.Instances)
	case c.Epoch < 1:
		return errors.New("the epoch is less than 1")
	}
	return nil
}

// take makes the range the cursor's.
func (c *cursor) take(q *query) error {
	instances, since := c.subscribe(q)
	rows := q.parts(c.claim.Subscription)
	if q.err != nil {
		return q.err
	}
	fenced := &outbox.FencedError{Instances: instances}
	for _, r := range rows {
		if !overlap(r.Range, c.Range) {
			continue
		}
		if r.epoch > c.claim.Epoch || r.epoch == c.claim.Epoch && r.claim != c.Range {
			fenced.Floor = max(fenced.Floor, r.epoch)
		}
	}
	if instances != c.claim.Instances && since >= c.claim.Epoch {
		fenced.Floor, fenced.Resized = max(fenced.Floor, since), true
	}
	if fenced.Floor > 0 {
		return fenced
	}
	q.exec(`UPDATE ~outbox_subscription SET instances = ?, instances_epoch = max(instances_epoch, ?) WHERE name = ?`,
		c.claim.Instances, c.claim.Epoch, c.claim.Subscription)
	rest, mine := carve(rows, c.Range, c.claim.Epoch)
	c.parts = mine
	return q.rewrite(c.claim.Subscription, c.claim.Node, rest, mine)
}

// subscribe makes the subscription if it is new, and returns how many instances it is claimed by and
// the epoch of that.
func (c *cursor) subscribe(q *query) (instances int, since int64) {
	name := c.claim.Subscription
	if q.one(`SELECT instances, instances_epoch FROM ~outbox_subscription WHERE name = ?`, []any{name}, &instances, &since) || q.err != nil {
		return instances, since
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

// end is the last id of the log that was ever drawn by a transaction that committed.
func (q *query) end() int64 {
	return q.number(`SELECT seq FROM sqlite_sequence WHERE name = '~outbox'`)
}

// parts are all rows of a subscription, in the order of the shards.
func (q *query) parts(subscription string) (out []part) {
	q.each(`SELECT lo, hi, claim_lo, claim_hi, last, epoch, turn, rev FROM ~outbox_cursor WHERE subscription = ? ORDER BY lo`,
		[]any{subscription}, func(scan func(...any) error) (bool, error) {
			var p part
			err := scan(&p.Lo, &p.Hi, &p.claim.Lo, &p.claim.Hi, &p.last, &p.epoch, &p.turn, &p.rev)
			out = append(out, p)
			return true, err
		})
	return out
}

func overlap(a, b outbox.Range) bool { return a.Lo <= b.Hi && b.Lo <= a.Hi }

// carve cuts rows, in the order of the shards, at the bounds of a range and returns those outside, as they are but for their
// bounds, and those inside, of the epoch. Neighbours inside at one position are one row.
func carve(rows []part, r outbox.Range, epoch int64) (rest, mine []part) {
	var turn, rev int64
	for _, p := range rows {
		if overlap(p.Range, r) {
			turn, rev = max(turn, p.turn), max(rev, p.rev)
		}
		if p.Lo < r.Lo {
			left := p
			left.Hi = min(p.Hi, r.Lo-1)
			left.claim.Hi = min(p.claim.Hi, r.Lo-1)
			rest = append(rest, left)
		}
		if overlap(p.Range, r) {
			mid := p
			mid.Lo, mid.Hi = max(p.Lo, r.Lo), min(p.Hi, r.Hi)
			if n := len(mine); n > 0 && mine[n-1].last == mid.last {
				mine[n-1].Hi = mid.Hi
			} else {
				mine = append(mine, mid)
			}
		}
		if p.Hi > r.Hi {
			right := p
			right.Lo = max(p.Lo, r.Hi+1)
			right.claim.Lo = max(p.claim.Lo, r.Hi+1)
			rest = append(rest, right)
		}
	}
	for i := range mine {
		mine[i].claim, mine[i].epoch, mine[i].turn, mine[i].rev = r, epoch, turn+1, rev+1
	}
	return rest, mine
}

// rewrite replaces all rows of a subscription. Those outside a claim keep node and time.
func (q *query) rewrite(subscription, node string, rest, mine []part) error {
	type owner struct {
		node string
		at   int64
	}
	owners := map[outbox.Range]owner{}
	q.each(`SELECT lo, hi, node, updated_at FROM ~outbox_cursor WHERE subscription = ?`, []any{subscription}, func(scan func(...any) error) (bool, error) {
		var r outbox.Range
		var o owner
		err := scan(&r.Lo, &r.Hi, &o.node, &o.at)
		owners[r] = o
		return true, err
	})
	q.exec(`DELETE FROM ~outbox_cursor WHERE subscription = ?`, subscription)
	put := func(p part, o owner) {
		q.exec(`INSERT INTO ~outbox_cursor (subscription, lo, hi, claim_lo, claim_hi, last, epoch, turn, rev, node, updated_at)
			VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`, subscription, p.Lo, p.Hi, p.claim.Lo, p.claim.Hi, p.last, p.epoch, p.turn, p.rev, o.node, o.at)
	}
	for _, p := range rest {
		for r, o := range owners {
			if overlap(r, p.Range) {
				put(p, o)
				break
			}
		}
	}
	for _, p := range mine {
		put(p, owner{node, nanos(q.now)})
	}
	return q.err
}

// keys are the keys of a range that have a lane. A lane of one message stands for no key.
func (q *query) keys(subscription string, r outbox.Range) (out []string) {
	q.each(`SELECT key FROM ~outbox_lane WHERE subscription = ? AND shard BETWEEN ? AND ? AND solo = 0`,
		[]any{subscription, r.Lo, r.Hi}, func(scan func(...any) error) (bool, error) {
			var key string
			err := scan(&key)
			out = append(out, key)
			return true, err
		})
	return out
}

// refusal says why a cursor's rows are not as it left them.
func (c *cursor) refusal(q *query) error {
	fenced := &outbox.FencedError{}
	for _, p := range q.parts(c.claim.Subscription) {
		if overlap(p.Range, c.Range) && p.epoch > c.claim.Epoch {
			fenced.Floor = max(fenced.Floor, p.epoch)
		}
	}
	if q.err != nil {
		return q.err
	}
	if fenced.Floor == 0 {
		return outbox.ErrMoved
	}
	instances, since := 0, int64(0)
	if q.one(`SELECT instances, instances_epoch FROM ~outbox_subscription WHERE name = ?`, []any{c.claim.Subscription}, &instances, &since) {
		fenced.Instances, fenced.Resized = instances, instances != c.claim.Instances && since >= c.claim.Epoch
	}
	return fenced
}

// begin prepares reading at the lowest position of the range.
func (c *cursor) begin() {
	c.floors = slices.Clone(c.parts)
	c.pos = slices.MinFunc(c.parts, func(a, b part) int { return int(min(max(a.last-b.last, -1), 1)) }).last
	c.kept, c.keptAt = c.pos, c.log.cfg.Now()
}
