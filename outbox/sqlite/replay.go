package sqlite

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/emitd/emitd/outbox"
	"github.com/emitd/emitd/outbox/internal/ranges"
)

// Replay implements [outbox.Operator]. Messages that were removed from the log are not delivered again. It first
// reads the log, without the write lock, and then changes what it has found in one transaction, which checks it
// once more.
func (l *Log) Replay(ctx context.Context, req outbox.ReplayRequest) (after int64, counts map[outbox.Kind]int, err error) {
	what := fmt.Sprintf("replay %q", req.Subscription)
	r, err := ranges.NewReplay(req)
	if err != nil {
		return 0, nil, fmt.Errorf("%s: %w", what, err)
	}
	after, upTo, err := l.bounds(ctx, r)
	if err == nil {
		err = l.choose(ctx, r, after, upTo)
	}
	if err == nil {
		err = r.CheckSize()
	}
	if err != nil {
		return 0, nil, explain(what, l.cfg.Path, err)
	}
	switch {
	case req.DryRun:
	case r.MovesBack():
		err = l.change(ctx, "replay", req.Subscription, func(q *query) error {
			q.markReplayed(req.Subscription)
			q.exec(`UPDATE ~outbox_cursor SET last = min(last, ?), turn = turn + 1, rev = rev + 1, updated_at = ? WHERE subscription = ?`,
				after, nanos(q.now), req.Subscription)
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

// bounds returns the range of ids that a replay selects: those after the one and up to the other.
func (l *Log) bounds(ctx context.Context, r *ranges.Replay) (after, upTo int64, err error) {
	ctx, cancel := l.bounded(ctx)
	defer cancel()
	err = l.read(ctx, func(q *query) error {
		if err := q.known(r.Subscription); err != nil {
			return err
		}
		e := ranges.LogState{End: q.end(), Now: q.now}
		var at int64
		if q.one(`SELECT id, created_at FROM ~outbox ORDER BY id LIMIT 1`, nil, &e.First, &at) {
			e.FirstAt = time.Unix(0, at)
		}
		if q.err != nil {
			return q.err
		}
		if err := r.CheckRange(e); err != nil {
			return err
		}
		after, upTo = max(r.After, e.First-1), e.End
		if !r.Since.IsZero() {
			first := e.End + 1
			q.one(firstSince, []any{q.passed(after, e.End, r.Since.Add(-clockStep)), nanos(r.Since)}, &first)
			after = max(after, first-1)
		}
		if r.UpTo > 0 {
			upTo = r.UpTo
		}
		if !r.Until.IsZero() {
			upTo = min(upTo, q.passed(e.First-1, e.End, r.Until.Add(clockStep)))
			upTo = q.number(lastBefore, upTo, nanos(r.Until))
		}
		return nil
	})
	return after, upTo, err
}

// clockStep is how far the host's clock may have been set back while a message that a replay selects by time was
// in the log. Apart from such steps, times in the log grow with the ids, so they need no index.
const clockStep = 10 * time.Minute

// The statements that find messages by time. They begin at an id and read on while times do not match, which is at
// most what was published in twice the time clockStep.
const (
	firstSince = `SELECT id FROM ~outbox WHERE id > ? AND created_at >= ? ORDER BY id LIMIT 1`
	lastBefore = `SELECT id FROM ~outbox WHERE id <= ? AND created_at < ? ORDER BY id DESC LIMIT 1`
	nextInLog  = `SELECT id, created_at FROM ~outbox WHERE id > ? AND id <= ? ORDER BY id LIMIT 1`
)

// passed returns an id before which, and at which, all messages of the log are older than t, by bisection of
// the ids after lo and up to hi. If times grow with the ids, the next message is not older; lo is returned if the
// first one is not.
func (q *query) passed(lo, hi int64, t time.Time) int64 {
	for lo < hi && q.err == nil {
		middle := lo + (hi-lo)/2
		id, at := hi+1, int64(0)
		switch found := q.one(nextInLog, []any{middle, hi}, &id, &at); {
		case found && at < nanos(t):
			lo = id
		default: // what is after middle is not older, or there is nothing: the rest decides
			hi = middle
		}
	}
	return lo
}

// choose finds the messages that a replay selects among the ids after after and up to upTo. Each part has a
// time limit of its own, because the log may be long.
func (l *Log) choose(ctx context.Context, r *ranges.Replay, after, upTo int64) error {
	var c conditions
	c.add(r.Key != "", "o.key = ?", r.Key)
	if len(r.Topics) > 0 {
		var oneOf []string
		var args []any
		for _, topic := range r.Topics {
			if prefix, open := strings.CutSuffix(topic, "*"); open {
				oneOf, args = append(oneOf, "substr(o.topic, 1, length(?)) = ?"), append(args, prefix, prefix)
			} else {
				oneOf, args = append(oneOf, "o.topic = ?"), append(args, topic)
			}
		}
		c.add(true, "("+strings.Join(oneOf, " OR ")+")", args...)
	}
	text := `SELECT o.id, o.shard, coalesce(length(o.payload), 0),
			o.id > c.last OR EXISTS (SELECT 1 FROM ~outbox_parked p WHERE p.subscription = c.subscription AND p.id = o.id)
		FROM ~outbox o JOIN ~outbox_cursor c ON c.subscription = ? AND o.shard BETWEEN c.lo AND c.hi
		WHERE o.id > ? AND o.id <= ?` + c.text.String() + ` ORDER BY o.id`
	for more := true; more && after < upTo; after += window {
		bounded, cancel := l.bounded(ctx)
		err := l.read(bounded, func(q *query) error {
			q.each(text, append([]any{r.Subscription, after, min(after+window, upTo)}, c.args...), func(scan func(...any) error) (bool, error) {
				var id, bytes int64
				var shard int
				var coming bool
				err := scan(&id, &shard, &bytes, &coming)
				more = r.Add(id, shard, bytes, coming)
				return more, err
			})
			return nil
		})
		cancel()
		if err != nil {
			return err
		}
	}
	return nil
}

func (q *query) markReplayed(subscription string) {
	q.exec(`UPDATE ~outbox_subscription SET replayed = ? WHERE name = ?`, q.end(), subscription)
}

// parkAgain parks copies of the chosen messages and returns how many. Messages that are parked meanwhile, that
// are no longer delivered, or that were removed from the log are left out. A raised turn makes the relays of
// the keys claim again: only then do they know that the keys are parked.
func (q *query) parkAgain(r *ranges.Replay) int {
	const chosen = ` FROM (SELECT value AS seq FROM json_each(?2)) l CROSS JOIN ~outbox o ON o.id = l.seq
		JOIN ~outbox_cursor c ON c.subscription = ?1 AND o.shard BETWEEN c.lo AND c.hi
		WHERE o.id <= c.last AND NOT EXISTS (SELECT 1 FROM ~outbox_parked p WHERE p.subscription = ?1 AND p.id = o.id)`
	const solo = `CASE WHEN o.key = '' THEN o.id ELSE 0 END`
	q.markReplayed(r.Subscription)
	ids, now := jsonOf(r.IDs), nanos(q.now)
	q.exec(`INSERT INTO ~outbox_lane (subscription, shard, key, solo, next_at) SELECT DISTINCT ?1, o.shard, o.key, `+solo+`, ?3`+chosen+`
		ON CONFLICT DO UPDATE SET held = 0, attempts = 0, next_at = excluded.next_at, cause = ''`, r.Subscription, ids, now)
	parked := q.exec(`INSERT INTO ~outbox_parked (subscription, id, shard, solo, parked_at, created_at, `+bodyColumns+`)
		SELECT ?1, o.id, o.shard, `+solo+`, ?3, o.created_at, `+bodyColumns+chosen, r.Subscription, ids, now)
	q.exec(`UPDATE ~outbox_cursor SET turn = turn + 1, rev = rev + 1, updated_at = ? WHERE subscription = ?
		AND EXISTS (SELECT 1 FROM json_each(?) s WHERE s.value BETWEEN lo AND hi)`, now, r.Subscription, jsonOf(r.Shards()))
	return int(parked)
}

// jsonOf returns numbers as text for json_each.
func jsonOf[N int | int64](numbers []N) string {
	text, err := json.Marshal(numbers)
	if err != nil {
		panic("outbox/sqlite: numbers are not JSON: " + err.Error()) // they always are
	}
	return string(text)
}
