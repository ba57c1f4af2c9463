package postgres

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/emitd/emitd/outbox"
	"github.com/emitd/emitd/outbox/internal/ranges"
)

// change runs an operator's change of an existing subscription and wakes relays. It locks the
// subscription's cursor rows, so that the change happens entirely before or after each write of a relay.
func (l *Log) change(ctx context.Context, what, subscription string, fn func(*query) error) error {
	ctx, cancel := l.bounded(ctx)
	defer cancel()
	err := l.write(ctx, nil, func(q *query) error {
		if !q.one(`select from ~outbox_subscription where name = $1 for update`, []any{subscription}) {
			return errors.Join(q.err, fmt.Errorf("the subscription is %w", outbox.ErrNotFound))
		}
		q.exec(`select from ~outbox_cursor where subscription = $1 order by lo for update`, subscription)
		if err := fn(q); err != nil || l.cfg.Notify == NotifyPoll {
			return err
		}
		q.exec(`select pg_notify($1, '')`, l.names.channel())
		return nil
	})
	if err != nil {
		return l.cfg.explain(fmt.Sprintf("%s %q", what, subscription), err)
	}
	l.listeners.wakeAll()
	return nil
}

// Retry implements [outbox.Operator]. If none of the messages exists, it returns [outbox.ErrNotFound].
func (l *Log) Retry(ctx context.Context, subscription string, seqs ...int64) (n int, err error) {
	err = l.change(ctx, "retry messages of", subscription, func(q *query) error {
		if len(seqs) == 0 {
			n = int(q.exec(wakeLanes+isHeld, subscription)) + q.putBack(subscription, nil)
			return nil
		}
		n = q.wake(subscription, seqs)
		if n += q.putBack(subscription, seqs); n == 0 && q.err == nil {
			return fmt.Errorf("parked or dead messages %v: %w", seqs, outbox.ErrNotFound)
		}
		return nil
	})
	if err != nil {
		return 0, err
	}
	return n, nil
}

const wakeLanes = `update ~outbox_lane n set held = false, attempts = 0, next_at = clock_timestamp(), cause = '' where n.subscription = $1 and `

// wake makes the lanes of messages due at once, and returns how many lanes.
func (q *query) wake(sub string, seqs []int64) int {
	return int(q.exec(wakeLanes+`exists (select from ~outbox_parked p
		where p.subscription = $1 and p.id = any($2) and p.shard = n.shard and p.lane = n.key and p.solo = n.solo)`, sub, seqs))
}

// putBack parks dead messages again, each in a lane of its own, and returns how many. Nil seqs means all.
// A message that is parked already, because of a replay, is only removed from the dead letters.
func (q *query) putBack(sub string, seqs []int64) int {
	return int(q.exec(`with back as materialized (delete from ~outbox_dead where subscription = $1 and ($2::bigint[] is null or id = any($2)) returning *),
		parked as (insert into ~outbox_parked (subscription, id, shard, lane, solo, created_at, `+bodyColumns+`)
			select subscription, id, shard, coalesce(key, ''), id, created_at, `+bodyColumns+` from back
			on conflict do nothing returning shard, lane, solo),
		lanes as (insert into ~outbox_lane (subscription, shard, key, solo) select $1, shard, lane, solo from parked
			on conflict (subscription, shard, key, solo) do update set held = false, attempts = 0, next_at = excluded.next_at, cause = '')
		select from back`, sub, seqs))
}

// Skip implements [outbox.Operator]. It skips all of the messages or none.
func (l *Log) Skip(ctx context.Context, subscription string, seqs ...int64) error {
	return l.change(ctx, "skip messages of", subscription, func(q *query) error {
		where := q.find(subscription, seqs)
		for _, seq := range seqs {
			if _, found := where[seq]; !found && q.err == nil {
				return fmt.Errorf("message %d is %w", seq, outbox.ErrNotFound)
			}
		}
		q.skip(subscription, seqs, where)
		return nil
	})
}

