package postgres

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/outbox"
	"github.com/emitd/emitd/outbox/internal/ranges"
)

// many publishes n messages, one at a time.
func (w *world) many(n int) {
	w.t.Helper()
	for i := range n {
		w.publish(text(fmt.Sprint("k", i%50), fmt.Sprint(i)))
	}
}

func (w *world) sweepAll() (n int) {
	w.t.Helper()
	for {
		m, err := w.Sweep(context.Background(), 1)
		ok(w.t, err)
		if n += m; m < 1 {
			return n
		}
	}
}

func (w *world) left() int { return value[int](w, "select count(*) from ~outbox") }

// keep stores a cursor's position, as it does when there is nothing to read and its position blocks a
// removal.
func (w *world) keep(c *cursor) {
	w.t.Helper()
	c.reader.markedAt = time.Time{}
	drain(w.t, c)
}

// goes waits until a number of partitions was removed. An open transaction of any test on the server
// delays that.
func (w *world) goes(want int, cursors ...*cursor) {
	w.t.Helper()
	n := 0
	eventually(w.t, fmt.Sprintf("%d partitions go", want), func() bool {
		for _, c := range cursors {
			w.keep(c)
		}
		n += w.sweepAll()
		return n >= want
	})
	if n != want {
		w.t.Errorf("%d partitions went, want %d", n, want)
	}
}

// TestSweep checks that full partitions are removed when every cursor has passed them and they are old
// enough, and that others are created ahead.
func TestSweep(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Config{width: 10, Retention: time.Hour})
	a, b := w.claim("a", 1), w.claim("b", 1)
	w.many(25) // two partitions are full
	drain(t, a)
	w.sweepAll()
	old := func() { w.exec("update ~outbox_partition set passed_at = passed_at - interval '2 hours'") }
	old()
	if n := w.sweepAll(); n != 0 || w.left() != 25 {
		t.Errorf("%d partitions went that b has not read", n)
	}
	p, err := b.Next(t.Context(), outbox.Limit{})
	ok(t, err)
	if n := w.sweepAll(); n != 0 {
		t.Errorf("%d partitions went that b has read but not confirmed", n)
	}
	ok(t, b.Advance(t.Context(), p.Mark, nil))
	if n := w.sweepAll(); n != 0 {
		t.Errorf("%d partitions went that a's stored position may still need", n)
	}
	w.goes(2, a, b)
	if w.left() != 5 {
		t.Errorf("%d messages are left", w.left())
	}
	eventually(t, "empty partitions are dropped", func() bool {
		w.sweepAll()
		return value[int](w, "select count(*) from ~outbox_partition where hi <= 21") == 0
	})
	w.many(10)
	w.sweepAll() // the next one is full now, and recent
	w.keep(a)
	w.keep(b)
	if n := w.sweepAll(); n != 0 || w.left() != 15 {
		t.Errorf("%d young partitions went", n)
	}
	if got := drain(t, w.claim("new", 1)); len(got) != 15 {
		t.Errorf("a new subscription begins with %d messages", len(got))
	}
	s, err := w.Stats(t.Context(), "a")
	ok(t, err)
	if s[0].PartitionsAhead < minAhead-1 || s[0].Retained <= 0 {
		t.Errorf("%d partitions ahead, %d bytes", s[0].PartitionsAhead, s[0].Retained)
	}
}

// TestLateCommitIntoFullPartition tests a transaction that began before its partition was full and
// commits after everything else would allow the partition's removal. It must lose nothing.
func TestLateCommitIntoFullPartition(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Config{width: 10, Retention: -1})
	ctx := context.Background()
	c := w.claim("s", 1)
	late := w.begin()
	ok(t, w.pub.Publish(ctx, late, text("late", "late")))
	w.many(30)
	for range 3 {
		w.keep(c)
		if n := w.sweepAll(); n != 0 {
			t.Fatalf("%d partitions went beside an open transaction", n)
		}
	}
	ok(t, late.Commit(ctx))
	if n := w.sweepAll(); n != 0 {
		t.Fatalf("%d partitions went before the late message was read", n)
	}
	if got := drain(t, c); !slices.Equal(got, []string{"late"}) {
		t.Fatalf("got %v", got)
	}
	w.goes(3, c)
}

