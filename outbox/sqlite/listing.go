package sqlite

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/emitd/emitd/outbox"
	"github.com/emitd/emitd/outbox/internal/ranges"
)

// isHeld says that the key of a lane is held, perhaps only until its next attempt.
const isHeld = `(held OR substr(cause, 1, length('` + ranges.Resumes + `')) = '` + ranges.Resumes + `')`

// conditions is the condition of a statement, with its arguments.
type conditions struct {
	text strings.Builder
	args []any
}

// add adds a condition if it is wanted.
func (c *conditions) add(wanted bool, text string, args ...any) {
	if wanted {
		c.text.WriteString(" AND " + text)
		c.args = append(c.args, args...)
	}
}

// selects adds the conditions of a filter for the columns that parked and dead messages share. at is the
// column of the time at which a message was parked or died. Nil seqs means all.
func (c *conditions) selects(f outbox.Filter, seqs []int64, at string) {
	c.add(f.Subscription != "", "p.subscription = ?", f.Subscription)
	c.add(f.Key != "", "p.key = ?", f.Key)
	c.add(f.Seq != 0, "p.id = ?", f.Seq)
	c.add(f.After != 0, "p.id > ?", f.After)
	prefix, open := strings.CutSuffix(f.Topic, "*")
	c.add(f.Topic != "" && !open, "p.topic = ?", f.Topic)
	c.add(open, "substr(p.topic, 1, length(?)) = ?", prefix, prefix)
	c.add(!f.Since.IsZero(), at+" >= ?", nanos(f.Since))
	c.add(!f.Until.IsZero(), at+" < ?", nanos(f.Until))
	if seqs != nil {
		c.add(true, "p.id IN (SELECT value FROM json_each(?))", jsonOf(seqs))
	}
}

// listing returns a statement for columns of the messages that a filter selects, parked or dead, with its
// arguments.
func listing(f outbox.Filter, seqs []int64, columns string) (text string, args []any) {
	var parked, dead, shown conditions
	parked.selects(f, seqs, "p.parked_at")
	dead.selects(f, seqs, "p.died_at")
	shown.add(f.Kind != "", "kind = ?", string(f.Kind))
	shown.add(f.Cause != "", "instr(cause, ?) > 0", f.Cause)
	text = `SELECT ` + columns + ` FROM (
		SELECT p.*, p.parked_at AS at, l.attempts, l.next_at, CASE WHEN behind THEN '' ELSE l.cause END AS cause,
				CASE WHEN behind THEN 'behind' WHEN ` + isHeld + ` THEN 'held' ELSE 'waiting' END AS kind
			FROM (SELECT p.*, p.id > (SELECT min(f.id) FROM ~outbox_parked f
					WHERE f.subscription = p.subscription AND f.shard = p.shard AND f.key = p.key AND f.solo = p.solo) AS behind
				FROM ~outbox_parked p WHERE 1` + parked.text.String() + `) p
			JOIN ~outbox_lane l ON l.subscription = p.subscription AND l.shard = p.shard AND l.key = p.key AND l.solo = p.solo)
		WHERE 1` + shown.text.String() + `
		UNION ALL SELECT ` + columns + ` FROM (SELECT p.*, p.died_at AS at, 0 AS next_at, 'dead' AS kind FROM ~outbox_dead p WHERE 1` + dead.text.String() + `)
		WHERE 1` + shown.text.String()
	for _, c := range []conditions{parked, shown, dead, shown} {
		args = append(args, c.args...)
	}
	return text, args
}

// List implements [outbox.Operator].
func (l *Log) List(ctx context.Context, f outbox.Filter) ([]outbox.Entry, error) {
	f, err := ranges.ValidFilter(f)
	if err != nil {
		return nil, fmt.Errorf("list messages: %w", err)
	}
	ctx, cancel := l.bounded(ctx)
	defer cancel()
	var out []outbox.Entry
	err = l.read(ctx, func(q *query) error {
		var dec decoder
		text, args := listing(f, nil, bodyOf+", subscription, kind, attempts, cause, next_at, at")
		q.each(text+" ORDER BY id, subscription LIMIT ?", append(args, f.Limit), func(scan func(...any) error) (bool, error) {
			var e outbox.Entry
			var cause string
			var attempts int
			var next, parked int64
			var err error
			if e.Row, _, err = dec.row(scan, &e.Subscription, &e.Kind, &attempts, &cause, &next, &parked); err != nil {
				return false, err
			}
			e.ParkedAt = time.Unix(0, parked)
			if e.Kind != outbox.Behind {
				e.Attempt = attempts
				ranges.SetCause(&e, cause, time.Unix(0, next))
			}
			out = append(out, e)
			return true, nil
		})
		return nil
	})
	if err != nil {
		return nil, explain("list messages", l.cfg.Path, err)
	}
	return out, nil
}

// selected returns number and kind of the messages that a filter selects, in log order. Nil seqs means all.
func (q *query) selected(f outbox.Filter, seqs []int64) (found []ranges.Listed) {
	text, args := listing(f, seqs, "id, kind")
	q.each(text+" ORDER BY id", args, func(scan func(...any) error) (bool, error) {
		var m ranges.Listed
		err := scan(&m.Seq, &m.Kind)
		found = append(found, m)
		return true, err
	})
	return found
}

// SettleAll implements [outbox.Operator].
func (l *Log) SettleAll(ctx context.Context, f outbox.Filter, to outbox.Kind, dryRun bool) (map[outbox.Kind]int, error) {
	b := ranges.Bulk{Filter: f, To: to, DryRun: dryRun}
	if err := b.Valid(); err != nil {
		return nil, fmt.Errorf("change messages of %q: %w", f.Subscription, err)
	}
	bounded, cancel := l.bounded(ctx)
	defer cancel()
	var chosen []ranges.Listed
	err := l.read(bounded, func(q *query) error {
		if err := q.known(f.Subscription); err != nil {
			return err
		}
		chosen = b.Select(q.selected(b.Filter, nil))
		return q.err
	})
	if err != nil {
		return nil, explain(fmt.Sprintf("change messages of %q", f.Subscription), l.cfg.Path, err)
	}
	return b.Run(chosen, func(seqs []int64) (done []ranges.Listed, err error) {
		err = l.change(ctx, "change messages of", f.Subscription, func(q *query) error {
			done = b.Select(q.selected(b.Filter, seqs))
			for _, m := range done {
				q.settle(f.Subscription, to, m)
			}
			return q.err
		})
		return done, err
	})
}

// settle changes a message of a kind for which this is allowed.
func (q *query) settle(sub string, to outbox.Kind, m ranges.Listed) {
	switch {
	case to == outbox.Dropped:
		q.exec(`DELETE FROM ~outbox_dead WHERE subscription = ? AND id = ?`, sub, m.Seq)
	case m.Kind == outbox.Dead:
		q.putBack(sub, m.Seq)
	default:
		if at, found := q.find(sub, m.Seq); found && to == outbox.Dead {
			q.skip(sub, m.Seq, at)
		} else if found {
			q.wakeLane(sub, at)
		}
	}
}
