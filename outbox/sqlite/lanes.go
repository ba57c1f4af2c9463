package sqlite

import (
	"context"
	"errors"
	"fmt"

	"github.com/emitd/emitd/outbox"
	"github.com/emitd/emitd/outbox/internal/ranges"
)

// storeOutcome stores the outcome of a message that was read from the log. pos is the position that is being
// stored.
func (c *cursor) storeOutcome(q *query, o outbox.Outcome, pos int64) error {
	if o.Row.Seq > pos || o.Row.Shard < c.Lo || o.Row.Shard > c.Hi {
		return fmt.Errorf("message %d of shard %d is outside the range or position being stored", o.Row.Seq, o.Row.Shard)
	}
	sub, at := c.claim.Subscription, ranges.ParkedKeyOf(o.Row)
	if o.Row.Seq <= c.replayed && o.Kind != outbox.Dead {
		if is, found := q.find(sub, o.Row.Seq); found && is != at {
			return q.err // it was put back by an operator, and has a lane of its own
		}
	}
	switch o.Kind {
	case outbox.Delivered, outbox.Dropped:
		return nil
	case outbox.Dead:
		q.exec(`INSERT OR REPLACE INTO ~outbox_dead (subscription, id, shard, attempts, died_at, cause, created_at, `+bodyColumns+`)
			SELECT ?, id, shard, ?, ?, ?, created_at, `+bodyColumns+` FROM ~outbox WHERE id = ?`, sub, o.Attempts, nanos(q.now), ranges.Cause(o.Cause), o.Row.Seq)
		return q.err
	case outbox.Waiting, outbox.Held:
		q.setLane(sub, at, o)
	case outbox.Behind:
		q.putBehind(sub, at, o.Row.Seq)
	default:
		return fmt.Errorf("message %d has %q, which is not an outcome", o.Row.Seq, o.Kind)
	}
	// After a replay the message may be there already.
	q.exec(`INSERT OR IGNORE INTO ~outbox_parked (subscription, id, shard, solo, parked_at, created_at, `+bodyColumns+`)
		SELECT ?, id, shard, ?, ?, created_at, `+bodyColumns+` FROM ~outbox WHERE id = ?`, sub, at.Seq, nanos(q.now), o.Row.Seq)
	return q.err
}

// setLane stores the state of a lane, given the outcome of its first message.
func (q *query) setLane(sub string, at ranges.ParkedKey, o outbox.Outcome) {
	held, cause := ranges.HeldCause(o)
	q.exec(`INSERT INTO ~outbox_lane (subscription, shard, key, solo, held, attempts, next_at, cause) VALUES (?, ?, ?, ?, ?, ?, ?, ?)
		ON CONFLICT DO UPDATE SET held = excluded.held, attempts = excluded.attempts, next_at = excluded.next_at, cause = excluded.cause`,
		sub, at.Shard, at.Key, at.Seq, held, o.Attempts, nanos(q.now.Add(max(o.RetryIn, 0))), cause)
}

// putBehind makes a lane due at once if a message that gets Behind has no other before it in the lane: an operator has
// emptied the lane, or the message comes before those that are parked, as after a replay. What is stored of the lane is then
// about another message.
func (q *query) putBehind(sub string, at ranges.ParkedKey, seq int64) {
	q.exec(`INSERT INTO ~outbox_lane (subscription, shard, key, solo, next_at) SELECT ?1, ?2, ?3, ?4, ?5
		WHERE NOT EXISTS (SELECT 1 FROM ~outbox_parked WHERE subscription = ?1 AND shard = ?2 AND key = ?3 AND solo = ?4 AND id <= ?6)
		ON CONFLICT DO UPDATE SET held = 0, attempts = 0, next_at = excluded.next_at, cause = ''`,
		sub, at.Shard, at.Key, at.Seq, nanos(q.now), seq)
}

