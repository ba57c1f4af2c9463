package postgres

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/emitd/emitd/outbox"
)

// TestRelay runs relay, publisher and log together. Some keys fail at first, some always. The others must
// be delivered, everything in order, and in the end the log has only the dead letters.
func TestRelay(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Config{})
	var mu sync.Mutex
	got, failed := map[string][]string{}, map[string]bool{}
	count := 0
	sink := outbox.SinkFunc(func(_ context.Context, d outbox.Delivery) []error {
		mu.Lock()
		defer mu.Unlock()
		errs := make([]error, len(d.Rows))
		bad := map[string]bool{}
		for i, r := range d.Rows {
			switch {
			case bad[r.Key]:
				errs[i] = outbox.ErrSkipped
			case r.Key == "k3":
				errs[i] = fmt.Errorf("never: %w", outbox.ErrPermanent)
			case r.Key == "k5" && !failed[string(r.Payload)]:
				failed[string(r.Payload)], bad[r.Key] = true, true
				errs[i] = errors.New("not yet")
			default:
				got[r.Key] = append(got[r.Key], string(r.Payload))
				count++
			}
		}
		return errs
	})
	w.relay(t, outbox.Config{Sink: sink, Policy: outbox.Skip, Retry: outbox.Retry{Backoff: time.Millisecond, MaxBackoff: 5 * time.Millisecond}})
	const keys, each = 8, 25
	want := map[string][]string{}
	for n := range each {
		for k := range keys {
			key := fmt.Sprint("k", k)
			w.publish(text(key, fmt.Sprintf("%s/%d", key, n)))
			want[key] = append(want[key], fmt.Sprintf("%s/%d", key, n))
		}
	}
	eventually(t, "everything is delivered", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return count >= (keys-1)*each
	})
	eventually(t, "the log is empty", func() bool {
		s, err := w.Stats(t.Context(), "s")
		ok(t, err)
		return s[0].Pending == 0 && s[0].ParkedKeys == 0 && s[0].Dead == each
	})
	mu.Lock()
	defer mu.Unlock()
	for key, all := range want {
		if key != "k3" && !slices.Equal(got[key], all) {
			t.Errorf("key %s: got %v", key, got[key])
		}
	}
}

// TestMistakenRelay checks that calls that only a faulty relay makes are refused and change nothing.
func TestMistakenRelay(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Config{})
	ctx := context.Background()
	w.publish(text("a", "a1"), text("a", "a2"), text("b", "b1"))
	advance := func(o outbox.Outcome) error {
		c := w.claim("s", 1)
		p, err := c.Next(ctx, outbox.Limit{Rows: 2})
		ok(t, err)
		if len(p.Rows) != 2 {
			t.Fatal("what was refused has advanced")
		}
		if o.Row.Seq == 0 {
			o.Row = p.Rows[0]
		}
		return c.Advance(ctx, p.Mark, []outbox.Outcome{o})
	}
	for name, o := range map[string]outbox.Outcome{
		"no outcome":           {Kind: "lost"},
		"of no shard of these": {Row: outbox.Row{Seq: 1, Shard: 64}, Kind: outbox.Held},
	} {
		if advance(o) == nil {
			t.Errorf("%s: advanced", name)
		}
	}
	ok(t, advance(outbox.Outcome{Kind: outbox.Waiting, Attempts: 1}))
	c := w.claim("s", 1)
	p, err := c.Next(ctx, outbox.Limit{})
	ok(t, err)
	ok(t, c.Advance(ctx, p.Mark, []outbox.Outcome{{Row: outbox.Row{Message: outbox.Message{Key: "a"}, Seq: 2, Shard: outbox.ShardOf("a")}, Kind: outbox.Behind}}))
	if _, err := w.claim("s", 1).StoreParked(ctx, []outbox.Outcome{{Row: outbox.Row{Seq: 1}, Kind: "lost"}}); err == nil {
		t.Error("settled a message as lost")
	}
	_, err = w.claim("s", 1).StoreParked(ctx, []outbox.Outcome{{Row: outbox.Row{Seq: 4711}, Kind: outbox.Delivered}})
	ok(t, err)
	for _, bad := range []outbox.ClaimRequest{
		{Instances: 1, Epoch: 1},
		{Subscription: "s", Epoch: 1},
		{Subscription: "s", Instances: 65, Epoch: 1},
		{Subscription: "s", Instances: 1, Index: 1, Epoch: 1},
		{Subscription: "s", Instances: 1, Index: -1, Epoch: 1},
		{Subscription: "s", Instances: 1},
	} {
		if _, err := w.Claim(ctx, bad); err == nil {
			t.Errorf("claimed %+v", bad)
		}
	}
	if _, err := w.List(ctx, outbox.Filter{Kind: outbox.Delivered}); err == nil {
		t.Error("listed what is delivered")
	}
	if _, err := w.List(ctx, outbox.Filter{Limit: -1}); err == nil {
		t.Error("listed a negative number")
	}
	if _, _, err := w.Replay(ctx, outbox.ReplayRequest{Subscription: "s", After: -1}); err == nil {
		t.Error("replayed from a negative position")
	}
}

// TestClaimLeavesNeighbours checks that a claim of one unit does not change a neighbour's rows, so that
// the neighbour's next write is not refused.
func TestClaimLeavesNeighbours(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Config{})
	ctx := context.Background()
	claim := func(index int, epoch int64) outbox.Cursor {
		c, err := w.Claim(ctx, outbox.ClaimRequest{Subscription: "s", Index: index, Instances: 2, Epoch: epoch})
		ok(t, err)
		t.Cleanup(c.Close)
		return c
	}
	left := claim(0, 1)
	claim(1, 1)
	rows := func() string {
		return value[string](w, "select string_agg(ctid::text || xmin::text, ' ' order by lo) from ~outbox_cursor where hi < 32")
	}
	before := rows()
	claim(1, 2)
	if after := rows(); after != before {
		t.Errorf("the neighbour's rows were %s, are %s", before, after)
	}
	w.publish(text("a", "1"))
	drain(t, left)
}

// TestClosed checks that calls of a closed log, and of a cursor of it, fail with a clear error.
func TestClosed(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Config{})
	c := w.claim("s", 1)
	w.Close()
	w.Close()
	if _, err := w.Claim(t.Context(), outbox.ClaimRequest{Subscription: "s", Instances: 1, Epoch: 1}); !errors.Is(err, errClosed) {
		t.Errorf("a claim: %v", err)
	}
	if _, err := c.Next(t.Context(), outbox.Limit{}); err == nil {
		t.Error("reading goes on")
	}
}

// TestWindow checks that a range's messages behind a hundred thousand of other ranges are found, by
// statements of bounded duration that each make progress.
func TestWindow(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Config{})
	other, mine := "", ""
	for i := 0; other == "" || mine == ""; i++ {
		if key := fmt.Sprint("key", i); outbox.ShardOf(key) < 32 {
			other = key
		} else {
			mine = key
		}
	}
	w.exec(`insert into ~outbox (shard, key, topic) select $1::int, $2, 't' from generate_series(1, $3::int)`, outbox.ShardOf(other), other, window*2)
	w.publish(text(mine, "mine"))
	c, err := w.Claim(t.Context(), outbox.ClaimRequest{Subscription: "s", Index: 1, Instances: 2, Epoch: 1})
	ok(t, err)
	defer c.Close()
	if got := drain(t, c); !slices.Equal(got, []string{"mine"}) {
		t.Errorf("messages %v", got)
	}
	if windowText != fmt.Sprint(window) {
		t.Errorf("the window is %d and %s", window, windowText)
	}
}
