package journal_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/emitd/emitd/internal/storage/mem"
	"github.com/emitd/emitd/queue/internal/journal"
	"github.com/emitd/emitd/storage/blob"
)

// book is a StateBuilder that stores every record.
type book struct {
	records  []string
	slots    []uint64
	times    []time.Time
	resets   int
	restored int
	refuse   error
}

func (b *book) Reset() { *b = book{resets: b.resets + 1, refuse: b.refuse} }

func (b *book) Restore(chunk []byte) error {
	b.restored++
	for line := range strings.SplitSeq(string(chunk), "\n") {
		b.records = append(b.records, line)
	}
	return nil
}

func (b *book) Replay(slot uint64, at time.Time, records iter.Seq[[]byte]) error {
	b.slots = append(b.slots, slot)
	b.times = append(b.times, at)
	for r := range records {
		b.records = append(b.records, string(r))
	}
	return b.refuse
}

const latency = 60 * time.Millisecond

func slowBucket() *mem.Bucket { return mem.New(mem.Config{Latency: mem.Constant(latency)}) }

// config returns the configuration of the first owner; as changes it to that of another one.
func config(b blob.Bucket) journal.Config {
	return journal.Config{Bucket: b, Prefix: "root/v1/ab/orders/1/0", StoreID: "store", Generation: 1, Owner: "one"}
}

func as(c journal.Config, owner string, generation int64) journal.Config {
	c.Owner, c.Generation = owner, generation
	return c
}

func open(t *testing.T, cfg journal.Config) (*journal.Log, *book) {
	t.Helper()
	b := &book{}
	l, err := journal.Open(t.Context(), cfg, b)
	if err != nil {
		t.Fatal(err)
	}
	return l, b
}

func add(t *testing.T, l *journal.Log, records ...string) uint64 {
	t.Helper()
	raw := make([][]byte, len(records))
	for i, r := range records {
		raw[i] = []byte(r)
	}
	slot, err := l.Append(time.Now(), raw...)
	if err != nil {
		t.Fatal(err)
	}
	return slot
}

// await waits until a slot is durable.
func await(t *testing.T, l *journal.Log, slot uint64) {
	t.Helper()
	for l.Durable() < slot {
		select {
		case <-l.Acks():
		case <-l.Done():
			t.Fatalf("slot %d: %v", slot, l.Err())
		case <-time.After(time.Minute):
			t.Fatalf("slot %d is not durable after a minute, %d is", slot, l.Durable())
		}
	}
}

func closeLog(t *testing.T, l *journal.Log) {
	t.Helper()
	if err := l.Close(context.WithoutCancel(t.Context())); err != nil {
		t.Fatal(err)
	}
}

func same(t *testing.T, got *book, want ...string) {
	t.Helper()
	if !slices.Equal(got.records, want) {
		t.Fatalf("the state has %d records %.200q, want %d %.200q", len(got.records), got.records, len(want), want)
	}
}

func TestRecordsSurviveACleanHandover(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg := config(slowBucket())
		l, b := open(t, cfg)
		same(t, b)
		await(t, l, add(t, l, "a", "b"))
		add(t, l, "c") // Close waits for it
		closeLog(t, l)
		if !errors.Is(l.Err(), journal.ErrClosed) {
			t.Errorf("a closed log says %v", l.Err())
		}
		l2, b2 := open(t, as(cfg, "two", 2))
		same(t, b2, "a", "b", "c")
		if l2.Epoch() != l.Epoch()+1 || !slices.Equal(l.Secret(), l2.Secret()) || len(l.Secret()) != 32 {
			t.Errorf("epochs %d, %d; secrets %x, %x", l.Epoch(), l2.Epoch(), l.Secret(), l2.Secret())
		}
		closeLog(t, l2)
	})
}

func TestRecordsSurviveACrash(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg := config(slowBucket())
		ctx, crash := context.WithCancel(t.Context())
		l, err := journal.Open(ctx, cfg, &book{})
		if err != nil {
			t.Fatal(err)
		}
		var want []string
		for i := range 100 {
			want = append(want, fmt.Sprint(i))
			await(t, l, add(t, l, want[i]))
		}
		crash()
		<-l.Done()
		l2, b2 := open(t, as(cfg, "two", 2))
		same(t, b2, want...)
		closeLog(t, l2)
	})
}

// TestADeposedOwnerIsFenced: a paused owner that continues acknowledges nothing.
func TestADeposedOwnerIsFenced(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg := config(slowBucket())
		l, _ := open(t, cfg)
		await(t, l, add(t, l, "a"))
		l2, b2 := open(t, as(cfg, "two", 2))
		same(t, b2, "a")
		add(t, l, "late")
		await(t, l2, add(t, l2, "b"))
		<-l.Done()
		if !errors.Is(l.Err(), journal.ErrFenced) || l.Durable() != 1 {
			t.Errorf("%v, durable %d", l.Err(), l.Durable())
		}
		if _, err := l.Append(time.Now(), []byte("x")); !errors.Is(err, journal.ErrFenced) {
			t.Errorf("append: %v", err)
		}
		closeLog(t, l2)
		l3, b3 := open(t, as(cfg, "three", 3))
		same(t, b3, "a", "b")
		closeLog(t, l3)
	})
}

func TestCheckpointsReplaceReplay(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		bucket := slowBucket()
		cfg := config(bucket)
		l, _ := open(t, cfg)
		var state []string
		for round := range 4 {
			for range 10 {
				state = append(state, fmt.Sprint(len(state)))
				await(t, l, add(t, l, state[len(state)-1]))
			}
			c, upTo, err := l.Checkpoint()
			if err != nil || upTo != uint64(len(state)) {
				t.Fatalf("up to %d, %v", upTo, err)
			}
			for _, r := range state {
				if err := c.Write([]byte(r)); err != nil {
					t.Fatal(err)
				}
			}
			if err := c.Commit([]uint64{3}); err != nil {
				t.Fatal(err)
			}
			if <-c.Done(); c.Err() != nil {
				t.Fatal(c.Err())
			}
			_ = round
		}
		synctest.Wait()
		time.Sleep(time.Second)
		if s := l.Stats(); s.Slots != 0 || s.Bytes != 0 {
			t.Errorf("after a checkpoint: %+v", s)
		}
		var logs []string
		for _, k := range bucket.Keys() {
			if i := strings.Index(k, "log/"); i >= 0 {
				logs = append(logs, strings.TrimLeft(k[i+4:], "0"))
			}
		}
		if len(logs) != 11 || logs[0] != "3" || logs[1] != "31" {
			t.Errorf("after collection: %v", logs)
		}
		if got := recordsIn(t, l, 3); !slices.Equal(got, []string{"2"}) {
			t.Errorf("slot 3 has %q", got)
		}
		closeLog(t, l)
		l2, b2 := open(t, as(cfg, "two", 2))
		same(t, b2, state...)
		if len(b2.slots) != 0 {
			t.Errorf("replayed %v", b2.slots)
		}
		closeLog(t, l2)
	})
}

// recordsIn reads the records of a slot.
func recordsIn(t *testing.T, l *journal.Log, slot uint64) (got []string) {
	t.Helper()
	records, size, err := l.Read(t.Context(), slot)
	if err != nil || size == 0 {
		t.Fatal(size, err)
	}
	for r := range records {
		got = append(got, string(r))
	}
	return got
}
