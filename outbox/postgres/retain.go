package postgres

import (
	"context"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/daemon/sweeper"
	"github.com/emitd/emitd/internal/pgerror"
	"github.com/emitd/emitd/outbox/internal/ranges"
)

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
	err := l.read(ctx, nil, func(q *query) error {
		removed = q.exec(`delete from ~outbox_dead where ctid = any(array(
			select ctid from ~outbox_dead where died_at < clock_timestamp() - $1 * interval '1 microsecond' limit $2))`, l.cfg.DeadRetention.Microseconds(), limit)
		return q.err
	})
	if err != nil {
		return 0, l.cfg.explain("remove dead letters", err)
	}
	if removed > 0 {
		l.cfg.Logger.InfoContext(ctx, "dead letters of the outbox were deleted because of their age", "messages", removed, "dead_retention", l.cfg.DeadRetention)
	}
	return int(removed), nil
}

// Sweep creates partitions ahead, and removes at most limit partitions that every cursor has passed and
// that are older than the retention. It returns how many it removed; fewer than limit says that no more
// can go. If none can go and the log is too large, [Config.OnLag] applies.
func (l *Log) Sweep(ctx context.Context, limit int) (removed int, err error) {
	ctx, cancel := l.bounded(ctx)
	defer cancel()
	limit = max(limit, 1)
	err = l.read(ctx, nil, func(q *query) error {
		l.extend(q)
		q.markFull()
		removed = l.remove(q, limit)
		l.closeOld(q)
		return q.err
	})
	if err == nil && removed == 0 && l.cfg.MaxRetained > 0 {
		removed, err = l.boundLag(ctx, limit)
	}
	if err != nil {
		return removed, l.cfg.explain("sweep the outbox", err)
	}
	return removed, nil
}

// timeAhead is how far ahead partitions are created: for the ids of that time at the recent peak rate.
const (
	timeAhead = 3 * 24 * time.Hour
	maxWidth  = 1 << 36
)

// extend creates partitions. It measures the rate at which ids are drawn from call to call; the peak rate
// decays by half in a day. Partitions grow so that a dozen hold the ids of three days.
func (l *Log) extend(q *query) {
	var peak float64
	q.one(`with n as materialized (select `+lastDrawn+` as drawn)
		update ~outbox_state s set drawn = n.drawn, drawn_at = clock_timestamp(),
			peak = greatest(s.peak * power(0.5, extract(epoch from clock_timestamp() - s.drawn_at) / 86400),
				(n.drawn - s.drawn) / extract(epoch from clock_timestamp() - s.drawn_at + interval '1 second'))
		from n returning s.peak`, nil, &peak)
	need := min(peak*timeAhead.Seconds(), 1<<48)
	width := l.cfg.width
	for width < maxWidth && float64(width)*12 < need {
		width *= 2
	}
	q.exec(`select ~outbox_extend($1, $2)`, max(int64(need), (minAhead-1)*width), width)
}

// closeOld closes the current partition if it was begun long ago. Otherwise a log with few messages a day
// would keep them for years, because only full partitions are removed. If a transaction that has
// published is still open, the next call tries again.
func (l *Log) closeOld(q *query) {
	n := q.number(`select n.n from ~outbox_partition n, (select `+lastDrawn+` as drawn) s
		where s.drawn >= n.lo and s.drawn < n.hi - 1
			and (select o.created_at from ~outbox o where o.id >= n.lo and o.id < n.hi order by o.id limit 1) < clock_timestamp() - $1 * interval '1 microsecond'`,
		max(l.cfg.Retention/2, l.cfg.age).Microseconds())
	var done bool
	if n > 0 && q.one(`select ~outbox_close($1)`, []any{n}, &done) && done {
		q.markFull()
	}
}

// markFull draws a transaction ID for each partition that is full.
func (q *query) markFull() { q.exec(`select ~outbox_pass()`) }

// remove empties partitions, and drops empty ones at a moment when nobody uses the log. If more than 16
// are empty, it waits for such a moment, which blocks publishers for at most a fifth of a second.
func (l *Log) remove(q *query, limit int) (removed int) {
	keep := l.cfg.Retention.Microseconds()
	for _, n := range q.numbers(`select n.n from ~outbox_partition n where n.x0 is not null and n.emptied_at is null
		and n.passed_at <= clock_timestamp() - $1 * interval '1 microsecond' order by n.n`, keep) {
		var done bool
		if removed >= limit || !q.one(`select ~outbox_empty($1, $2)`, []any{n, keep}, &done) || !done {
			break
		}
		removed++
	}
	empty := q.numbers(`select n.n from ~outbox_partition n where n.emptied_at is not null order by n.n`)
	for _, n := range empty {
		var done bool
		if !q.one(`select ~outbox_drop($1, $2)`, []any{n, len(empty) > 16}, &done) || !done {
			break
		}
	}
	if pgerror.Code(q.err) == "55P03" { // a partition is in use: the next call tries again
		q.err = nil
	}
	return removed
}

