package postgres

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/emitd/emitd/outbox"
	"github.com/emitd/emitd/outbox/internal/ranges"
)

// Replay implements [outbox.Operator]. Messages that were removed from the log are not delivered again. It first
// reads the log, without locks, and then changes what it has found in one transaction, which checks it once
// more.
func (l *Log) Replay(ctx context.Context, req outbox.ReplayRequest) (after int64, counts map[outbox.Kind]int, err error) {
	what := fmt.Sprintf("replay %q", req.Subscription)
	r, err := ranges.NewReplay(req)
	if err != nil {
		return 0, nil, fmt.Errorf("%s: %w", what, err)
	}
	after, upTo, err := l.locate(ctx, r)
	if err == nil {
		err = l.choose(ctx, r, after, upTo)
	}
	if err == nil {
		err = r.CheckSize()
	}
	if err != nil {
		return 0, nil, l.cfg.explain(what, err)
	}
	switch {
	case req.DryRun:
	case r.MovesBack():
		err = l.change(ctx, "replay", req.Subscription, func(q *query) error {
			q.rewind(req.Subscription, after)
			return nil
		})
	case len(r.IDs) > 0:
		err = l.change(ctx, "replay", req.Subscription, func(q *query) error {
			r.Parked(q.parkAgain(r))
			return nil
		})
	}
	if err != nil {
		return 0, nil, err
	}
	return after, r.Counts(), nil
}

// locate returns the range of ids that a replay selects: those after the one and up to the other.
func (l *Log) locate(ctx context.Context, r *ranges.Replay) (after, upTo int64, err error) {
	ctx, cancel := l.bounded(ctx)
	defer cancel()
	err = l.read(ctx, nil, func(q *query) error {
		if q.number(`select count(*) from ~outbox_subscription where name = $1`, r.Subscription) == 0 && q.err == nil {
			return fmt.Errorf("the subscription is %w", outbox.ErrNotFound)
		}
		var e ranges.LogState
		q.one(`select coalesce(o.id, 0), coalesce(o.created_at, now()), n.drawn, clock_timestamp()
			from (select `+lastDrawn+` as drawn) n
			left join (select id, created_at from ~outbox order by id limit 1) o on true`, nil, &e.First, &e.FirstAt, &e.End, &e.Now)
		if q.err != nil {
			return q.err
		}
		if err := r.CheckRange(e); err != nil {
			return err
		}
		after, upTo = max(r.After, e.First-1), e.End
		if !r.Since.IsZero() {
			if id := q.number(firstSince, q.passed(after, e.End, r.Since.Add(-clockStep)), r.Since); id > 0 {
				after = max(after, id-1)
			} else {
				after = e.End
			}
		}
		if r.UpTo > 0 {
			upTo = r.UpTo
		}
		if !r.Until.IsZero() {
			upTo = min(upTo, q.passed(e.First-1, e.End, r.Until.Add(clockStep)))
			upTo = q.number(lastBefore, upTo, r.Until)
		}
		return nil
	})
	return after, upTo, err
}

// clockStep is how far times in the log may be from the order of the ids: because the server's clock was set back while
// a message that a replay selects by time was in the log, or because a session stood still after it had drawn an id. Apart
// from such steps, times grow with the ids, so they need no index.
const clockStep = 10 * time.Minute

// The statements that find messages by time. They begin at an id and read on while times do not match, which is at
// most what was published in twice the time clockStep.
const (
	firstSince = `select id from ~outbox where id > $1 and created_at >= $2 order by id limit 1`
	lastBefore = `select id from ~outbox where id <= $1 and created_at < $2 order by id desc limit 1`
	nextInLog  = `select id, created_at from ~outbox where id > $1 and id <= $2 order by id limit 1`
)

// passed returns an id before which, and at which, all messages of the log are older than t, by bisection of
// the ids after lo and up to hi. If times grow with the ids, the next message is not older; lo is returned if the
// first one is not.
func (q *query) passed(lo, hi int64, t time.Time) int64 {
	for lo < hi && q.err == nil {
		middle := lo + (hi-lo)/2
		var id int64
		var at time.Time
		if q.one(nextInLog, []any{middle, hi}, &id, &at) && at.Before(t) {
			lo = id
		} else { // what is after middle is not older, or there is nothing: the rest decides
			hi = middle
		}
	}
	return lo
}