// Due implements [outbox.Cursor].
func (c *cursor) Due(ctx context.Context, limit int) ([][]outbox.Row, error) {
	if limit <= 0 {
		limit = defaultRows
	}
	ctx, cancel := c.log.bounded(ctx)
	defer cancel()
	var out [][]outbox.Row
	err := c.log.read(ctx, func(q *query) error {
		if err := c.checkOwned(q); err != nil || q.number(`SELECT paused FROM ~outbox_subscription WHERE name = ?`, c.claim.Subscription) != 0 {
			return err
		}
		var lanes []ranges.ParkedKey
		var attempts []int
		var causes []string
		q.each(`SELECT shard, key, solo, attempts, cause FROM ~outbox_lane
			WHERE subscription = ? AND held = 0 AND next_at <= ? AND shard BETWEEN ? AND ? ORDER BY next_at, shard, key, solo LIMIT ?`,
			[]any{c.claim.Subscription, nanos(q.now), c.Lo, c.Hi, limit}, func(scan func(...any) error) (bool, error) {
				var at ranges.ParkedKey
				var n int
				var cause string
				err := scan(&at.Shard, &at.Key, &at.Seq, &n, &cause)
				lanes, attempts, causes = append(lanes, at), append(attempts, n), append(causes, cause)
				return true, err
			})
		for i, at := range lanes {
			n := ranges.ParkedRows
			if attempts[i] > 0 {
				n = 1
			}
			if rows := q.lane(c.claim.Subscription, at, n); len(rows) > 0 {
				rows[0].Attempt, rows[0].Missing = attempts[i]+1, ranges.Missing(causes[i])
				out = append(out, rows)
			}
		}
		return q.err
	})
	if err != nil {
		return nil, c.explain("read parked messages", err)
	}
	return out, nil
}

// lane reads at most the first most messages of a lane.
func (q *query) lane(sub string, at ranges.ParkedKey, most int) (rows []outbox.Row) {
	var dec decoder
	size := 0
	q.each(`SELECT `+bodyOf+` FROM ~outbox_parked WHERE subscription = ? AND shard = ? AND key = ? AND solo = ? ORDER BY id LIMIT ?`,
		[]any{sub, at.Shard, at.Key, at.Seq, most}, func(scan func(...any) error) (bool, error) {
			r, n, err := dec.row(scan)
			if err != nil {
				return false, err
			}
			if size += n; size > ranges.ParkedBytes && len(rows) > 0 {
				return false, nil
			}
			r.Attempt = 1
			rows = append(rows, r)
			return true, nil
		})
	return rows
}

// StoreParked implements [outbox.Cursor]. Messages that an operator has taken out of their lane meanwhile are
// ignored.
func (c *cursor) StoreParked(ctx context.Context, outcomes []outbox.Outcome) (emptied []string, err error) {
	if len(outcomes) == 0 {
		return nil, nil
	}
	ctx, cancel := c.log.bounded(ctx)
	defer cancel()
	var held []cursorRow
	err = c.log.write(ctx, func(q *query) (err error) {
		if held, err = c.lockRows(q); err != nil {
			return err
		}
		emptied, err = c.storeParked(q, outcomes)
		return err
	})
	if err != nil {
		return nil, c.explain("settle parked messages", err)
	}
	c.ownRows = held
	return emptied, nil
}

func (c *cursor) storeParked(q *query, outcomes []outbox.Outcome) (emptied []string, err error) {
	for _, o := range outcomes { // first what leaves, so that what stays is first in its lane
		switch o.Kind {
		case outbox.Delivered, outbox.Dropped, outbox.Dead:
			emptied, err = c.removeDone(q, o, emptied)
		case outbox.Waiting, outbox.Held, outbox.Behind:
		default:
			err = fmt.Errorf("message %d has %q, which is not an outcome", o.Row.Seq, o.Kind)
		}
		if err != nil || q.err != nil {
			return nil, errors.Join(err, q.err)
		}
	}
	for _, o := range outcomes {
		if o.Kind != outbox.Waiting && o.Kind != outbox.Held {
			continue
		}
		if err := c.updateLane(q, o); err != nil || q.err != nil {
			return nil, errors.Join(err, q.err)
		}
	}
	return emptied, nil
}

// removeDone takes a message out of its lane. If the lane of a key is gone with it, it adds the key to
// emptied.
func (c *cursor) removeDone(q *query, o outbox.Outcome, emptied []string) ([]string, error) {
	sub := c.claim.Subscription
	at, found, err := c.find(q, o.Row.Seq)
	if !found {
		return emptied, err
	}
	switch {
	case o.Kind == outbox.Dead:
		q.addDeadLetter(sub, o.Row.Seq, o.Attempts, o.Cause)
	case o.Kind == outbox.Delivered && o.Row.Seq <= c.replayed && q.first(sub, at) != o.Row.Seq:
		return emptied, q.err // a replay has put others before it meanwhile: it comes again after them
	}
	if q.leaveLane(sub, at, o.Row.Seq) && at.Seq == 0 {
		emptied = append(emptied, at.Key)
	}
	return emptied, nil
}

