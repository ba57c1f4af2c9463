package postgres

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/emitd/emitd/outbox"
)

// TestWhatWaitsIsNotRead checks that messages that are not due cost nothing: polls for messages, lanes
// and delayed messages do not read them.
func TestWhatWaitsIsNotRead(t *testing.T) {
	t.Parallel()
	const waiting, queries = 1000, 20
	w := newWorld(t, Config{})
	ctx := context.Background()
	messages := make([]outbox.Message, 0, 2*waiting)
	for i := range waiting {
		later := text(fmt.Sprint("later-", i), "x")
		later.NotBefore = time.Now().Add(time.Hour)
		messages = append(messages, text(fmt.Sprint("k", i), "x"), later)
	}
	w.publish(messages...)
	c := w.claim("s", 1)
	page, err := c.Next(ctx, outbox.Limit{Rows: waiting})
	ok(t, err)
	parked := make([]outbox.Outcome, 0, waiting)
	for _, r := range page.Rows {
		parked = append(parked, outbox.Outcome{Row: r, Kind: outbox.Waiting, Attempts: 1, RetryIn: time.Hour, Cause: "x"})
	}
	if len(parked) != waiting {
		t.Fatalf("%d messages came, want %d", len(parked), waiting)
	}
	ok(t, c.Advance(ctx, page.Mark, parked))
	// A session reports its statistics when it ends, at the latest.
	type count struct{ scans, read int64 }
	counted := func(index string) (n count) {
		n.scans = value[int64](w, `select coalesce(sum(idx_scan), 0)::bigint from pg_stat_user_indexes where indexrelid = '~`+index+`'::regclass`)
		n.read = value[int64](w, `select coalesce(sum(idx_tup_read), 0)::bigint from pg_stat_user_indexes where indexrelid = '~`+index+`'::regclass`)
		return n
	}
	before := map[string]count{"outbox_lane_due": counted("outbox_lane_due"), "outbox_delayed_due": counted("outbox_delayed_due")}
	for range queries {
		page, err := c.Next(ctx, outbox.Limit{})
		ok(t, err)
		if page.Due || page.Delayed {
			t.Fatal("something is due")
		}
		lanes, err := c.Due(ctx, 10)
		ok(t, err)
		n, err := c.Promote(ctx, 10)
		ok(t, err)
		if len(lanes) > 0 || n > 0 {
			t.Fatalf("%d lanes are due and %d messages, want none", len(lanes), n)
		}
	}
	c.Close()
	w.Close()
	for index, old := range before {
		eventually(t, "the statistics of "+index+" are told", func() bool { return counted(index).scans >= old.scans+2*queries })
		if n := counted(index).read - old.read; n > waiting/10 {
			t.Errorf("%d looks read %d entries of %s that are not due", 2*queries, n, index)
		}
	}
}

// TestDueReadsWhatItReturns checks that reading a few lanes does not read all that are due, although the server has no
// statistics of the table yet, as after a large replay.
func TestDueReadsWhatItReturns(t *testing.T) {
	t.Parallel()
	const due, reads, lanes = 20_000, 20, 10
	w := newWorld(t, Config{})
	ctx := context.Background()
	messages := make([]outbox.Message, due)
	for i := range messages {
		messages[i] = text("", fmt.Sprint(i))
	}
	w.publish(messages...)
	drain(t, w.claim("s", 1))
	_, counts, err := w.Replay(ctx, outbox.ReplayRequest{Subscription: "s", Topics: []string{"t"}})
	ok(t, err)
	if counts[outbox.Delivered] != due {
		t.Fatalf("replayed: %v", counts)
	}
	c := w.claim("s", 1)
	for range reads {
		got, err := c.Due(ctx, lanes)
		ok(t, err)
		if len(got) != lanes {
			t.Fatalf("%d lanes, want %d", len(got), lanes)
		}
	}
	c.Close()
	w.Close()
	read := func() int64 {
		return value[int64](w, `select coalesce(sum(idx_tup_read), 0)::bigint from pg_stat_user_indexes where relid = '~outbox_lane'::regclass`)
	}
	eventually(t, "the statistics are told", func() bool { return read() >= reads*lanes })
	if n := read(); n > 10*reads*lanes {
		t.Errorf("%d calls read %d entries", reads, n)
	}
}
