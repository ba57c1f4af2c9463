package journal_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/internal/storage/mem"
	"github.com/emitd/emitd/queue/internal/journal"
	"github.com/emitd/emitd/storage/blob"
)

// TestAmbiguousWrites: writes of segments with unknown outcome (done, not done, or done later)
// duplicate nothing and lose nothing.
func TestAmbiguousWrites(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		rng, store := rand.New(rand.NewPCG(1, 2)), rand.New(rand.NewPCG(3, 4)) // store: used under the bucket's lock
		var ambiguous atomic.Int64
		faults := func(c mem.Call) mem.Fault {
			if c.Op != mem.Create || !strings.Contains(c.Key, "/log/") {
				return mem.Fault{}
			}
			kinds := []mem.FaultKind{mem.LostReply, mem.LostRequest, mem.Late, mem.Conflict, mem.Refused}
			if n := store.IntN(10); n < len(kinds) {
				if n < 3 {
					ambiguous.Add(1)
				}
				return mem.Fault{Kind: kinds[n], Delay: time.Duration(1 + store.IntN(int(5*time.Second)))}
			}
			return mem.Fault{}
		}
		cfg := config(mem.New(mem.Config{Latency: mem.Constant(20 * time.Millisecond), Faults: faults}))
		l, _ := open(t, cfg)
		var want []string
		for ambiguous.Load() < 600 {
			want = append(want, fmt.Sprintf("r%d", len(want)))
			slot := add(t, l, want[len(want)-1])
			if rng.IntN(4) == 0 {
				await(t, l, slot)
			}
		}
		await(t, l, l.NewestSlot())
		s := l.Stats()
		closeLog(t, l)
		l2, b2 := open(t, as(cfg, "two", 2))
		same(t, b2, want...)
		closeLog(t, l2)
		if s.Recognised == 0 {
			t.Error("no write was found to be our own")
		}
		t.Logf("%d records in %d segments, %d ambiguous writes, %d recognised, 0 lost, 0 twice", len(want), s.Segments, ambiguous.Load(), s.Recognised)
	})
}

// load appends without end, as fast as the log allows, and returns what was acknowledged.
func load(t *testing.T, l *journal.Log, name string, stop <-chan struct{}) (acked []string) {
	t.Helper()
	var slots []uint64
	var records []string
	for i := 0; ; i++ {
		r := fmt.Sprintf("%s%d", name, i)
		slot, err := l.Append(time.Now(), []byte(r))
		if err == nil {
			records, slots = append(records, r), append(slots, slot)
		}
		select {
		case <-l.Acks():
		case <-time.After(time.Millisecond):
		case <-l.Done():
		}
		select {
		case <-stop:
		case <-l.Done():
		default:
			continue
		}
		n, _ := slices.BinarySearch(slots, l.Durable()+1)
		return records[:n]
	}
}

// TestCleanFailover measures a clean hand-over under load, from the moment at which the old owner
// is told to stop to the first acknowledgement by the new one.
func TestCleanFailover(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg := config(slowBucket())
		l, _ := open(t, cfg)
		stop := make(chan struct{})
		go func() {
			time.Sleep(3 * time.Second)
			close(stop)
		}()
		load(t, l, "a", stop)
		slots := l.Stats().Slots
		begin := time.Now()
		closeLog(t, l)
		closed := time.Since(begin)
		l2, _ := open(t, as(cfg, "two", 2))
		opened := time.Since(begin)
		await(t, l2, add(t, l2, "first"))
		took := time.Since(begin)
		closeLog(t, l2)
		t.Logf("closed after %.1f latencies, owned after %.1f, acknowledged after %.1f (%v), %d slots replayed",
			closed.Seconds()/latency.Seconds(), opened.Seconds()/latency.Seconds(), took.Seconds()/latency.Seconds(), took, slots)
		if took > 8*latency+100*time.Millisecond {
			t.Errorf("a clean failover took %v, %.1f store latencies", took, took.Seconds()/latency.Seconds())
		}
	})
}

// TestCrashFailover measures the same without a clean close.
func TestCrashFailover(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg := config(slowBucket())
		ctx, crash := context.WithCancel(t.Context())
		l, err := journal.Open(ctx, cfg, &book{})
		if err != nil {
			t.Fatal(err)
		}
		stop := make(chan struct{})
		go func() {
			time.Sleep(3 * time.Second)
			close(stop)
		}()
		acked := load(t, l, "a", stop)
		crash()
		<-l.Done()
		begin := time.Now()
		l2, b2 := open(t, as(cfg, "two", 2))
		if len(b2.records) < len(acked) || !slices.Equal(b2.records[:len(acked)], acked) {
			t.Fatalf("%d of %d acknowledged records were found", len(b2.records), len(acked))
		}
		await(t, l2, add(t, l2, "first"))
		took := time.Since(begin)
		closeLog(t, l2)
		t.Logf("acknowledged after %.1f latencies", took.Seconds()/latency.Seconds())
		if took > 10*latency {
			t.Errorf("a takeover after a crash took %v", took)
		}
	})
}