func (q *query) numbers(text string, args ...any) (out []int64) {
	q.each(text, args, func(row pgx.Rows) error {
		out = append(out, 0)
		return row.Scan(&out[len(out)-1])
	})
	return out
}

// excess selects the last id of the oldest partitions that must be removed to make the log small enough,
// among those that are full and older than the retention. It is null if the log is not too large or there
// is no such partition.
const excess = `with n as materialized (select n.n, n.lo, n.hi, n.x0 is not null and n.emptied_at is null
			and n.passed_at < clock_timestamp() - $1 * interval '1 microsecond' as old,
		pg_total_relation_size(leaf.oid)::bigint as size
		from ~outbox_partition n
		join pg_class log on log.oid = '~outbox'::regclass
		join pg_inherits i on i.inhparent = log.oid
		join pg_class leaf on leaf.oid = i.inhrelid and leaf.relname = log.relname || '_p' || n.n)
	select max(n.hi) - 1 from (select n.*, sum(n.size) over () - sum(n.size) over (order by n.n) + n.size as with_it from n) n
	where n.old and n.with_it > $2`

// lagging selects the cursor rows that have not delivered messages up to an id, with the number of these
// messages (counting stops at 10,001). If only an open transaction keeps a partition, no row counts as
// lagging. During a replay, or after a restore that no claim has followed, a row counts as lagging only
// if it has not moved for the retention time.
const lagging = `select c.subscription, c.lo, u.n from ~outbox_cursor c, ~outbox_state s, lateral (
		select count(*) as n from (select from ~outbox o where o.id <= $2 and o.shard between c.lo and c.hi
			and ` + undelivered + ` limit $3) o) u
	where (u.n > 0 or c.era < s.era) and (c.again is null and c.era = s.era or c.updated_at < clock_timestamp() - $1 * interval '1 microsecond')
	order by c.subscription, c.lo for update of c`

// boundLag applies OnLag, and removes what no cursor needs any more.
func (l *Log) boundLag(ctx context.Context, limit int) (removed int, err error) {
	var late []ranges.LaggingRow
	forget, keep := l.cfg.OnLag == LagForget, l.cfg.Retention.Microseconds()
	err = l.write(ctx, nil, func(q *query) error {
		last := q.number(excess, keep, l.cfg.MaxRetained)
		if last == 0 {
			return nil
		}
		q.each(lagging, []any{keep, last, countTo + 1}, func(row pgx.Rows) error {
			var n ranges.LaggingRow
			err := row.Scan(&n.Subscription, &n.Lo, &n.Messages)
			late = append(late, n)
			return err
		})
		for _, n := range late {
			if forget {
				q.passOver(n, last)
			}
		}
		return nil
	})
	if err != nil || len(late) == 0 {
		return 0, err
	}
	for _, n := range ranges.BySubscription(late) {
		l.cfg.Logger.WarnContext(ctx, "an outbox subscription lags and the log is too large", "subscription", n.Subscription,
			"messages", n.Messages, "max_retained", l.cfg.MaxRetained, "forgotten", forget)
	}
	if forget {
		err = l.read(ctx, nil, func(q *query) error {
			removed = l.remove(q, limit)
			return q.err
		})
	}
	return removed, err
}

// passOver moves a cursor row past an id, as if everything up to there were delivered. Later messages are
// not affected. The relay that owns the row must claim again.
func (q *query) passOver(n ranges.LaggingRow, last int64) {
	q.exec(`update ~outbox_cursor c set base_from = greatest(c.base_from, $1),
			base_to = case when c.snap_to is null then c.base_to else greatest(c.base_to, $1) end,
			last = case when c.snap_to is null then c.last else greatest(c.last, $1) end,
			again = case when c.again is null then null else greatest(c.again, $1) end,
			drawn = greatest(c.drawn, $1), turn = c.turn + 1, rev = c.rev + 1, updated_at = clock_timestamp()
		where c.subscription = $2 and c.lo = $3`, last, n.Subscription, n.Lo)
}

// extendTimer says when relays last created partitions. They do so because the sweeper may be down.
type extendTimer struct {
	sync.Mutex
	last time.Time
}

// extendIfDue creates partitions ahead, at most once a minute.
func (l *Log) extendIfDue(ctx context.Context) {
	if !l.lastExtend.TryLock() {
		return
	}
	defer l.lastExtend.Unlock()
	if time.Since(l.lastExtend.last) < time.Minute {
		return
	}
	l.lastExtend.last = time.Now()
	ctx, cancel := l.bounded(ctx)
	defer cancel()
	err := l.read(ctx, nil, func(q *query) error {
		l.extend(q)
		return nil
	})
	if err != nil && ctx.Err() == nil {
		l.cfg.Logger.WarnContext(ctx, "cannot create the outbox's partitions ahead", "error", l.cfg.explain("extend the outbox", err))
	}
}