// updateLane stores the state of the lane of a message that stays parked. A message that is no longer the first of its
// lane is ignored.
func (c *cursor) updateLane(q *query, o outbox.Outcome) error {
	held, cause := ranges.HeldCause(o)
	kept := q.exec(`UPDATE ~outbox_lane SET held = ?3, attempts = ?4, next_at = ?5, cause = ?6
		WHERE subscription = ?1 AND (shard, key, solo) = (SELECT shard, key, solo FROM ~outbox_parked WHERE subscription = ?1 AND id = ?2)
		AND shard BETWEEN ?7 AND ?8 AND ?2 = (SELECT min(p.id) FROM ~outbox_parked p
			WHERE p.subscription = ?1 AND p.shard = ~outbox_lane.shard AND p.key = ~outbox_lane.key AND p.solo = ~outbox_lane.solo)`,
		c.claim.Subscription, o.Row.Seq, held, o.Attempts, nanos(q.now.Add(max(o.RetryIn, 0))), cause, c.Lo, c.Hi)
	if kept == 1 || q.err != nil {
		return q.err
	}
	_, _, err := c.find(q, o.Row.Seq) // an error if it is of another range
	return err
}

// find returns the lane of a message of this range.
func (c *cursor) find(q *query, seq int64) (at ranges.ParkedKey, found bool, err error) {
	at, found = q.find(c.claim.Subscription, seq)
	if found && (at.Shard < c.Lo || at.Shard > c.Hi) {
		return at, false, fmt.Errorf("message %d is of shard %d", seq, at.Shard)
	}
	return at, found, nil
}

// find returns the lane of a message.
func (q *query) find(sub string, seq int64) (at ranges.ParkedKey, found bool) {
	found = q.one(`SELECT shard, key, solo FROM ~outbox_parked WHERE subscription = ? AND id = ?`, []any{sub, seq}, &at.Shard, &at.Key, &at.Seq)
	return at, found
}

// first returns the id of the first message of a lane, 0 if the lane is empty.
func (q *query) first(sub string, at ranges.ParkedKey) int64 {
	return q.number(`SELECT min(id) FROM ~outbox_parked WHERE subscription = ? AND shard = ? AND key = ? AND solo = ?`, sub, at.Shard, at.Key, at.Seq)
}

// addDeadLetter copies a parked message to the dead letters.
func (q *query) addDeadLetter(sub string, seq int64, attempts int, cause string) {
	q.exec(`INSERT OR REPLACE INTO ~outbox_dead (subscription, id, shard, attempts, died_at, cause, created_at, `+bodyColumns+`)
		SELECT subscription, id, shard, ?, ?, ?, created_at, `+bodyColumns+` FROM ~outbox_parked WHERE subscription = ? AND id = ?`,
		attempts, nanos(q.now), ranges.Cause(cause), sub, seq)
}

// leaveLane removes a message from its lane and reports whether the lane is gone with it. If the message
// was the first, the next one is due at once, with its attempts counted from zero.
func (q *query) leaveLane(sub string, at ranges.ParkedKey, seq int64) (gone bool) {
	head := q.first(sub, at) == seq
	q.exec(`DELETE FROM ~outbox_parked WHERE subscription = ? AND id = ?`, sub, seq)
	if !head {
		return false
	}
	if q.first(sub, at) == 0 && q.err == nil {
		q.exec(`DELETE FROM ~outbox_lane WHERE subscription = ? AND shard = ? AND key = ? AND solo = ?`, sub, at.Shard, at.Key, at.Seq)
		return true
	}
	q.wakeLane(sub, at)
	return false
}

// wakeLane makes a lane due at once, with its attempts counted from zero.
func (q *query) wakeLane(sub string, at ranges.ParkedKey) {
	q.exec(`UPDATE ~outbox_lane SET held = 0, attempts = 0, next_at = ?, cause = '' WHERE subscription = ? AND shard = ? AND key = ? AND solo = ?`,
		nanos(q.now), sub, at.Shard, at.Key, at.Seq)
}