// skip makes parked messages dead, given their lanes.
func (q *query) skip(subscription string, seqs []int64, where map[int64]ranges.ParkedKey) {
	var ids, attempts []int64
	var causes []string
	q.each(`select p.id, case when h.head then n.attempts else 0 end, case when h.head then n.cause else '' end
			from ~outbox_parked p
			join ~outbox_lane n on n.subscription = p.subscription and n.shard = p.shard and n.key = p.lane and n.solo = p.solo
			cross join lateral (select not exists (select from ~outbox_parked f
				where f.subscription = p.subscription and f.shard = p.shard and f.lane = p.lane and f.solo = p.solo and f.id < p.id) as head) h
			where p.subscription = $1 and p.id = any($2)`, []any{subscription, seqs}, func(row pgx.Rows) error {
		var id, n int64
		var cause string
		err := row.Scan(&id, &n, &cause)
		ids, attempts, causes = append(ids, id), append(attempts, n), append(causes, ranges.Skipped(cause))
		return err
	})
	q.addDeadLetters(subscription, ids, attempts, causes)
	q.leaveLanes(subscription, ids, where)
}

// Pause implements [outbox.Operator].
func (l *Log) Pause(ctx context.Context, subscription string, paused bool) error {
	return l.change(ctx, "pause or resume", subscription, func(q *query) error {
		q.exec(`update ~outbox_subscription set paused = $2 where name = $1`, subscription, paused)
		return nil
	})
}

// Delete implements [outbox.Operator]. A relay that still runs is refused; when it claims again, it
// creates the subscription anew.
func (l *Log) Delete(ctx context.Context, subscription string) error {
	change := func(fn func(*query)) error {
		return l.change(ctx, "forget", subscription, func(q *query) error { fn(q); return nil })
	}
	err := change(func(q *query) {
		q.exec(`update ~outbox_subscription set paused = true where name = $1`, subscription)
		q.exec(`update ~outbox_cursor set turn = turn + 1, rev = rev + 1 where subscription = $1`, subscription)
	})
	for _, part := range []func(*query, string, int) int{(*query).forgetParked, (*query).forgetDead} {
		if err == nil {
			err = ranges.InParts(func(most int) (n int, err error) {
				err = change(func(q *query) { n = part(q, subscription, most) })
				return n, err
			})
		}
	}
	if err != nil {
		return err
	}
	return change(func(q *query) { q.forget(subscription) })
}

// forgetParked deletes the first parked messages, with the lanes that are empty then. The others are due at once, with their
// attempts counted from zero, because what is stored of them is about a message that is gone. It returns how many messages.
func (q *query) forgetParked(subscription string, most int) int {
	last := q.number(`select max(id) from (select id from ~outbox_parked where subscription = $1 order by id limit $2) p`, subscription, most)
	q.exec(`with l as materialized (
			select n.ctid, exists (select from ~outbox_parked p
				where p.subscription = $1 and p.shard = l.shard and p.lane = l.lane and p.solo = l.solo and p.id > $2 offset 0) as more
			from (select distinct shard, lane, solo from ~outbox_parked where subscription = $1 and id <= $2) l
			cross join lateral (select n.ctid from ~outbox_lane n where n.subscription = $1 and n.shard = l.shard and n.key = l.lane and n.solo = l.solo offset 0) n),
		emptied as (delete from ~outbox_lane where ctid = any(array(select ctid from l where not more)))
		`+wakeLanes+`n.ctid = any(array(select ctid from l where more)) and (n.held or n.attempts > 0)`, subscription, last)
	return int(q.exec(`delete from ~outbox_parked where subscription = $1 and id <= $2`, subscription, last))
}

// forgetDead deletes the first dead letters and returns how many.
func (q *query) forgetDead(subscription string, most int) int {
	return int(q.exec(`delete from ~outbox_dead where subscription = $1
		and id = any(array(select id from ~outbox_dead where subscription = $1 order by id limit $2))`, subscription, most))
}

func (q *query) forget(subscription string) {
	for _, table := range []string{"parked", "lane", "dead", "cursor"} {
		q.exec(`delete from ~outbox_`+table+` where subscription = $1`, subscription)
	}
	q.exec(`delete from ~outbox_subscription where name = $1`, subscription)
}
