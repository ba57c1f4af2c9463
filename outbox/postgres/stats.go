package postgres

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/emitd/emitd/outbox"
	"github.com/emitd/emitd/outbox/internal/ranges"
)

// countTo is the number at which counting stops.
const countTo = 10_000

// Stats implements [outbox.Operator]. It returns nothing for an unknown subscription. Retained is the
// size of all partitions with their indexes.
func (l *Log) Stats(ctx context.Context, subscription string) (out []outbox.Stats, err error) {
	ctx, cancel := l.bounded(ctx)
	defer cancel()
	err = l.read(ctx, nil, func(q *query) error {
		var all outbox.Stats
		q.one(`select clock_timestamp(), `+retained+`, (select count(*) from ~outbox_partition n where n.lo > greatest(`+lastDrawn+`, 1))`,
			nil, &all.Now, &all.Retained, &all.PartitionsAhead)
		var next *time.Time
		q.one(`select count(*), min(not_before) from (select not_before from ~outbox_delayed order by not_before limit $1) d`,
			[]any{countTo}, &all.Delayed, &next)
		if next != nil {
			all.NextAt = *next
		}
		q.each(`select s.name, s.paused, s.instances, (select count(*) from ~outbox_lane n where n.subscription = s.name),
				(select count(*) from ~outbox_lane n where n.subscription = s.name and `+isHeld+`),
				(select count(*) from ~outbox_dead d where d.subscription = s.name),
				(select count(*) from ~outbox_parked p where p.subscription = s.name),
				(select min(p.created_at) from (select p.created_at from ~outbox_parked p where p.subscription = s.name order by p.id limit $2) p)
			from ~outbox_subscription s where $1 in ('', s.name) order by s.name`, []any{subscription, countTo + 1}, func(row pgx.Rows) error {
			s := all
			s.PendingExact = true
			var oldest *time.Time
			err := row.Scan(&s.Subscription, &s.Paused, &s.Instances, &s.ParkedKeys, &s.HeldKeys, &s.Dead, &s.Pending, &oldest)
			if oldest != nil {
				s.OldestAt = *oldest
			}
			out = append(out, s)
			return err
		})
		for i := range out {
			for _, n := range q.cursors(&out[i]) {
				out[i].Pending += ranges.Pending(n.counted, n.after, n.last, q.idsAfter(n.last)) - n.counted
			}
		}
		return nil
	})
	if err != nil {
		return nil, l.cfg.explain("read the outbox's state", err)
	}
	return out, nil
}

const retained = `(select coalesce(sum(pg_total_relation_size(i.inhrelid)), 0)::bigint from pg_inherits i where i.inhparent = '~outbox'::regclass)`

// cursors adds the cursor rows of a subscription and the messages that were published but not read: those
// that a row's snapshots do not see. Like a reader it scans from the floor, and looks up earlier messages
// by their transactions.
// Rows of which not all were counted are returned.
func (q *query) cursors(s *outbox.Stats) (partial []partialCount) {
	q.each(`select c.lo, c.hi, c.epoch, c.node, c.updated_at, c.trouble, u.pending, u.oldest, u.late, u.first, u.last
		from ~outbox_cursor c cross join lateral (
			select count(*) as pending, min(u.created_at) as oldest, count(*) - count(u.id) as late,
				coalesce(min(u.id), 0) as first, coalesce(max(u.id), 0) as last from (
				(select o.created_at, o.id from ~outbox o
					where o.id > case when c.again is null then c.floor else least(c.again, c.floor) end and o.shard between c.lo and c.hi
						and `+undelivered+`
					order by o.id limit $2)
				union all
				(select o.created_at, null::bigint from (select pg_snapshot_xip(c.snap_from) as tx where c.again is null) x cross join lateral (
					select o.created_at from ~outbox o where o.tx = x.tx and o.id <= c.floor and o.id > c.base_from and o.shard between c.lo and c.hi
						and not coalesce(o.id <= c.last and pg_visible_in_snapshot(o.tx, c.snap_to), false) offset 0) o
					limit $2)
			) u) u
		where c.subscription = $1 order by c.lo`, []any{s.Subscription, countTo + 1}, func(row pgx.Rows) error {
		var c outbox.CursorStats
		var pending, late, first, last int64
		var oldest *time.Time
		err := row.Scan(&c.Range.Lo, &c.Range.Hi, &c.Epoch, &c.Node, &c.UpdatedAt, &c.Problem, &pending, &oldest, &late, &first, &last)
		if pending-late > countTo {
			partial = append(partial, partialCount{counted: pending - late, after: first - 1, last: last})
		}
		s.PendingExact = s.PendingExact && pending-late <= countTo && late <= countTo
		if oldest != nil && (s.OldestAt.IsZero() || oldest.Before(s.OldestAt)) {
			s.OldestAt = *oldest
		}
		s.Pending += pending
		s.Cursors = append(s.Cursors, c)
		return err
	})
	return partial
}

// partialCount is a cursor row of which counting stopped: it has counted messages in the ids after after and up
// to last.
type partialCount struct{ counted, after, last int64 }

// idsAfter returns about how many ids above an id are in the log. A partition that was closed early has unused
// ids at its end, so the last used one of each counts.
func (q *query) idsAfter(id int64) int64 {
	return q.number(`select coalesce(sum(greatest(m.top - greatest(n.lo - 1, $1), 0)), 0)::bigint from ~outbox_partition n
		cross join lateral (select max(o.id) as top from ~outbox o where o.id >= n.lo and o.id < n.hi) m
		where n.hi > $1 and n.emptied_at is null and n.lo <= `+lastDrawn, id)
}