// TestLateCommitBesideTheSweeper keeps a transaction open over the retention while a relay delivers what others
// publish, and while the sweeper removes partitions all the time. The late message must be delivered, and its
// partition must go only after that.
func TestLateCommitBesideTheSweeper(t *testing.T) {
	t.Parallel()
	ctx, stop := context.WithCancel(context.Background())
	w := newWorld(t, Config{width: 10, Retention: time.Millisecond})
	w.exec("select ~outbox_extend(600, 10)")
	var mu sync.Mutex
	came := map[string]int{}
	seen := func(name string) int {
		mu.Lock()
		defer mu.Unlock()
		return came[name]
	}
	w.relay(t, outbox.Config{Name: "s", Sink: outbox.SinkFunc(func(_ context.Context, d outbox.Delivery) []error {
		mu.Lock()
		defer mu.Unlock()
		for _, r := range d.Rows {
			came[string(r.Payload)]++
		}
		return nil
	})})
	var sweeps, removed atomic.Int64
	var sweeper sync.WaitGroup
	sweeper.Go(func() {
		for ctx.Err() == nil {
			n, err := w.Sweep(ctx, 10)
			if err != nil && ctx.Err() == nil {
				t.Errorf("sweep: %v", err)
				return
			}
			sweeps.Add(1)
			removed.Add(int64(n))
		}
	})
	t.Cleanup(sweeper.Wait)
	t.Cleanup(stop)
	late := w.begin()
	ok(t, w.pub.Publish(ctx, late, text("late", "late")))
	w.many(100)
	eventually(t, "the others are delivered", func() bool { return seen("99") > 0 })
	before := sweeps.Load()
	eventually(t, "the sweeper has been round", func() bool { return sweeps.Load() >= before+5 })
	if n := removed.Load(); n != 0 {
		t.Errorf("%d partitions went beside the open transaction", n)
	}
	ok(t, late.Commit(ctx))
	eventually(t, "the late message is delivered", func() bool { return seen("late") > 0 })
	more := 0
	eventually(t, "the partitions go", func() bool {
		if more < 400 {
			more++
			w.publish(text("k", "more")) // so that the relay stores newer positions
		}
		return removed.Load() >= 10
	})
}

// TestOldPartitionIsFilledUp checks that a partition with few messages is closed, so that it can be
// removed in time, and that the sequence stays in its file: a relay may read it at the same moment.
func TestOldPartitionIsFilledUp(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Config{width: 1000, Retention: 2 * time.Hour, age: time.Minute})
	c := w.claim("s", 1)
	w.many(3)
	w.sweepAll()
	if last := value[int](w, "select last_value from ~outbox_id"); last != 3 {
		t.Fatalf("a young partition was filled up to %d", last)
	}
	file := value[int](w, "select pg_relation_filenode('~outbox_id')::bigint::int")
	w.exec("update ~outbox set created_at = created_at - interval '3 hours'")
	w.sweepAll()
	drain(t, c)
	w.exec("update ~outbox_partition set passed_at = passed_at - interval '3 hours'")
	w.goes(1, c)
	if w.left() != 0 {
		t.Errorf("%d messages are left", w.left())
	}
	if now := value[int](w, "select pg_relation_filenode('~outbox_id')::bigint::int"); now != file {
		t.Errorf("the sequence was in file %d, and is in file %d", file, now)
	}
	w.publish(text("k", "next"))
	if got := drain(t, c); !slices.Equal(got, []string{"next"}) {
		t.Errorf("then came %v", got)
	}
}