// TestALiveOwnerIsReplacedUnderLoad: the old owner does not know of the new one and writes as fast
// as it can.
func TestALiveOwnerIsReplacedUnderLoad(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg := config(slowBucket())
		l, _ := open(t, cfg)
		stop := make(chan struct{})
		defer close(stop)
		var acked []string
		var wg sync.WaitGroup
		wg.Go(func() { acked = load(t, l, "a", stop) })
		time.Sleep(time.Second)
		begin := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		b2 := &book{}
		l2, err := journal.Open(ctx, as(cfg, "two", 2), b2)
		if err != nil {
			closeLog(t, l)
			t.Fatal(err)
		}
		t.Logf("taken over in %v", time.Since(begin))
		wg.Wait()
		if !errors.Is(l.Err(), journal.ErrFenced) {
			t.Errorf("the old owner ended with %v", l.Err())
		}
		if len(b2.records) < len(acked) || !slices.Equal(b2.records[:len(acked)], acked) {
			t.Errorf("%d of %d acknowledged records were found", len(b2.records), len(acked))
		}
		closeLog(t, l2)
	})
}

func TestAnIdleLogDoesNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		bucket := slowBucket()
		l, _ := open(t, config(bucket))
		await(t, l, add(t, l, "a"))
		time.Sleep(5 * time.Second) // meanwhile it writes a mark: "a" was acknowledged
		before := bucket.Requests()
		time.Sleep(24 * time.Hour)
		if n := bucket.Requests() - before; n != 0 {
			t.Errorf("%d requests in an idle day", n)
		}
		closeLog(t, l)
	})
}

// TestPacing: the first record after a pause is written at once, the following ones MinGap apart,
// and never more than Window are outstanding.
func TestPacing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := config(slowBucket())
		c.Window = 8
		l, _ := open(t, c)
		begin := time.Now()
		await(t, l, add(t, l, "a"))
		if took := time.Since(begin); took != latency {
			t.Errorf("the first record took %v", took)
		}
		var last uint64
		for range 30 {
			last = add(t, l, "x")
			time.Sleep(time.Millisecond)
		}
		if n := l.Stats().Outstanding; n < 7 || n > 8 {
			t.Errorf("%d segments were cut in 30 ms", n)
		}
		await(t, l, last)
		for range 200 {
			last = add(t, l, "x")
			if n := l.Stats().Outstanding; n > 8 {
				t.Fatalf("%d slots outstanding", n)
			}
			time.Sleep(time.Millisecond)
		}
		await(t, l, last)
		closeLog(t, l)
	})
}

// TestTrust: after the assignment has expired nothing is sent, and the end of the context ends the
// log.
func TestTrust(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		trust := time.Hour
		left := func() time.Duration { mu.Lock(); defer mu.Unlock(); return trust }
		ctx, cancel := context.WithCancel(daemon.WithValidity(t.Context(), left))
		bucket := slowBucket()
		l, err := journal.Open(ctx, config(bucket), &book{})
		if err != nil {
			t.Fatal(err)
		}
		mu.Lock()
		trust = 0
		mu.Unlock()
		before := bucket.Requests()
		add(t, l, "a")
		time.Sleep(10 * time.Second)
		if n := bucket.Requests() - before; n != 0 || l.Durable() != 0 {
			t.Errorf("%d requests without trust, durable %d", n, l.Durable())
		}
		cancel()
		<-l.Done()
		if !errors.Is(l.Err(), journal.ErrClosed) || !errors.Is(l.Err(), context.Canceled) {
			t.Errorf("%v", l.Err())
		}
		if err := l.Close(t.Context()); err == nil {
			t.Error("it was not closed cleanly, and says it was")
		}
	})
}

// TestAStoreThatComesBack: the log waits, reports repeated requests, and refuses more than
// MaxPending.
func TestAStoreThatComesBack(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		down, faults := false, 0
		cfg := config(mem.New(mem.Config{Latency: mem.Constant(latency), Faults: func(mem.Call) mem.Fault {
			mu.Lock()
			defer mu.Unlock()
			if down {
				return mem.Fault{Kind: mem.Throttled, Delay: 100 * time.Millisecond}
			}
			return mem.Fault{}
		}}))
		cfg.MaxPending = 10_000
		cfg.Hooks.OnRetry = func(op string, attempt int, err error) {
			if op == "copy HEAD" {
				return
			}
			if op != "write segment" || attempt < 1 || !errors.Is(err, blob.ErrThrottled) {
				t.Errorf("%s, attempt %d: %v", op, attempt, err)
			}
			faults++
		}
		l, _ := open(t, cfg)
		mu.Lock()
		down = true
		mu.Unlock()
		n := 0
		for ; ; n++ {
			if _, err := l.Append(time.Now(), make([]byte, 1000)); errors.Is(err, journal.ErrFull) {
				break
			} else if err != nil || n > 10 {
				t.Fatalf("%d records accepted, then %v", n, err)
			}
		}
		time.Sleep(time.Minute)
		mu.Lock()
		down = false
		mu.Unlock()
		await(t, l, l.NewestSlot())
		if n != 9 || l.Full() || faults < 20 {
			t.Errorf("%d records accepted, full %t, %d troubles", n, l.Full(), faults)
		}
		closeLog(t, l)
	})
}
