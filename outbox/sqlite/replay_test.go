package sqlite

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"

	"github.com/emitd/emitd/outbox"
	"github.com/emitd/emitd/outbox/internal/ranges"
)

// TestReplayByTimeSearches checks that the statements that find messages by time begin at an id: none reads the
// log from an end to the other, and none sorts.
func TestReplayByTimeSearches(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Config{})
	for _, text := range []string{firstSince, lastBefore, nextInLog} {
		rows, err := w.db.QueryContext(t.Context(), "EXPLAIN QUERY PLAN "+strings.ReplaceAll(text, "~", w.cfg.Prefix), 1, 1)
		ok(t, err)
		defer func() { ok(t, rows.Close()) }()
		var steps []string
		for rows.Next() {
			var id, parent, unused int
			var step string
			ok(t, rows.Scan(&id, &parent, &unused, &step))
			steps = append(steps, step)
		}
		ok(t, rows.Err())
		if len(steps) != 1 || !strings.HasPrefix(steps[0], "SEARCH") || !strings.Contains(steps[0], "INTEGER PRIMARY KEY") {
			t.Errorf("%s\nplan: %q", text, steps)
		}
	}
}

// TestReplayByTime compares the range of a replay with one that is found by reading all messages. The clock is set
// back now and then, messages are missing, and delayed ones arrive long after their time.
func TestReplayByTime(t *testing.T) {
	t.Parallel()
	for seed := range uint64(10) {
		rng := rand.New(rand.NewPCG(seed, 12))
		now := time.Now().Add(-24 * time.Hour)
		w := newWorld(t, Config{Now: func() time.Time { return now }, Retention: -1})
		cur, err := w.Claim(t.Context(), outbox.ClaimRequest{Subscription: "s", Instances: 1, Epoch: 1})
		ok(t, err)
		for i := range 120 {
			m := outbox.Message{ID: uuid.New(), Topic: "t", Key: fmt.Sprint(i)}
			switch rng.IntN(10) {
			case 0:
				m.NotBefore = now.Add(time.Minute)
			case 1:
				_, err := cur.Promote(t.Context(), 1000)
				ok(t, err)
			case 2:
				now = now.Add(-time.Duration(rng.Int64N(int64(9 * time.Minute))))
			}
			w.publish(t, m)
			now = now.Add(time.Duration(rng.Int64N(int64(time.Hour))))
		}
		_, err = w.db.ExecContext(t.Context(), fmt.Sprintf(`DELETE FROM emitd_outbox WHERE id < %d OR id %% 3 = 0`, rng.IntN(40)))
		ok(t, err)
		var ids []int64
		var times []time.Time
		rows, err := w.db.QueryContext(t.Context(), `SELECT id, created_at FROM emitd_outbox ORDER BY id`)
		ok(t, err)
		defer func() { ok(t, rows.Close()) }()
		for rows.Next() {
			var id, at int64
			ok(t, rows.Scan(&id, &at))
			ids, times = append(ids, id), append(times, time.Unix(0, at))
		}
		ok(t, rows.Err())
		now = now.Add(time.Hour)
		for range 200 {
			i, j := rng.IntN(len(ids)), rng.IntN(len(ids))
			req := outbox.ReplayRequest{Subscription: "s", Since: times[i].Add(time.Duration(rng.IntN(3) - 1)), Until: times[j].Add(time.Duration(rng.IntN(3)))}
			switch rng.IntN(3) {
			case 0:
				req.Since = time.Time{}
			case 1:
				req.Until = time.Time{}
			}
			checkBounds(t, w, req, ids, times)
		}
		cur.Close()
	}
}

// checkBounds compares what the range of a replay selects with what its times select.
func checkBounds(t *testing.T, w *world, req outbox.ReplayRequest, ids []int64, times []time.Time) {
	t.Helper()
	r, err := ranges.NewReplay(req)
	if err != nil {
		return // since is not before until
	}
	after, upTo, err := w.bounds(context.Background(), r)
	if err != nil {
		if !req.Until.IsZero() && !req.Until.After(times[0]) {
			return // the log begins later
		}
		t.Fatal(err)
	}
	first, last := len(ids), -1
	for i := range ids {
		if first == len(ids) && !times[i].Before(req.Since) {
			first = i
		}
		if req.Until.IsZero() || times[i].Before(req.Until) {
			last = i
		}
	}
	for i, id := range ids {
		if want, got := i >= first && i <= last, id > after && id <= upTo; want != got {
			t.Fatalf("since %v until %v: message %d of %v is selected: %v, want %v (after %d up to %d)", req.Since, req.Until, id, times[i], got, want, after, upTo)
		}
	}
}
