package postgres

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/internal/pgtest"
	"github.com/emitd/emitd/outbox"
)

// visibility is the storm for which the log is designed. Writers commit in any order, with savepoints and
// rollbacks, some in long transactions beside many short ones. One unrelated transaction stays open.
// Relays lose their connections, and take the shards from each other.
type visibility struct {
	*world
	mu     sync.Mutex
	order  map[string][]string // committed messages of each key, in the order of its lock
	loose  map[string]bool     // committed, without a key
	undone map[string]bool     // rolled back
	first  map[string][]string // first deliveries of each key
	count  map[string]int
	total  int
	sunk   atomic.Int64 // deliveries so far
}

func TestVisibilityStorm(t *testing.T) {
	t.Parallel()
	writers, each := 32, 40
	if testing.Short() {
		writers, each = 12, 20
	}
	s := newStage(t)
	cfg := s.config(t, Config{MaxConns: 12})
	v := &visibility{
		world: s.open(t, cfg), order: map[string][]string{}, loose: map[string]bool{}, undone: map[string]bool{},
		first: map[string][]string{}, count: map[string]int{},
	}
	proxy := pgtest.NewProxy(t, cfg.URL)
	behind := cfg
	behind.URL = proxy.URL()
	relayed := s.open(t, behind)

	// An unrelated transaction draws a transaction ID, and must hold up nothing until everything else is
	// delivered.
	outsider := v.begin()
	_, err := outsider.Exec(context.Background(), "select pg_current_xact_id()")
	ok(t, err)
	late := v.begin()
	ok(t, v.pub.Publish(context.Background(), late, text("late", "late")))

	ctx, stop := context.WithCancel(context.Background())
	var relays, writing sync.WaitGroup
	relays.Go(func() { v.reassign(ctx, relayed.Log) })
	relays.Go(func() { v.cut(ctx, proxy) })
	for i := range writers {
		writing.Go(func() { v.write(i, each) })
	}
	writing.Wait()
	eventually(t, "all but what is open is delivered", v.settled)
	ok(t, outsider.Rollback(context.Background()))
	v.loose["late"] = true
	ok(t, late.Commit(context.Background()))
	eventually(t, "the late one is delivered", v.settled)
	stop()
	relays.Wait()
	v.check(t)
}

// write runs one writer. It holds the lock of its key until its transaction ends, so what it records
// before that is in the order of the locks.
func (v *visibility) write(writer, each int) {
	ctx := context.Background()
	rng := rand.New(rand.NewPCG(uint64(writer), 7))
	for n := range each {
		key := fmt.Sprint("key-", rng.IntN(40))
		tx, err := v.app.Begin(ctx)
		if err != nil {
			v.t.Errorf("begin: %v", err)
			return
		}
		kept, undone := v.publishSome(ctx, tx, rng, key, fmt.Sprintf("%s/%d.%d", key, writer, n))
		commit := rng.IntN(5) > 0
		v.mu.Lock()
		if !commit {
			undone, kept = append(undone, kept...), nil
		}
		for _, name := range undone {
			v.undone[name] = true
		}
		v.order[key] = append(v.order[key], kept...)
		v.mu.Unlock()
		if commit {
			err = tx.Commit(ctx)
		} else {
			err = tx.Rollback(ctx)
		}
		if err != nil {
			v.t.Errorf("end: %v", err)
		}
	}
}

// publishSome publishes a few messages, some in savepoints, some of which are undone. The first message
// takes the key's lock.
func (v *visibility) publishSome(ctx context.Context, tx pgx.Tx, rng *rand.Rand, key, name string) (kept, undone []string) {
	for i := range 1 + rng.IntN(4) {
		one := fmt.Sprint(name, ".", i)
		to, inner := tx, pgx.Tx(nil)
		if i > 0 && rng.IntN(2) == 0 {
			var err error
			if inner, err = tx.Begin(ctx); err != nil {
				v.t.Errorf("savepoint: %v", err)
				return kept, undone
			}
			to = inner
		}
		if err := v.pub.Publish(ctx, to, text(key, one)); err != nil {
			v.t.Errorf("publish: %v", err)
			return kept, undone
		}
		switch {
		case inner == nil:
			kept = append(kept, one)
		case rng.IntN(2) == 0:
			kept = append(kept, one)
			if err := inner.Commit(ctx); err != nil {
				v.t.Errorf("release: %v", err)
			}
		default:
			undone = append(undone, one)
			if err := inner.Rollback(ctx); err != nil {
				v.t.Errorf("roll back: %v", err)
			}
		}
	}
	return kept, undone
}

// reassign gives the shards to one, two or three relays, each time after some deliveries. The former
// relays are not stopped: they continue until they are refused.
func (v *visibility) reassign(ctx context.Context, log outbox.Log) {
	var running sync.WaitGroup
	defer running.Wait()
	for epoch := int64(1); ctx.Err() == nil; epoch++ {
		n := int(epoch)%3 + 1
		r, err := outbox.NewRelay(outbox.Config{
			Name: "s", Log: log, Sink: outbox.SinkFunc(v.deliver), Instances: n, PageRows: 7, Logger: slog.New(slog.DiscardHandler), MaxPoll: 10 * time.Millisecond,
		})
		if err != nil {
			v.t.Error(err)
			return
		}
		for i := range n {
			a := daemon.NewAssignment(daemon.Fence{Unit: daemon.Unit{Daemon: outbox.ID("s"), Index: i}, Generation: epoch}, 1, "n", nil)
			running.Go(func() { _ = r.Run(ctx, a) })
		}
		goal := v.sunk.Load() + 150
		v.until(ctx, func() bool { return v.sunk.Load() >= goal })
	}
}

