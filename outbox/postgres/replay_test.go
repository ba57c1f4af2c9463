package postgres

import (
	"context"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/emitd/emitd/outbox"
	"github.com/emitd/emitd/outbox/internal/ranges"
)

// aged puts n messages into the log, one in each second up to now.
func (w *world) aged(n int) {
	w.t.Helper()
	w.exec(`insert into ~outbox (shard, created_at, topic) select n % 64, clock_timestamp() - ($1::int - n) * interval '1 second', 't' from generate_series(1, $1::int) n`, n)
}

// TestReplayByTimeReadsLittle checks that a replay by time reads of a long log only what was published within some
// minutes of its times.
func TestReplayByTimeReadsLittle(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Config{width: 50_000, Retention: -1})
	const messages = 30_000 // of more than eight hours
	w.aged(messages)
	w.exec(`analyze ~outbox`)
	c, err := w.Claim(t.Context(), outbox.ClaimRequest{Subscription: "s", Instances: 1, Epoch: 1, Newest: true})
	ok(t, err)
	c.Close()
	read := func() int64 {
		return value[int64](w, `select coalesce(sum(seq_tup_read + idx_tup_fetch), 0)::bigint from pg_stat_user_tables
			where relid in (select inhrelid from pg_inherits where inhparent = '~outbox'::regclass)`)
	}
	before := read()
	now := time.Now()
	for _, r := range []outbox.ReplayRequest{
		{Since: now.Add(-4 * time.Hour), Until: now.Add(-4 * time.Hour).Add(10 * time.Second)},
		{Since: now.Add(-time.Hour), Until: now.Add(-time.Hour).Add(10 * time.Second)},
	} {
		r.Subscription, r.DryRun = "s", true
		_, counts, err := w.Replay(t.Context(), r)
		ok(t, err)
		if n := counts[outbox.Delivered]; n < 9 || n > 11 {
			t.Errorf("%v are selected, want those of ten seconds", counts)
		}
	}
	w.Close()
	eventually(t, "the statistics are told", func() bool { return read() > before })
	if n := read() - before; n > messages/4 {
		t.Errorf("two replays by time of ten seconds read %d of %d messages", n, messages)
	} else {
		t.Logf("two replays by time of ten seconds read %d of %d messages", n, messages)
	}
}

// TestReplayByTime compares the range of a replay with one that is found by reading all messages. The clock is set
// back now and then, messages are missing, and delayed ones arrive long after their time.
func TestReplayByTime(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Config{Retention: -1})
	c := w.claim("s", 1)
	rng := rand.New(rand.NewPCG(5, 12))
	// A delayed message that was due long ago gets a time that fits into the order.
	w.exec(`insert into ~outbox_delayed (shard, not_before, created_at, dedup_id, topic)
		select 1, clock_timestamp() - interval '20 hours', clock_timestamp() - interval '23 hours', gen_random_uuid(), 't'`)
	at := time.Now().Add(-18 * time.Hour)
	newest := at
	for i := range 120 {
		switch rng.IntN(10) {
		case 0:
			at = newest.Add(-time.Duration(rng.Int64N(int64(9 * time.Minute))))
		case 1:
			w.exec(`select nextval('~outbox_id'::regclass)`) // of a transaction that was rolled back
		}
		w.exec(`insert into ~outbox (shard, created_at, topic) values (1, $1, 't')`, at)
		if at.After(newest) {
			newest = at
		}
		if at = at.Add(time.Duration(rng.Int64N(int64(15 * time.Minute)))); i == 60 {
			n, err := c.Promote(t.Context(), 10)
			ok(t, err)
			if n != 1 {
				t.Fatalf("%d messages were promoted", n)
			}
		}
	}
	rows, err := w.owner.Query(t.Context(), w.names.q(`select id, created_at from ~outbox order by id`))
	ok(t, err)
	defer rows.Close()
	var ids []int64
	var times []time.Time
	for rows.Next() {
		var id int64
		var at time.Time
		ok(t, rows.Scan(&id, &at))
		ids, times = append(ids, id), append(times, at)
	}
	ok(t, rows.Err())
	for range 300 {
		i, j := rng.IntN(len(ids)), rng.IntN(len(ids))
		req := outbox.ReplayRequest{Subscription: "s", Since: times[i].Add(time.Duration(rng.IntN(3)-1) * time.Microsecond), Until: times[j].Add(time.Duration(rng.IntN(3)) * time.Microsecond)}
		switch rng.IntN(3) {
		case 0:
			req.Since = time.Time{}
		case 1:
			req.Until = time.Time{}
		}
		checkBounds(t, w, req, ids, times)
	}
}

// checkBounds compares what the range of a replay selects with what its times select.
func checkBounds(t *testing.T, w *world, req outbox.ReplayRequest, ids []int64, times []time.Time) {
	t.Helper()
	r, err := ranges.NewReplay(req)
	if err != nil {
		return // since is not before until
	}
	after, upTo, err := w.locate(context.Background(), r)
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
