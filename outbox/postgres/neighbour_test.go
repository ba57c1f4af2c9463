package postgres

import (
	"context"
	"fmt"
	"testing"

	"github.com/emitd/emitd/outbox"
)

// TestClaimWaitsWhileNeighboursGetOn checks that a neighbouring row that advances while a claim waits
// does not make the server look like another one: nothing is delivered again.
func TestClaimWaitsWhileNeighboursGetOn(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Config{})
	ctx := context.Background()
	claim := func(index int, epoch int64) (outbox.Cursor, error) {
		return w.Claim(ctx, outbox.ClaimRequest{Subscription: "s", Index: index, Instances: 2, Epoch: epoch})
	}
	left, err := claim(0, 1)
	ok(t, err)
	t.Cleanup(left.Close)
	right, err := claim(1, 1)
	ok(t, err)
	right.Close()

	holder := beginAs(t, w.owner)
	_, err = holder.Exec(ctx, w.names.q("select from ~outbox_subscription for update"))
	ok(t, err)
	claimed := make(chan error, 1)
	go func() {
		c, err := claim(1, 2)
		if err == nil {
			c.Close()
		}
		claimed <- err
	}()
	eventually(t, "the claim waits", func() bool {
		return value[int](w, "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'") > 0
	})
	key := keyIn(outbox.Range{Lo: 0, Hi: 31})
	for i := range 5 {
		w.publish(text(key, fmt.Sprint(i)))
	}
	if got := fmt.Sprint(drain(t, left)); got != "[0 1 2 3 4]" {
		t.Fatalf("delivered %s", got)
	}
	ok(t, holder.Rollback(ctx))
	ok(t, <-claimed)
	w.publish(text(key, "5"))
	if got := fmt.Sprint(drain(t, left)); got != "[5]" {
		t.Errorf("after the claim %s was delivered, want the new one", got)
	}
}

// keyIn returns a key whose shard is in a range.
func keyIn(r outbox.Range) string {
	for i := 0; ; i++ {
		key := fmt.Sprint("key-", i)
		if s := outbox.ShardOf(key); s >= r.Lo && s <= r.Hi {
			return key
		}
	}
}