// TestClosingIsNoSpeed checks that the unused ids of closed partitions do not count as rate: partitions
// become neither larger nor more.
func TestClosingIsNoSpeed(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Config{width: 1 << 22, Retention: 2 * time.Hour})
	w.claim("s", 1)
	w.sweepAll()
	for range 3 {
		w.publish(text("k", "x"))
		was := value[int64](w, "select last_value from ~outbox_id")
		w.exec("update ~outbox set created_at = created_at - interval '2 hours'")
		eventually(t, "the partition ends", func() bool { // our transactions have ended
			w.exec("update ~outbox_state set drawn_at = drawn_at - interval '1 minute'")
			w.sweepAll()
			return value[int64](w, "select last_value from ~outbox_id") > was
		})
		w.exec("update ~outbox_state set drawn_at = drawn_at - interval '1 minute'")
		w.sweepAll()
		if full := value[bool](w, "select exists (select from ~outbox_partition n, ~outbox_id s where s.last_value = n.hi - 1 and n.x0 is not null)"); !full {
			t.Error("the partition is not full")
		}
		if peak := value[float64](w, "select peak from ~outbox_state"); peak > 1 {
			t.Errorf("the peak is %.0f ids a second", peak)
		}
		if wide := value[int64](w, "select max(hi - lo) from ~outbox_partition"); wide != 1<<22 {
			t.Errorf("the widest partition has %d ids", wide)
		}
	}
}

// TestClosingWaitsForNobody checks that an open transaction that has published delays the closing of a
// partition, without blocking anything for long, and that its messages are delivered.
func TestClosingWaitsForNobody(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	w := newWorld(t, Config{width: 1000, Retention: 2 * time.Hour})
	w.publish(text("k", "0"))
	w.exec("update ~outbox set created_at = created_at - interval '2 hours'")
	open := w.begin()
	ok(t, w.pub.Publish(ctx, open, text("k", "1")))
	w.sweepAll()
	if last := value[int64](w, "select last_value from ~outbox_id"); last != 2 {
		t.Errorf("the last id is %d beside an open transaction", last)
	}
	ok(t, w.pub.Publish(ctx, open, text("k", "2")))
	ok(t, open.Commit(ctx))
	w.sweepAll()
	if last := value[int64](w, "select last_value from ~outbox_id"); last != 1000 {
		t.Errorf("the last id is %d, want that of the partition", last)
	}
	w.publish(text("k", "3"))
	if got := drain(t, w.claim("s", 1)); !slices.Equal(got, []string{"0", "1", "2", "3"}) {
		t.Errorf("got %v", got)
	}
}

// TestClosingIsWhole checks that a partition which cannot be closed now keeps its ids. Otherwise they would count as
// drawn, and partitions would become larger for days.
func TestClosingIsWhole(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Config{width: 1000})
	w.publish(text("k", "0"))
	open, err := w.owner.Begin(context.Background())
	ok(t, err)
	_, err = open.Exec(context.Background(), w.names.q("update ~outbox_state set drawn = drawn"))
	ok(t, err)
	closing := `select ~outbox_close((select n.n from ~outbox_partition n, ~outbox_id s where s.last_value >= n.lo and s.last_value < n.hi))`
	if value[bool](w, closing) {
		t.Error("it was closed beside a transaction that holds the state")
	}
	if last := value[int](w, "select last_value from ~outbox_id"); last != 1 {
		t.Errorf("the last id is %d", last)
	}
	ok(t, open.Rollback(context.Background()))
	if !value[bool](w, closing) {
		t.Error("it was not closed later")
	}
	if last := value[int](w, "select last_value from ~outbox_id"); last != 1000 {
		t.Errorf("the last id is %d at the end", last)
	}
}

// TestLanesOutliveTheLog checks that lanes and dead letters outlive the log's partitions.
func TestLanesOutliveTheLog(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Config{width: 2, Retention: -1})
	w.publish(text("a", "a1"), text("b", "b1"))
	c := w.claim("s", 1)
	p, err := c.Next(t.Context(), outbox.Limit{})
	ok(t, err)
	ok(t, c.Advance(t.Context(), p.Mark, []outbox.Outcome{
		{Row: p.Rows[0], Kind: outbox.Held, Attempts: 1}, {Row: p.Rows[1], Kind: outbox.Dead, Attempts: 1},
	}))
	w.goes(1, c)
	n, err := w.Retry(t.Context(), "s")
	ok(t, err)
	lanes, err := c.Due(t.Context(), 10)
	ok(t, err)
	if n != 2 || len(lanes) != 2 {
		t.Errorf("%d retried, %d due", n, len(lanes))
	}
}