// choose finds the messages that a replay selects among the ids after after and up to upTo. Each statement
// has a time limit of its own, because the log may be long.
func (l *Log) choose(ctx context.Context, r *ranges.Replay, after, upTo int64) error {
	more := true
	for more && after < upTo {
		end := min(after+window, upTo)
		err := func() error {
			ctx, cancel := l.bounded(ctx)
			defer cancel()
			return l.read(ctx, nil, func(q *query) error {
				found := false
				q.each(`select o.id, o.shard, coalesce(octet_length(o.payload), 0), coalesce(`+undelivered+`, false)
						or exists (select from ~outbox_parked p where p.subscription = $1 and p.id = o.id offset 0)
					from ~outbox o join ~outbox_cursor c on c.subscription = $1 and o.shard between c.lo and c.hi
					where o.id > $2 and o.id <= $3 and ($4 = '' or o.key = $4) and ($5::text[] is null or exists (
						select from unnest($5::text[]) t (name) where o.topic = t.name or right(t.name, 1) = '*' and starts_with(o.topic, left(t.name, -1))))
					order by o.id`,
					[]any{r.Subscription, after, end, r.Key, r.Topics}, func(row pgx.Rows) error {
						var id, bytes int64
						var shard int
						var coming bool
						err := row.Scan(&id, &shard, &bytes, &coming)
						found = true
						more = more && r.Add(id, shard, bytes, coming)
						return err
					})
				if after = end; !found && q.err == nil { // skip a long gap at once
					after = max(after, q.number(`select coalesce(min(id) - 1, $2) from (select id from ~outbox where id > $1 order by id limit 1) o`, end, upTo))
				}
				return nil
			})
		}()
		if err != nil {
			return err
		}
	}
	return nil
}

// rewind moves the cursors of a subscription back. Undelivered messages are not skipped.
func (q *query) rewind(subscription string, after int64) {
	q.markReplayed(subscription)
	rows, _ := q.cursorRows(subscription)
	for _, p := range rows {
		at := p.rewound(after)
		q.exec(`update ~outbox_cursor set snap_from = $1::pg_snapshot, base_from = $2, snap_to = null, base_to = 0, last = 0, again = $3,
				turn = turn + 1, rev = rev + 1, updated_at = clock_timestamp()
			where subscription = $4 and lo = $5`, string(at.from.at), at.from.base, at.replayAfter, subscription, p.Lo)
	}
}

func (q *query) markReplayed(subscription string) {
	q.exec(`update ~outbox_subscription set replayed = `+lastDrawn+` where name = $1`, subscription)
}

// parkAgain parks copies of the chosen messages and returns how many. Messages that are parked meanwhile, that
// are no longer delivered, or that were removed from the log are left out. A raised turn makes the relays of
// the keys claim again: only then do they know that the keys are parked.
func (q *query) parkAgain(r *ranges.Replay) int {
	q.markReplayed(r.Subscription)
	parked := q.number(`with chosen as materialized (
			select o.* from unnest($2::bigint[]) l (id) cross join lateral (select * from ~outbox o where o.id = l.id offset 0) o
			join ~outbox_cursor c on c.subscription = $1 and o.shard between c.lo and c.hi
			where not coalesce(`+undelivered+`, false)),
		parked as (insert into ~outbox_parked (subscription, id, shard, lane, solo, created_at, `+bodyColumns+`)
			select $1, id, shard, coalesce(key, ''), case when key is null then id else 0 end, created_at, `+bodyColumns+` from chosen
			on conflict do nothing returning shard, lane, solo),
		lanes as (insert into ~outbox_lane (subscription, shard, key, solo) select distinct $1, shard, lane, solo from parked
			on conflict (subscription, shard, key, solo) do update set held = false, attempts = 0, next_at = excluded.next_at, cause = '')
		select count(*) from parked`, r.Subscription, r.IDs)
	q.exec(`update ~outbox_cursor c set turn = c.turn + 1, rev = c.rev + 1, updated_at = clock_timestamp()
		where c.subscription = $1 and exists (select from unnest($2::int[]) s (shard) where s.shard between c.lo and c.hi)`, r.Subscription, r.Shards())
	return int(parked)
}
