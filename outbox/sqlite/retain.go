package sqlite

import (
	"context"
	"math"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/daemon/sweeper"
	"github.com/emitd/emitd/outbox/internal/ranges"
)

// sweepRows is how many messages one transaction removes at most, because other writers wait for it.
const sweepRows = 2000

// Tasks returns the sweeper's tasks for the log. They ignore the sweeper's fence, because a sweeper that
// was replaced removes nothing that its successor would not remove too. Give them to a daemon of their own, as
// examples/outbox does: emit:sweeper may be on a node that does not know the log.
func (l *Log) Tasks() []sweeper.Task {
	return []sweeper.Task{{
		Name: "outbox", Every: time.Minute,
		Step: func(ctx context.Context, _ daemon.Fence, limit int) (int, error) { return l.Sweep(ctx, limit) },
	}, {
		Name: "outbox dead letters", Every: 10 * time.Minute,
		Step: func(ctx context.Context, _ daemon.Fence, limit int) (int, error) { return l.sweepDead(ctx, limit) },
	}}
}

// sweepDead removes at most limit dead letters that are older than DeadRetention, and returns how many. It
// scans the dead letters, so it runs seldom.
func (l *Log) sweepDead(ctx context.Context, limit int) (int, error) {
	if l.cfg.DeadRetention <= 0 {
		return 0, nil
	}
	ctx, cancel := l.bounded(ctx)
	defer cancel()
	var removed int64
	err := l.write(ctx, func(q *query) error {
		removed = q.exec(`DELETE FROM ~outbox_dead WHERE (subscription, id) IN (SELECT subscription, id FROM ~outbox_dead WHERE died_at < ? LIMIT ?)`,
			nanos(q.now.Add(-l.cfg.DeadRetention)), min(limit, sweepRows))
		return q.err
	})
	if err != nil {
		return 0, explain("remove dead letters", l.cfg.Path, err)
	}
	if removed > 0 {
		l.cfg.Logger.InfoContext(ctx, "dead letters of the outbox were deleted because of their age", "messages", removed, "dead_retention", l.cfg.DeadRetention)
	}
	return int(removed), nil
}

// Sweep removes the oldest messages that every cursor has passed and that are older than the retention:
// at most limit, and at most 2,000, in one transaction. It returns how many it removed. Fewer than limit
// says that no more can go, unless limit is above 2,000. If no more can go and the log is too large,
// [Config.OnLag] applies.
func (l *Log) Sweep(ctx context.Context, limit int) (int, error) {
	ctx, cancel := l.bounded(ctx)
	defer cancel()
	limit = max(min(limit, sweepRows), 1)
	var removed int64
	var late []ranges.LaggingRow
	forget := l.cfg.OnLag == LagForget
	err := l.write(ctx, func(q *query) error {
		before := q.now.Add(-l.cfg.Retention)
		if removed = q.sweep(before, limit); removed == int64(limit) || l.cfg.MaxRetained <= 0 {
			return nil
		}
		last := q.excess(before, l.cfg.MaxRetained)
		if late = q.lagging(last); len(late) > 0 && forget {
			q.exec(`UPDATE ~outbox_cursor SET last = ?1, turn = turn + 1, rev = rev + 1, updated_at = ?2 WHERE last < ?1`, last, nanos(q.now))
			removed += q.sweep(before, limit-int(removed))
		}
		return nil
	})
	if err != nil {
		return 0, explain("sweep the outbox", l.cfg.Path, err)
	}
	for _, n := range ranges.BySubscription(late) {
		l.cfg.Logger.WarnContext(ctx, "an outbox subscription lags and the log is too large", "subscription", n.Subscription,
			"messages", n.Messages, "max_retained", l.cfg.MaxRetained, "forgotten", forget)
	}
	return int(removed), nil
}

// sweep removes a prefix of the log. It stops before the first message that must stay, even if later ones
// could go (after the clock was set back), because the log must have no holes.
func (q *query) sweep(before time.Time, limit int) int64 {
	floor := q.end()
	q.one(`SELECT coalesce(min(last), ?) FROM ~outbox_cursor`, []any{floor}, &floor)
	last := q.number(`SELECT max(id) FROM (SELECT id FROM ~outbox WHERE id <= ? ORDER BY id LIMIT ?)`, floor, limit)
	if young := q.number(`SELECT min(id) FROM (SELECT id, created_at FROM ~outbox WHERE id <= ? ORDER BY id) WHERE created_at >= ?`, last, nanos(before)); young > 0 {
		last = young - 1
	}
	if last <= 0 || q.err != nil {
		return 0
	}
	return q.exec(`DELETE FROM ~outbox WHERE id <= ?`, last)
}

// maxExcess is how many messages are given up at once, because other writers wait while they are
// counted.
const maxExcess = 50 * sweepRows

// excess returns the last id of the prefix that must be removed to make the log small enough, limited to
// messages older than the retention. It assumes that all ids take the same space. 0 means that the log is
// not too large.
func (q *query) excess(before time.Time, limit int64) int64 {
	size := q.retained()
	if size <= limit {
		return 0
	}
	var first, ids int64
	q.one(`SELECT a, b - a + 1 FROM (SELECT (SELECT min(id) FROM ~outbox) AS a, (SELECT max(id) FROM ~outbox) AS b)`, nil, &first, &ids)
	ids = min(int64(math.Ceil(float64(ids)*float64(size-limit)/float64(size))), maxExcess)
	last := first - 1 + ids
	if young := q.number(`SELECT id FROM ~outbox WHERE id <= ? AND created_at >= ? ORDER BY id LIMIT 1`, last, nanos(before)); young > 0 {
		last = young - 1
	}
	return last
}

// lagging returns the cursor rows that have not passed an id, with the number of messages up to it that
// they have not delivered.
func (q *query) lagging(last int64) (late []ranges.LaggingRow) {
	q.each(`SELECT c.subscription, c.lo, (SELECT count(*) FROM ~outbox o WHERE o.id > c.last AND o.id <= ?1 AND o.shard BETWEEN c.lo AND c.hi)
		FROM ~outbox_cursor c WHERE c.last < ?1 AND EXISTS (SELECT 1 FROM ~outbox o WHERE o.id > c.last AND o.id <= ?1) ORDER BY c.subscription, c.lo`,
		[]any{last}, func(scan func(...any) error) (bool, error) {
			var n ranges.LaggingRow
			err := scan(&n.Subscription, &n.Lo, &n.Messages)
			late = append(late, n)
			return true, err
		})
	return late
}