// TestReplayOfRemovedMessages checks that a range of which the log has nothing any more is refused, and that the rest
// of one that is partly gone is delivered.
func TestReplayOfRemovedMessages(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	w := newWorld(t, Config{width: 10, Retention: -1})
	c := w.claim("s", 1)
	w.many(25)
	drain(t, c)
	w.goes(2, c)
	for _, dry := range []bool{true, false} {
		_, _, err := w.Replay(ctx, outbox.ReplayRequest{Subscription: "s", UpTo: 20, DryRun: dry})
		if !errors.Is(err, outbox.ErrNotFound) || !strings.Contains(err.Error(), "the log begins with message 21 ") {
			t.Errorf("a range that is gone: %v", err)
		}
		_, counts, err := w.Replay(ctx, outbox.ReplayRequest{Subscription: "s", After: 5, UpTo: 22, DryRun: dry})
		ok(t, err)
		if len(counts) != 1 || counts[outbox.Delivered] != 2 {
			t.Errorf("of a range that is partly gone come %v", counts)
		}
	}
	if lanes, err := w.claim("s", 1).Due(ctx, 10); err != nil || len(lanes) != 2 {
		t.Errorf("%d lanes are due: %v", len(lanes), err)
	}
}

// TestMaxRetained checks that a log that is too large skips undelivered messages of a lagging
// subscription only if OnLag is forget, and logs it in any case. The subscription remains.
func TestMaxRetained(t *testing.T) {
	t.Parallel()
	for _, policy := range []string{LagKeep, LagForget} {
		t.Run(policy, func(t *testing.T) {
			t.Parallel()
			var reported bytes.Buffer
			w := newWorld(t, Config{width: 10, Retention: time.Hour, MaxRetained: 1000, OnLag: policy, Logger: slog.New(slog.NewTextHandler(&reported, nil))})
			slow, fast := w.claim("slow", 1), w.claim("fast", 1)
			w.publish(text("dead", "dead"))
			p, err := slow.Next(t.Context(), outbox.Limit{})
			ok(t, err)
			ok(t, slow.Advance(t.Context(), p.Mark, []outbox.Outcome{{Row: p.Rows[0], Kind: outbox.Dead, Attempts: 1}}))
			ok(t, w.Pause(t.Context(), "slow", true))
			w.many(24)
			drain(t, fast)
			w.sweepAll()
			w.keep(fast)
			w.sweepAll()
			if reported.Len() > 0 {
				t.Errorf("within the retention: %s", reported.String())
			}
			w.exec("update ~outbox_partition set passed_at = passed_at - interval '2 hours'")
			removed := w.sweepAll()
			if policy == LagForget {
				w.goes(2-removed, fast)
			}
			if !strings.Contains(reported.String(), "slow messages=19") || strings.Contains(reported.String(), "fast") {
				t.Errorf("told: %s", reported.String())
			}
			all, err := w.Stats(t.Context(), "slow")
			ok(t, err)
			s := all[0]
			if want := map[string]int{LagKeep: 24, LagForget: 5}[policy]; int(s.Pending) != want || !s.Paused || s.Dead != 1 || w.left() != map[string]int{LagKeep: 25, LagForget: 5}[policy] {
				t.Errorf("%d messages are left of the log, of slow: %+v", w.left(), s)
			}
			ok(t, w.Pause(t.Context(), "slow", false))
			if got := drain(t, w.claim("slow", 2)); len(got) != int(s.Pending) || got[len(got)-1] != "23" {
				t.Errorf("then came %v", got)
			}
		})
	}
}

