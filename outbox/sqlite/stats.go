package sqlite

import (
	"context"
	"time"

	"github.com/emitd/emitd/outbox"
	"github.com/emitd/emitd/outbox/internal/ranges"
)

// countTo is the number at which counting stops.
const countTo = 10_000

// Stats implements [outbox.Operator]. It returns nothing for an unknown subscription. Retained is an
// estimate from the number of messages and the length of a sample.
func (l *Log) Stats(ctx context.Context, subscription string) ([]outbox.Stats, error) {
	ctx, cancel := l.bounded(ctx)
	defer cancel()
	var out []outbox.Stats
	err := l.read(ctx, func(q *query) error {
		retained := q.retained()
		delayed, next := q.delayed()
		q.each(`SELECT name, paused, instances FROM ~outbox_subscription WHERE ?1 IN ('', name) ORDER BY name`, []any{subscription}, func(scan func(...any) error) (bool, error) {
			s := outbox.Stats{Now: q.now, Retained: retained, PartitionsAhead: -1, Delayed: delayed, NextAt: next}
			err := scan(&s.Subscription, &s.Paused, &s.Instances)
			out = append(out, s)
			return true, err
		})
		for i := range out {
			q.stats(&out[i])
		}
		return nil
	})
	if err != nil {
		return nil, explain("read the outbox's state", l.cfg.Path, err)
	}
	return out, nil
}

// delayed counts the delayed messages and returns when the next one is due.
func (q *query) delayed() (n int64, next time.Time) {
	var first int64
	q.one(`SELECT count(*), coalesce(min(not_before), 0) FROM (SELECT not_before FROM ~outbox_delayed ORDER BY not_before LIMIT ?)`, []any{countTo}, &n, &first)
	if n > 0 {
		next = time.Unix(0, first)
	}
	return n, next
}

// stats adds the numbers of one subscription.
func (q *query) stats(s *outbox.Stats) {
	name := s.Subscription
	s.PendingExact = true
	var oldest int64
	older := func(at int64) {
		if at != 0 && (oldest == 0 || at < oldest) {
			oldest = at
		}
	}
	for _, p := range q.cursorRows(name) {
		older(q.number(`SELECT created_at FROM ~outbox WHERE id > ? AND shard BETWEEN ? AND ? ORDER BY id LIMIT 1`, p.last, p.Lo, p.Hi))
		n, exact := q.pending(p)
		s.Pending, s.PendingExact = s.Pending+n, s.PendingExact && exact
	}
	s.Pending += q.number(`SELECT count(*) FROM ~outbox_parked WHERE subscription = ?`, name)
	older(q.number(`SELECT min(created_at) FROM ~outbox_parked WHERE subscription = ?`, name))
	if oldest != 0 {
		s.OldestAt = time.Unix(0, oldest)
	}
	q.one(`SELECT count(*), coalesce(sum(`+isHeld+`), 0) FROM ~outbox_lane WHERE subscription = ?`, []any{name}, &s.ParkedKeys, &s.HeldKeys)
	s.Dead = q.number(`SELECT count(*) FROM ~outbox_dead WHERE subscription = ?`, name)
	q.each(`SELECT lo, hi, epoch, node, updated_at, trouble FROM ~outbox_cursor WHERE subscription = ? ORDER BY lo`, []any{name}, func(scan func(...any) error) (bool, error) {
		var c outbox.CursorStats
		var at int64
		err := scan(&c.Range.Lo, &c.Range.Hi, &c.Epoch, &c.Node, &at, &c.Problem)
		c.UpdatedAt = time.Unix(0, at)
		s.Cursors = append(s.Cursors, c)
		return true, err
	})
}

// pending returns how many messages of the log a cursor row has not passed. Counting stops at 10,000; the
// rest is estimated from the share of the counted ids that are of the row's shards.
func (q *query) pending(p cursorRow) (n int64, exact bool) {
	var last int64
	q.one(`SELECT count(*), coalesce(max(id), 0) FROM (SELECT id FROM ~outbox WHERE id > ? AND shard BETWEEN ? AND ? ORDER BY id LIMIT ?)`,
		[]any{p.last, p.Lo, p.Hi, countTo + 1}, &n, &last)
	if n <= countTo {
		return n, true
	}
	var first, end int64
	q.one(`SELECT a, b FROM (SELECT (SELECT min(id) FROM ~outbox) AS a, (SELECT max(id) FROM ~outbox) AS b)`, nil, &first, &end)
	return ranges.Pending(n, max(p.last, first-1), last, end-last), false
}

// retained estimates the size of the log in bytes: the number of ids times the mean size of a sample from
// both ends. The lengths stand at the beginning of a row, so long payloads are not read.
func (q *query) retained() int64 {
	const size = `SELECT 40 + length(key) + length(topic) + length(type) + length(headers) + length(traceparent) + length(tracestate) + coalesce(length(payload), 0) AS n FROM ~outbox ORDER BY id`
	var rows, mean float64
	q.one(`SELECT coalesce(max(id) - min(id) + 1, 0) FROM (SELECT (SELECT min(id) FROM ~outbox) AS id UNION ALL SELECT (SELECT max(id) FROM ~outbox))`, nil, &rows)
	q.one(`SELECT coalesce(avg(n), 0) FROM (SELECT n FROM (`+size+` LIMIT 100) UNION ALL SELECT n FROM (`+size+` DESC LIMIT 100))`, nil, &mean)
	return int64(rows * mean)
}
