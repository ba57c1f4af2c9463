package sqlite

import (
	"context"
	"fmt"

	"github.com/emitd/emitd/outbox"
	"github.com/emitd/emitd/outbox/internal/ranges"
)

// change runs an operator's change of an existing subscription and wakes relays.
func (l *Log) change(ctx context.Context, what, subscription string, fn func(*query) error) error {
	ctx, cancel := l.bounded(ctx)
	defer cancel()
	err := l.write(ctx, func(q *query) error {
		if err := q.known(subscription); err != nil {
			return err
		}
		return fn(q)
	})
	if err != nil {
		return explain(fmt.Sprintf("%s %q", what, subscription), l.cfg.Path, err)
	}
	commits.wakeAll(l.cfg.Path)
	return nil
}

// known returns an error if the subscription does not exist.
func (q *query) known(subscription string) error {
	if q.number(`SELECT count(*) FROM ~outbox_subscription WHERE name = ?`, subscription) == 0 && q.err == nil {
		return fmt.Errorf("the subscription is %w", outbox.ErrNotFound)
	}
	return q.err
}

// Retry implements [outbox.Operator]. If none of the messages exists, it returns [outbox.ErrNotFound].
func (l *Log) Retry(ctx context.Context, subscription string, seqs ...int64) (n int, err error) {
	err = l.change(ctx, "retry messages of", subscription, func(q *query) error {
		if len(seqs) == 0 {
			n = q.retryAll(subscription)
			return nil
		}
		lanes := map[ranges.ParkedKey]bool{}
		dead := 0
		for _, seq := range seqs {
			at, found := q.find(subscription, seq)
			switch {
			case found && !lanes[at]:
				q.wakeLane(subscription, at)
				lanes[at] = true
			case !found && q.putBack(subscription, seq):
				dead++
			}
		}
		if n = len(lanes) + dead; n == 0 && q.err == nil {
			return fmt.Errorf("parked or dead messages %v: %w", seqs, outbox.ErrNotFound)
		}
		return nil
	})
	if err != nil {
		return 0, err
	}
	return n, nil
}

// retryAll retries everything that is held or dead.
func (q *query) retryAll(sub string) int {
	n := q.exec(`UPDATE ~outbox_lane SET held = 0, attempts = 0, next_at = ?, cause = '' WHERE subscription = ? AND `+isHeld, nanos(q.now), sub)
	q.exec(`INSERT OR IGNORE INTO ~outbox_lane (subscription, shard, key, solo, next_at) SELECT subscription, shard, key, id, ? FROM ~outbox_dead
		WHERE subscription = ? AND id NOT IN (SELECT id FROM ~outbox_parked WHERE subscription = ?)`, nanos(q.now), sub, sub)
	q.exec(`INSERT OR IGNORE INTO ~outbox_parked (subscription, id, shard, solo, parked_at, created_at, `+bodyColumns+`)
		SELECT subscription, id, shard, id, ?, created_at, `+bodyColumns+` FROM ~outbox_dead WHERE subscription = ?`, nanos(q.now), sub)
	return int(n + q.exec(`DELETE FROM ~outbox_dead WHERE subscription = ?`, sub))
}

// putBack parks a dead message again, in a lane of its own, and reports whether there was one. A message that is
// parked already, because of a replay, is only removed from the dead letters.
func (q *query) putBack(sub string, seq int64) bool {
	const unlessParked = ` FROM ~outbox_dead WHERE subscription = ?2 AND id = ?3
		AND NOT EXISTS (SELECT 1 FROM ~outbox_parked WHERE subscription = ?2 AND id = ?3)`
	q.exec(`INSERT OR REPLACE INTO ~outbox_lane (subscription, shard, key, solo, next_at)
		SELECT subscription, shard, key, id, ?1`+unlessParked, nanos(q.now), sub, seq)
	q.exec(`INSERT INTO ~outbox_parked (subscription, id, shard, solo, parked_at, created_at, `+bodyColumns+`)
		SELECT subscription, id, shard, id, ?1, created_at, `+bodyColumns+unlessParked, nanos(q.now), sub, seq)
	return q.exec(`DELETE FROM ~outbox_dead WHERE subscription = ? AND id = ?`, sub, seq) > 0
}