// TestForgetWithLivingRelay checks that a log with a bound is swept despite a running relay whose sink is
// down, a paused one, and a replay without progress.
func TestForgetWithLivingRelay(t *testing.T) {
	t.Parallel()
	for _, state := range []string{"sink is down", "paused", "replayed"} {
		t.Run(state, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, Config{width: 10, Retention: time.Hour, MaxRetained: 1000, OnLag: LagForget})
			var up atomic.Bool
			up.Store(state == "replayed")
			var mu sync.Mutex
			var came []string
			w.relay(t, outbox.Config{Name: "s", Sink: outbox.SinkFunc(func(_ context.Context, d outbox.Delivery) []error {
				if !up.Load() {
					return []error{fmt.Errorf("gone: %w", outbox.ErrSinkDown)}
				}
				mu.Lock()
				defer mu.Unlock()
				for _, r := range d.Rows {
					came = append(came, string(r.Payload))
				}
				return nil
			})})
			pending := func() int64 {
				all, err := w.Stats(t.Context(), "s")
				ok(t, err)
				if len(all) == 0 {
					return -1
				}
				return all[0].Pending
			}
			eventually(t, "claimed", func() bool { return pending() == 0 })
			if state == "paused" {
				ok(t, w.Pause(t.Context(), "s", true))
			}
			w.many(25)
			if state == "replayed" {
				eventually(t, "delivered", func() bool { return pending() == 0 })
				up.Store(false)
				_, _, err := w.Replay(t.Context(), outbox.ReplayRequest{Subscription: "s"})
				ok(t, err)
			}
			_, err := w.Sweep(t.Context(), 10)
			ok(t, err)
			eventually(t, "the full partitions go", func() bool {
				w.exec("update ~outbox_partition set passed_at = clock_timestamp() - interval '2 hours' where passed_at is not null")
				w.exec("update ~outbox_cursor set updated_at = clock_timestamp() - interval '2 hours'")
				_, err := w.Sweep(t.Context(), 10)
				ok(t, err)
				return w.left() == 5
			})
			if n := pending(); n != 5 {
				t.Errorf("%d messages are pending, want those that are left", n)
			}
			mu.Lock()
			came = nil
			mu.Unlock()
			up.Store(true)
			ok(t, w.Pause(t.Context(), "s", false))
			w.publish(text("k", "last"))
			eventually(t, "the rest comes", func() bool {
				mu.Lock()
				defer mu.Unlock()
				return slices.Contains(came, "24") && slices.Contains(came, "last")
			})
		})
	}
}

// TestPassOver checks that skipped messages stay skipped, whatever the row's position was, and even if
// the log is restored on another server before the next claim. Later messages are delivered, and messages
// of transactions open at that time may be.
func TestPassOver(t *testing.T) {
	t.Parallel()
	for name, before := range map[string]func(w *world, c *cursor){
		"nothing was read": func(*world, *cursor) {},
		"in the middle of a tick": func(w *world, c *cursor) {
			p, err := c.Next(context.Background(), outbox.Limit{Rows: 3})
			ok(w.t, err)
			ok(w.t, c.Advance(context.Background(), p.Mark, nil))
		},
		"in a replay": func(w *world, c *cursor) {
			drain(w.t, c)
			_, _, err := w.Replay(context.Background(), outbox.ReplayRequest{Subscription: "s", After: 2})
			ok(w.t, err)
		},
	} {
		for _, restored := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, restored %v", name, restored), func(t *testing.T) {
				t.Parallel()
				ctx := context.Background()
				w := newWorld(t, Config{width: 10})
				cur := w.claim("s", 1)
				late, later := w.begin(), w.begin()
				ok(t, w.pub.Publish(ctx, late, text("late", "late")))
				ok(t, w.pub.Publish(ctx, later, text("later", "later")))
				w.many(23)
				before(w, cur)
				ok(t, late.Commit(ctx))
				ok(t, w.write(ctx, nil, func(q *query) error {
					q.passOver(ranges.LaggingRow{Subscription: "s"}, 20)
					return nil
				}))
				ok(t, later.Commit(ctx))
				if err := cur.Advance(ctx, mark{cursor: cur, at: []position{cur.rows[0].position}}, nil); !errors.Is(err, outbox.ErrMoved) {
					t.Errorf("the reader that was there advances: %v", err)
				}
				if restored {
					w.exec("update ~outbox_state set era = era + 1")
				}
				cur = w.claim("s", 1)
				got := slices.DeleteFunc(drain(t, cur), func(s string) bool { return s == "later" })
				if !slices.Equal(got, []string{"18", "19", "20", "21", "22"}) {
					t.Errorf("then came %v", got)
				}
				w.many(2)
				if got := drain(t, cur); len(got) != 2 {
					t.Errorf("at last came %v", got)
				}
			})
		}
	}
}

