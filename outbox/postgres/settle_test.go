package postgres

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/emitd/emitd/outbox"
)

// TestSettlingReadsItsOwn checks that storing outcomes of lanes reads only these lanes, however many
// messages are in others: in a session like a relay's, with statistics from when the tables were empty.
func TestSettlingReadsItsOwn(t *testing.T) {
	t.Parallel()
	const behind, keys, rounds = 5000, 200, 3
	w := newWorld(t, Config{})
	ctx := context.Background()
	messages := make([]outbox.Message, 0, behind+keys)
	for i := range behind {
		messages = append(messages, text("long", fmt.Sprint(i)))
	}
	for i := range keys {
		messages = append(messages, text(fmt.Sprint("k", i), "x"))
	}
	w.publish(messages...)
	c := w.claim("s", 1)
	for parked := 0; parked < len(messages); {
		page, err := c.Next(ctx, outbox.Limit{Rows: 1000})
		ok(t, err)
		var outcomes []outbox.Outcome
		for _, r := range page.Rows {
			outcomes = append(outcomes, outbox.Outcome{Row: r, Kind: outbox.Behind})
		}
		if parked += len(outcomes); page.Mark != nil {
			ok(t, c.Advance(ctx, page.Mark, outcomes))
		}
	}
	type count struct{ scans, read int64 }
	counted := func() (n count) {
		const of = ` from pg_stat_user_indexes where relid in ('~outbox_parked'::regclass, '~outbox_lane'::regclass)`
		return count{value[int64](w, `select sum(idx_scan)::bigint`+of), value[int64](w, `select sum(idx_tup_read)::bigint`+of)}
	}
	settled := 0
	settle := func(lanes [][]outbox.Row, o outbox.Outcome) {
		var all []outbox.Outcome
		for _, rows := range lanes {
			if rows[0].Key != "long" {
				o.Row = rows[0]
				all = append(all, o)
			}
		}
		settled += len(all)
		_, err := c.StoreParked(ctx, all)
		ok(t, err)
	}
	for range rounds {
		lanes, err := c.Due(ctx, 32)
		ok(t, err)
		settle(lanes, outbox.Outcome{Kind: outbox.Waiting, Attempts: 1, RetryIn: time.Hour})
		lanes, err = c.Due(ctx, 32)
		ok(t, err)
		settle(lanes, outbox.Outcome{Kind: outbox.Delivered})
	}
	c.Close()
	w.Close()
	// A session reports its statistics when it ends, at the latest.
	eventually(t, "the statistics are told", func() bool { return counted().scans >= int64(settled) })
	if n := counted().read; n > int64(50*settled) {
		t.Errorf("%d lanes were settled, and %d entries of indexes read", settled, n)
	} else {
		t.Logf("%d lanes were settled, and %d entries of indexes read", settled, n)
	}
}
