package postgres

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/emitd/emitd/outbox"
	"github.com/emitd/emitd/outbox/internal/ranges"
)

// isHeld says that the key of the lane n is held, perhaps only until its next attempt.
const isHeld = `(n.held or starts_with(n.cause, '` + ranges.Resumes + `'))`

// listing selects the parked messages for List, one row per message.
const listing = `select ` + parkedOf + `, p.subscription, p.what, p.attempts, p.cause, p.next_at, p.at from (
	select p.*, case when f.id is not null then 'behind' when ` + isHeld + ` then 'held' else 'waiting' end as what,
		n.attempts, case when f.id is null then n.cause else '' end as cause, n.next_at, p.parked_at as at
	from ~outbox_parked p
	join ~outbox_lane n on n.subscription = p.subscription and n.shard = p.shard and n.key = p.lane and n.solo = p.solo
	left join lateral (select f.id from ~outbox_parked f
		where f.subscription = p.subscription and f.shard = p.shard and f.lane = p.lane and f.solo = p.solo and f.id < p.id limit 1) f on true
	where p.parked_at >= $8 and p.parked_at < $9 and ` + selects + `
) p where $2 in ('', p.what) and $2 <> 'dead' and position($7 in p.cause) > 0`

const deadListing = `select ` + parkedOf + `, p.subscription, 'dead', p.attempts, p.cause, p.died_at, p.died_at from ~outbox_dead p
	where $2 in ('', 'dead') and position($7 in p.cause) > 0 and p.died_at >= $8 and p.died_at < $9 and ` + selects

// selects has the conditions of a filter that hold for parked and dead messages alike. The server plans it
// for the values of each call, so a condition that selects all costs nothing.
const selects = `($1 = '' or p.subscription = $1) and ($3 = '' or p.key = $3) and ($4::bigint = 0 or p.id = $4::bigint) and p.id > $5::bigint
	and ($6 = '' or p.topic = $6 or right($6, 1) = '*' and starts_with(p.topic, left($6, -1))) and ($10::bigint[] is null or p.id = any($10::bigint[]))`

// filterArgs returns the arguments of listing. Nil seqs means all.
func filterArgs(f outbox.Filter, seqs []int64) []any {
	since, until := pgtype.Timestamptz{Valid: true, InfinityModifier: pgtype.NegativeInfinity}, pgtype.Timestamptz{Valid: true, InfinityModifier: pgtype.Infinity}
	if !f.Since.IsZero() {
		since = pgtype.Timestamptz{Valid: true, Time: f.Since}
	}
	if !f.Until.IsZero() {
		until = pgtype.Timestamptz{Valid: true, Time: f.Until}
	}
	return []any{f.Subscription, string(f.Kind), f.Key, f.Seq, f.After, f.Topic, f.Cause, since, until, seqs}
}

// List implements [outbox.Operator].
func (l *Log) List(ctx context.Context, f outbox.Filter) (out []outbox.Entry, err error) {
	if f, err = ranges.ValidFilter(f); err != nil {
		return nil, fmt.Errorf("list messages: %w", err)
	}
	ctx, cancel := l.bounded(ctx)
	defer cancel()
	err = l.read(ctx, nil, func(q *query) error {
		var b body
		q.each(`select * from (`+listing+` union all `+deadListing+`) e order by id, subscription limit $11`,
			append(filterArgs(f, nil), f.Limit), func(row pgx.Rows) error {
				var e outbox.Entry
				var attempts int
				var cause string
				var next time.Time
				if err := b.scan(row, &e.Subscription, &e.Kind, &attempts, &cause, &next, &e.ParkedAt); err != nil {
					return err
				}
				if e.Row = b.row; e.Kind != outbox.Behind {
					e.Attempt = attempts
				}
				ranges.SetCause(&e, cause, next)
				out = append(out, e)
				return nil
			})
		return q.err
	})
	if err != nil {
		return nil, l.cfg.explain("list messages", err)
	}
	return out, nil
}

// selected returns number and kind of the messages that a filter selects, in log order. Nil seqs means all.
func (q *query) selected(f outbox.Filter, seqs []int64) (found []ranges.Listed) {
	q.each(`select id, what from (select p.id, p.what from (`+listing+`) p (`+listedNames+`) union all select p.id, p.what from (`+deadListing+`) p (`+listedNames+`)) e order by id`,
		filterArgs(f, seqs), func(row pgx.Rows) error {
			var m ranges.Listed
			err := row.Scan(&m.Seq, &m.Kind)
			found = append(found, m)
			return err
		})
	return found
}

// listedNames names the first columns of listing.
const listedNames = `id, shard, created_at, dedup_id, key, topic, type, headers, traceparent, tracestate, payload, subscription, what`

// SettleAll implements [outbox.Operator].
func (l *Log) SettleAll(ctx context.Context, f outbox.Filter, to outbox.Kind, dryRun bool) (map[outbox.Kind]int, error) {
	b := ranges.Bulk{Filter: f, To: to, DryRun: dryRun}
	if err := b.Valid(); err != nil {
		return nil, fmt.Errorf("change messages of %q: %w", f.Subscription, err)
	}
	bounded, cancel := l.bounded(ctx)
	defer cancel()
	var chosen []ranges.Listed
	err := l.read(bounded, nil, func(q *query) error {
		if q.number(`select count(*) from ~outbox_subscription where name = $1`, f.Subscription) == 0 && q.err == nil {
			return fmt.Errorf("the subscription is %w", outbox.ErrNotFound)
		}
		chosen = b.Select(q.selected(b.Filter, nil))
		return q.err
	})
	if err != nil {
		return nil, l.cfg.explain(fmt.Sprintf("change messages of %q", f.Subscription), err)
	}
	return b.Run(chosen, func(seqs []int64) (done []ranges.Listed, err error) {
		err = l.change(ctx, "change messages of", f.Subscription, func(q *query) error {
			done = b.Select(q.selected(b.Filter, seqs))
			q.settleAll(f.Subscription, to, done)
			return nil
		})
		return done, err
	})
}

// settleAll changes messages of kinds for which this is allowed.
func (q *query) settleAll(sub string, to outbox.Kind, messages []ranges.Listed) {
	parked := ranges.SeqsOf(messages, outbox.Waiting, outbox.Held, outbox.Behind)
	dead := ranges.SeqsOf(messages, outbox.Dead)
	switch {
	case len(messages) == 0:
	case to == outbox.Waiting:
		q.wake(sub, parked)
		q.putBack(sub, dead)
	case to == outbox.Dead:
		q.skip(sub, parked, q.find(sub, parked))
	default:
		q.exec(`delete from ~outbox_dead where subscription = $1 and id = any($2)`, sub, dead)
	}
}
