package sqlitelog

import (
	"context"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/daemon/sweeper"
)

// sweepRows is how many messages one transaction removes at most: other writers wait for it.
const sweepRows = 2000

// Tasks returns what the sweeper does for the log. The fence of the sweeper is not needed: what a
// deposed one would remove, the next one would too.
func (l *Log) Tasks() []sweeper.Task {
	return []sweeper.Task{{
		Name: "outbox", Every: time.Minute,
		Step: func(ctx context.Context, _ daemon.Fence, limit int) (int, error) { return l.Sweep(ctx, limit) },
	}}
}

// Sweep removes messages from the beginning of the log that every cursor has passed and that are
// older than the retention: at most limit, and at most 2,000, in one transaction. It returns how many;
// fewer than limit says that no more may go, unless the limit was higher than 2,000. When nothing may
// go and the log is too large, [Config.OnLag] decides.
func (l *Log) Sweep(ctx context.Context, limit int) (int, error) {
	ctx, cancel := l.bounded(ctx)
	defer cancel()
	limit = max(min(limit, sweepRows), 1)
	var removed int64
	var lagging []string
	err := l.write(ctx, func(q *query) error {
		removed = q.sweep(q.now.Add(-l.cfg.Retention), limit)
		if removed == 0 && l.cfg.MaxRetained > 0 && q.retained() > l.cfg.MaxRetained {
			if lagging = q.lagging(q.now.Add(-l.cfg.Retention)); l.cfg.OnLag == LagForget {
				for _, name := range lagging {
					q.forget(name)
				}
			}
		}
		return nil
	})
	if err != nil {
		return 0, explain("sweep the outbox", l.cfg.Path, err)
	}
	for _, name := range lagging {
		l.cfg.Logger.WarnContext(ctx, "an outbox subscription lags and the log is too large", "subscription", name,
			"max_retained", l.cfg.MaxRetained, "forgotten", l.cfg.OnLag == LagForget)
	}
	return int(removed), nil
}

// sweep removes a beginning of the log. It ends before the first message that must stay, even if
// later ones could go (after the clock was set back): the log has no holes.
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

// lagging are the subscriptions that have not passed the oldest message though it is past the
// retention.
func (q *query) lagging(before time.Time) (names []string) {
	q.each(`SELECT DISTINCT c.subscription FROM ~outbox_cursor c
		WHERE c.last < (SELECT min(id) FROM ~outbox) AND (SELECT created_at FROM ~outbox ORDER BY id LIMIT 1) < ?`,
		[]any{nanos(before)}, func(scan func(...any) error) (bool, error) {
			var name string
			err := scan(&name)
			names = append(names, name)
			return true, err
		})
	return names
}
