package pglog

import (
	"context"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/daemon/sweeper"
)

// Tasks returns what the sweeper does for the log. The fence of the sweeper is not needed: what a
// deposed one would remove, the next one would too.
func (l *Log) Tasks() []sweeper.Task {
	return []sweeper.Task{{
		Name: "outbox", Every: time.Minute,
		Step: func(ctx context.Context, _ daemon.Fence, limit int) (int, error) { return l.Sweep(ctx, limit) },
	}}
}

// Sweep makes partitions ahead, and removes those that every cursor has passed and that are older than
// the retention: at most limit. It returns how many; fewer than limit says that no more may go. When
// nothing may go and the log is too large, [Config.OnLag] decides.
func (l *Log) Sweep(ctx context.Context, limit int) (removed int, err error) {
	ctx, cancel := l.bounded(ctx)
	defer cancel()
	err = l.read(ctx, nil, func(q *query) error {
		l.extend(q)
		l.age(q)
		q.pass()
		removed = l.remove(q, max(limit, 1))
		return q.err
	})
	if err == nil && removed == 0 && l.cfg.MaxRetained > 0 {
		err = l.boundLag(ctx)
	}
	if err != nil {
		return removed, l.cfg.explain("sweep the outbox", err)
	}
	return removed, nil
}

// room is how far ahead ids must have a partition: three days at the highest speed of late.
const (
	room     = 3 * 24 * time.Hour
	maxWidth = 1 << 36
)

// extend makes partitions. How fast ids are drawn is measured from call to call; the highest speed is
// forgotten by half in a day. Partitions grow so that a dozen hold what three days bring.
func (l *Log) extend(q *query) {
	var peak float64
	q.one(`with n as materialized (select case when is_called then last_value else 0 end as drawn from ~outbox_id)
		update ~outbox_state s set drawn = n.drawn, drawn_at = clock_timestamp(),
			peak = greatest(s.peak * power(0.5, extract(epoch from clock_timestamp() - s.drawn_at) / 86400),
				(n.drawn - s.drawn) / extract(epoch from clock_timestamp() - s.drawn_at + interval '1 second'))
		from n returning s.peak`, nil, &peak)
	need := min(peak*room.Seconds(), 1<<48)
	width := l.cfg.width
	for width < maxWidth && float64(width)*12 < need {
		width *= 2
	}
	q.exec(`select ~outbox_extend($1, $2)`, max(int64(need), (minAhead-1)*width), width)
}

// The ids of a partition that is to end are drawn so many in a statement, and in a call.
const (
	burn    = 1 << 20
	burnMax = 4 * burn
)

// age fills up a partition that was begun long ago: otherwise few messages a day would stay for years,
// for only full partitions are removed. Its rest of ids is drawn for nobody.
func (l *Log) age(q *query) {
	rest := q.number(`select n.hi - 1 - s.last_value from ~outbox_partition n, ~outbox_id s
		where s.last_value >= n.lo and s.last_value < n.hi - 1
			and (select o.created_at from ~outbox o where o.id >= n.lo and o.id < n.hi order by o.id limit 1) < clock_timestamp() - $1 * interval '1 microsecond'`,
		max(l.cfg.Retention/2, l.cfg.age).Microseconds())
	for rest = min(rest, burnMax); rest > 0 && q.err == nil; rest -= burn {
		q.exec(`select max(nextval('~outbox_id')) from generate_series(1, $1::bigint)`, min(rest, burn))
	}
}

// pass draws a number for each partition that is full. The sequence is read before: whoever has an id
// of the partition has a lower number.
func (q *query) pass() {
	q.exec(writing + ` update ~outbox_partition n set x0 = at.tx, passed_at = coalesce(n.passed_at, clock_timestamp())
		from at where n.x0 is null and n.emptied_at is null and n.hi <= at.drawn + 1`)
}

// remove empties partitions and drops them when nobody uses the log for a moment; if many are empty,
// it waits for that, which holds up publishers for a fifth of a second at most.
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
	if code(q.err) == "55P03" { // somebody reads it: next time
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

// lagging are the subscriptions that have not delivered messages of the oldest full partition, though
// it is past the retention. An open transaction that keeps it is nobody's fault; a replay, or a
// subscription that nobody has claimed since a restore, is late if it stands still.
const lagging = `select distinct c.subscription from ~outbox_cursor c, ~outbox_state s,
		(select lo, hi from ~outbox_partition where x0 is not null and emptied_at is null
			and passed_at < clock_timestamp() - $1 * interval '1 microsecond' order by n limit 1) n
	where case when c.again is not null or c.era < s.era then c.updated_at < clock_timestamp() - $1 * interval '1 microsecond'
		else exists (select from ~outbox o where o.id >= n.lo and o.id < n.hi and o.shard between c.lo and c.hi
			and not (o.id <= c.base_from or pg_visible_in_snapshot(o.tx, c.snap_from))
			and not coalesce(o.id <= c.last and (o.id <= c.base_to or pg_visible_in_snapshot(o.tx, c.snap_to)), false)) end
	order by 1`

// boundLag applies OnLag.
func (l *Log) boundLag(ctx context.Context) error {
	var names []string
	forget := l.cfg.OnLag == LagForget
	err := l.write(ctx, nil, func(q *query) error {
		if q.number(`select `+retained) <= l.cfg.MaxRetained {
			return nil
		}
		q.each(lagging, []any{l.cfg.Retention.Microseconds()}, func(row pgx.Rows) error {
			names = append(names, "")
			return row.Scan(&names[len(names)-1])
		})
		for _, name := range names {
			if forget {
				q.forget(name)
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	for _, name := range names {
		l.cfg.Logger.WarnContext(ctx, "an outbox subscription lags and the log is too large", "subscription", name,
			"max_retained", l.cfg.MaxRetained, "forgotten", forget)
	}
	return nil
}

// tending is when relays saw to partitions last: the sweeper may be down.
type tending struct {
	sync.Mutex
	last time.Time
}

// tend makes partitions, once a minute at most.
func (l *Log) tend(ctx context.Context) {
	if !l.tending.TryLock() {
		return
	}
	defer l.tending.Unlock()
	if time.Since(l.tending.last) < time.Minute {
		return
	}
	l.tending.last = time.Now()
	ctx, cancel := l.bounded(ctx)
	defer cancel()
	err := l.read(ctx, nil, func(q *query) error {
		l.extend(q)
		return nil
	})
	if err != nil && ctx.Err() == nil {
		l.cfg.Logger.WarnContext(ctx, "the outbox's partitions could not be made ahead", "error", l.cfg.explain("extend the outbox", err))
	}
}