// TestPassedOverPartitionWaitsForTransactions checks that a skipped partition remains while a transaction
// is open that may have drawn one of its ids.
func TestPassedOverPartitionWaitsForTransactions(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	w := newWorld(t, Config{width: 10, Retention: -1})
	w.claim("s", 1)
	open := beginAs(t, w.owner)
	_, err := open.Exec(ctx, w.names.q("select pg_current_xact_id(), nextval('~outbox_id')"))
	ok(t, err)
	w.many(15)
	ok(t, w.read(ctx, nil, func(q *query) error {
		q.markFull()
		return nil
	}))
	ok(t, w.write(ctx, nil, func(q *query) error {
		q.passOver(ranges.LaggingRow{Subscription: "s"}, 10)
		return nil
	}))
	if value[bool](w, "select ~outbox_empty(1, -1000000)") {
		t.Error("the partition was emptied")
	}
	ok(t, open.Commit(ctx))
	eventually(t, "the partition goes", func() bool { return value[bool](w, "select ~outbox_empty(1, -1000000)") })
	if w.left() != 6 {
		t.Errorf("%d messages are left", w.left())
	}
}

// TestPartitionsKeepAhead checks that partitions are created ahead for three days at the recent peak
// rate, and not by the thousand.
func TestPartitionsKeepAhead(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Config{width: 1000})
	w.exec("update ~outbox_state set peak = 5000, drawn_at = clock_timestamp()")
	task := w.Tasks()[0]
	_, err := task.Step(t.Context(), daemon.Fence{}, 10)
	ok(t, err)
	ahead := value[int64](w, "select max(hi) from ~outbox_partition")
	n := value[int](w, "select count(*) from ~outbox_partition")
	if want := int64(5000 * 3 * 24 * 3600 * 99 / 100); ahead < want || n > 40 || task.Every <= 0 || task.Name == "" {
		t.Errorf("%d partitions reach to %d, want %d at least", n, ahead, want)
	}
}

// TestGaps checks that reading does not start at the first id ever drawn, and crosses gaps of any length.
func TestGaps(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	w := s.world(t, Config{})
	c := w.claim("s", 1)
	w.publish(text("k", "0"))
	s.exec(t, w.names.q("select setval('~outbox_id', 3000000)"))
	w.publish(text("k", "1"))
	if got := drain(t, c); !slices.Equal(got, []string{"0", "1"}) {
		t.Errorf("got %v", got)
	}
	if c.reader.rowReaders[0].floor < 1 {
		t.Errorf("the floor is %d", c.reader.rowReaders[0].floor)
	}
	w.publish(text("k", "2"))
	if got := drain(t, c); !slices.Equal(got, []string{"2"}) || c.reader.rowReaders[0].floor < 3_000_001 {
		t.Errorf("got %v, the floor is %d", got, c.reader.rowReaders[0].floor)
	}
}

// TestFloorAfterPause checks that after a pause in which much was published, the floor is a new one, so
// that delivered messages are not scanned again.
func TestFloorAfterPause(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Config{})
	c := w.claim("s", 1)
	drain(t, c)
	ok(t, w.Pause(t.Context(), "s", true))
	w.exec("insert into ~outbox (shard, topic) select 1, 't' from generate_series(1, $1::int)", 2*window)
	drain(t, c)
	ok(t, w.Pause(t.Context(), "s", false))
	if got := drain(t, c); len(got) != 2*window {
		t.Errorf("%d messages came", len(got))
	}
	if floor := c.reader.rowReaders[0].floor; floor < 2*window {
		t.Errorf("the floor is %d", floor)
	}
}