// Skip implements [outbox.Operator]. It skips all of the messages or none.
func (l *Log) Skip(ctx context.Context, subscription string, seqs ...int64) error {
	return l.change(ctx, "skip messages of", subscription, func(q *query) error {
		for _, seq := range seqs {
			at, found := q.find(subscription, seq)
			if q.err != nil {
				return q.err
			}
			if !found {
				return fmt.Errorf("message %d is %w", seq, outbox.ErrNotFound)
			}
			q.skip(subscription, seq, at)
		}
		return nil
	})
}

// skip makes a parked message dead, given its lane.
func (q *query) skip(subscription string, seq int64, at ranges.ParkedKey) {
	attempts, cause := 0, ""
	if q.first(subscription, at) == seq {
		q.one(`SELECT attempts, cause FROM ~outbox_lane WHERE subscription = ? AND shard = ? AND key = ? AND solo = ?`,
			[]any{subscription, at.Shard, at.Key, at.Seq}, &attempts, &cause)
	}
	q.addDeadLetter(subscription, seq, attempts, ranges.Skipped(cause))
	q.leaveLane(subscription, at, seq)
}

// Pause implements [outbox.Operator].
func (l *Log) Pause(ctx context.Context, subscription string, paused bool) error {
	return l.change(ctx, "pause or resume", subscription, func(q *query) error {
		q.exec(`UPDATE ~outbox_subscription SET paused = ? WHERE name = ?`, paused, subscription)
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
		q.exec(`UPDATE ~outbox_subscription SET paused = 1 WHERE name = ?`, subscription)
		q.exec(`UPDATE ~outbox_cursor SET turn = turn + 1, rev = rev + 1 WHERE subscription = ?`, subscription)
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
	last := q.number(`SELECT max(id) FROM (SELECT id FROM ~outbox_parked WHERE subscription = ? ORDER BY id LIMIT ?)`, subscription, most)
	const (
		ofThese = ` WHERE subscription = ?1 AND (shard, key, solo) IN (SELECT shard, key, solo FROM ~outbox_parked WHERE subscription = ?1 AND id <= ?2)`
		more    = ` EXISTS (SELECT 1 FROM ~outbox_parked p WHERE p.subscription = ?1 AND p.shard = l.shard AND p.key = l.key AND p.solo = l.solo AND p.id > ?2)`
	)
	q.exec(`UPDATE ~outbox_lane AS l SET held = 0, attempts = 0, next_at = ?3, cause = ''`+ofThese+` AND (held OR attempts > 0) AND`+more, subscription, last, nanos(q.now))
	q.exec(`DELETE FROM ~outbox_lane AS l`+ofThese+` AND NOT`+more, subscription, last)
	return int(q.exec(`DELETE FROM ~outbox_parked WHERE subscription = ? AND id <= ?`, subscription, last))
}

// forgetDead deletes the first dead letters and returns how many.
func (q *query) forgetDead(subscription string, most int) int {
	return int(q.exec(`DELETE FROM ~outbox_dead WHERE subscription = ?1 AND id IN (SELECT id FROM ~outbox_dead WHERE subscription = ?1 ORDER BY id LIMIT ?2)`,
		subscription, most))
}

func (q *query) forget(subscription string) {
	for _, table := range []string{"parked", "lane", "dead", "cursor"} {
		q.exec(`DELETE FROM ~outbox_`+table+` WHERE subscription = ?`, subscription)
	}
	q.exec(`DELETE FROM ~outbox_subscription WHERE name = ?`, subscription)
}