// cut breaks the relays' connections after every hundred deliveries.
func (v *visibility) cut(ctx context.Context, proxy *pgtest.Proxy) {
	for ctx.Err() == nil {
		goal := v.sunk.Load() + 100
		v.until(ctx, func() bool { return v.sunk.Load() >= goal })
		proxy.Cut()
	}
}

// until waits for a condition, or the end of ctx.
func (v *visibility) until(ctx context.Context, cond func() bool) {
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for !cond() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

func (v *visibility) deliver(_ context.Context, d outbox.Delivery) []error {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, r := range d.Rows {
		name := string(r.Payload)
		v.total++
		if v.count[name]++; v.count[name] == 1 {
			v.first[r.Key] = append(v.first[r.Key], name)
		}
	}
	v.sunk.Add(int64(len(d.Rows)))
	return nil
}

func (v *visibility) settled() bool {
	v.mu.Lock()
	defer v.mu.Unlock()
	for key, all := range v.order {
		if len(v.first[key]) < len(all) {
			return false
		}
	}
	for name := range v.loose {
		if v.count[name] == 0 {
			return false
		}
	}
	return true
}

func (v *visibility) check(t *testing.T) {
	v.mu.Lock()
	defer v.mu.Unlock()
	committed, inversions := len(v.loose), 0
	for key, want := range v.order {
		committed += len(want)
		for i, got := range v.first[key] {
			if i >= len(want) || got != want[i] {
				inversions++
				t.Errorf("key %s: delivery %d is %s", key, i, got)
				break
			}
		}
	}
	for name := range v.count {
		if v.undone[name] {
			t.Errorf("%s was rolled back and delivered", name)
		}
	}
	t.Logf("%d messages committed, %d rolled back; %d deliveries, %d of them repeated; %d keys out of order",
		committed, len(v.undone), v.total, v.total-len(v.count), inversions)
}

// TestLateTransactions tests a long transaction that publishes for a key before and after others do, and
// commits many ticks later. Its messages must come once, the key in order, and no other message may have
// waited.
func TestLateTransactions(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Config{})
	ctx := context.Background()
	c := w.claim("s", 1)
	for _, n := range []int{3, lateMost + 10} { // few are looked up, many are read again
		slow := w.begin()
		for i := range n {
			ok(t, w.pub.Publish(ctx, slow, text("slow", fmt.Sprint("slow", i))))
		}
		for round := range 5 {
			w.publish(text("fast", fmt.Sprint(round)))
			if got := drain(t, c); len(got) != 1 {
				t.Fatalf("beside an open transaction came %v", got)
			}
		}
		ok(t, w.pub.Publish(ctx, slow, text("slow", "end")))
		ok(t, slow.Commit(ctx))
		w.publish(text("slow", "next"))
		got := drain(t, c)
		if len(got) != n+2 || got[0] != "slow0" || got[n] != "end" || got[n+1] != "next" {
			t.Fatalf("%d of %d messages came, the last is %s", len(got), n+2, got[len(got)-1])
		}
	}
	if got := drain(t, w.claim("s", 2)); len(got) != 0 {
		t.Errorf("%d messages came again", len(got))
	}
}

// TestUnfinishedTick checks that an unfinished tick continues at its last mark. Messages that commit
// after its snapshot belong to the next tick, even if their ids lie in between.
func TestUnfinishedTick(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Config{})
	ctx := context.Background()
	c := w.claim("s", 1)
	before, between := w.begin(), w.begin()
	ok(t, w.pub.Publish(ctx, before, text("before", "before")))
	w.publish(text("a", "1"))
	ok(t, w.pub.Publish(ctx, between, text("between", "between")))
	w.publish(text("a", "2"), text("a", "3"))
	p, err := c.Next(ctx, outbox.Limit{Rows: 1})
	ok(t, err)
	ok(t, c.Advance(ctx, p.Mark, nil))
	ok(t, before.Commit(ctx))
	ok(t, between.Commit(ctx))
	w.publish(text("a", "4"))
	if got := fmt.Sprint(drain(t, w.claim("s", 2))); got != "[2 3 before between 4]" {
		t.Errorf("got %s", got)
	}
}

// TestSuddenlyLarge checks that messages much larger than those before are read in chunks of bounded
// size.
func TestSuddenlyLarge(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Config{})
	small := make([]outbox.Message, 1000)
	for i := range small {
		small[i] = text("k", "x")
	}
	w.publish(small...)
	large := make([]outbox.Message, 60)
	for i := range large {
		large[i] = outbox.Message{Topic: "t", Key: "k", Payload: make([]byte, 1<<20)}
	}
	w.publish(large...)
	c := w.claim("s", 1)
	n := 0
	for {
		p, err := c.Next(context.Background(), outbox.Limit{Rows: 1000})
		ok(t, err)
		size := 0
		for _, r := range p.Rows {
			size += len(r.Payload)
		}
		if size > 6<<20 {
			t.Errorf("a page of %d bytes", size)
		}
		if n += len(p.Rows); len(p.Rows) == 0 && !p.More {
			break
		}
	}
	if n != 1060 {
		t.Errorf("%d of 1060 messages", n)
	}
}
