package throttle_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/emitd/emitd/cmd/emitd/internal/throttle"
	"github.com/emitd/emitd/internal/storage/mem"
	"github.com/emitd/emitd/storage/blob"
	"github.com/emitd/emitd/storage/blob/blobtest"
)

func wrap(t *testing.T, inner blob.Bucket, config throttle.Config) *throttle.Bucket {
	t.Helper()
	b, err := throttle.New(inner, config)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestConformance(t *testing.T) {
	t.Parallel()
	fast := throttle.Rate{PerSecond: 1e6, Burst: 10}
	for name, config := range map[string]throttle.Config{
		"no limit": {},
		"limits":   {Reads: fast, Writes: fast, Lists: fast, Deletes: fast, WritesPerDay: 1e9},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			blobtest.Run(t, blobtest.Config{Open: func(t *testing.T) func() blob.Bucket {
				inner := mem.New(mem.Config{})
				return func() blob.Bucket { return wrap(t, inner, config) }
			}})
		})
	}
}

// TestHole10WaitersStandInARow: a hundred reads at one a second take 99 seconds, however many
// callers wait at the same time.
func TestHole10WaitersStandInARow(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		callers, burst int
		want           time.Duration
	}{{100, 1, 99 * time.Second}, {100, 0, 99 * time.Second}, {100, 40, 60 * time.Second}, {3, 5, 0}} {
		t.Run(fmt.Sprint(c), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				inner := mem.New(mem.Config{})
				b := wrap(t, inner, throttle.Config{Reads: throttle.Rate{PerSecond: 1, Burst: c.burst}})
				begin := time.Now()
				var all sync.WaitGroup
				for range c.callers {
					all.Go(func() { _, _ = b.Read(t.Context(), "a") })
				}
				all.Wait()
				if got := time.Since(begin); got.Round(time.Millisecond) != c.want {
					t.Errorf("took %s, want %s", got, c.want)
				}
				if n := inner.Requests(); n != int64(c.callers) {
					t.Errorf("%d requests arrived", n)
				}
				stats := b.Stats()[throttle.Reads]
				if stats.Sent != int64(c.callers) || stats.Delayed != int64(max(0, c.callers-max(1, c.burst))) {
					t.Errorf("stats %+v", stats)
				}
			})
		})
	}
}

// TestClassesDoNotWaitForEachOther: a queue of reads does not delay a write.
func TestClassesDoNotWaitForEachOther(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		one := throttle.Rate{PerSecond: 1}
		b := wrap(t, mem.New(mem.Config{}), throttle.Config{Reads: one, Writes: one, Lists: one, Deletes: one})
		var all sync.WaitGroup
		for range 10 {
			all.Go(func() { _, _ = b.ReadPrefix(t.Context(), "a", 1) })
		}
		synctest.Wait()
		begin := time.Now()
		_, write := b.Write(t.Context(), "a", nil)
		_, list := b.List(t.Context(), "", "", 0)
		remove := b.Delete(t.Context(), "a")
		if err := errors.Join(write, list, remove); err != nil || time.Since(begin) != 0 {
			t.Errorf("after %s: %v", time.Since(begin), err)
		}
		all.Wait()
	})
}

// TestSomeGoFirst: a read of a key that goes first waits for nobody. It counts: the others wait longer.
func TestSomeGoFirst(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := wrap(t, mem.New(mem.Config{}), throttle.Config{Reads: throttle.Rate{PerSecond: 1}, First: []string{"list"}})
		begin := time.Now()
		var all sync.WaitGroup
		for range 10 {
			all.Go(func() { _, _ = b.Read(t.Context(), "a") })
		}
		synctest.Wait()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, err := b.Read(ctx, "list"); !errors.Is(err, blob.ErrNotFound) || time.Since(begin) != 0 {
			t.Errorf("got %v after %s", err, time.Since(begin))
		}
		all.Wait()
		if _, err := b.Read(t.Context(), "a"); !errors.Is(err, blob.ErrNotFound) || time.Since(begin).Round(time.Second) != 11*time.Second {
			t.Errorf("got %v after %s", err, time.Since(begin))
		}
	})
}

// TestTooLongIsRefusedAtOnce: a call that cannot be sent in time is refused without waiting, and
// has not happened.
func TestTooLongIsRefusedAtOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		inner := mem.New(mem.Config{})
		b := wrap(t, inner, throttle.Config{Writes: throttle.Rate{PerSecond: 0.1}})
		if _, err := b.Create(t.Context(), "a", nil); err != nil {
			t.Fatal(err)
		}
		begin := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		_, err := b.Create(ctx, "b", nil)
		if !errors.Is(err, blob.ErrThrottled) || !blob.NotApplied(err) || blob.RetryAfter(err) != 10*time.Second {
			t.Errorf("got %v", err)
		}
		if time.Since(begin) != 0 || inner.Requests() != 1 {
			t.Errorf("after %s, %d requests", time.Since(begin), inner.Requests())
		}
		if got := b.Stats()[throttle.Writes]; got.Refused != 1 || got.Sent != 1 {
			t.Errorf("stats %+v", got)
		}
	})
}

// TestWhoLeavesGivesItsPlaceBack: cancelled waiters do not use up the rate.
func TestWhoLeavesGivesItsPlaceBack(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := wrap(t, mem.New(mem.Config{}), throttle.Config{Writes: throttle.Rate{PerSecond: 1}, WritesPerDay: 3})
		_, _ = b.Write(t.Context(), "a", nil)
		ctx, cancel := context.WithCancel(t.Context())
		var all sync.WaitGroup
		for range 2 {
			all.Go(func() {
				if _, err := b.Write(ctx, "a", nil); !errors.Is(err, context.Canceled) || !blob.NotApplied(err) {
					t.Errorf("got %v", err)
				}
			})
		}
		synctest.Wait()
		cancel()
		all.Wait()
		begin := time.Now()
		for range 2 {
			if _, err := b.Write(t.Context(), "a", nil); err != nil {
				t.Error(err)
			}
		}
		if got := time.Since(begin).Round(time.Millisecond); got != 2*time.Second {
			t.Errorf("two writes took %s, want 2s: the cancelled ones kept their places", got)
		}
		if used, limit, _ := b.Budget(); used != 3 || limit != 3 {
			t.Errorf("budget %d of %d", used, limit)
		}
	})
}

// TestHole10BudgetReallyLimits: no more writes than allowed are sent, by any method, until the day
// is over.
func TestHole10BudgetReallyLimits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		inner := mem.New(mem.Config{})
		b := wrap(t, inner, throttle.Config{WritesPerDay: 4})
		time.Sleep(time.Hour) // the day begins with the first write
		v, _ := b.Create(t.Context(), "a", []byte("one"))
		_, _ = b.Replace(t.Context(), "a", []byte("two"), v)
		_, _ = b.Write(t.Context(), "a", nil)
		_ = b.Delete(t.Context(), "a")
		time.Sleep(20 * time.Hour)
		for range 100 {
			_, create := b.Create(t.Context(), "b", nil)
			for _, err := range []error{create, b.Delete(t.Context(), "b")} {
				if !errors.Is(err, blob.ErrBudget) || !blob.NotApplied(err) || blob.RetryAfter(err) != 4*time.Hour {
					t.Fatalf("got %v, want ErrBudget for 4 more hours", err)
				}
			}
		}
		if n := inner.Requests(); n != 4 {
			t.Errorf("%d requests arrived", n)
		}
		if _, err := b.Read(t.Context(), "a"); !errors.Is(err, blob.ErrNotFound) {
			t.Errorf("reads have no budget: %v", err)
		}
		time.Sleep(4 * time.Hour)
		if _, err := b.Create(t.Context(), "b", nil); err != nil {
			t.Errorf("the next day: %v", err)
		}
		used, limit, next := b.Budget()
		if used != 1 || limit != 4 || time.Until(next) != 24*time.Hour {
			t.Errorf("budget %d of %d until %s", used, limit, next)
		}
		if got := b.Stats(); got[throttle.Writes].OverBudget != 100 || got[throttle.Deletes].OverBudget != 100 {
			t.Errorf("stats %+v", got)
		}
	})
}

func TestBudgetUnderParallelCallers(t *testing.T) {
	t.Parallel()
	inner := mem.New(mem.Config{})
	b := wrap(t, inner, throttle.Config{WritesPerDay: 50})
	var all sync.WaitGroup
	for range 200 {
		all.Go(func() { _, _ = b.Write(t.Context(), "a", nil) })
	}
	all.Wait()
	if n := inner.Requests(); n != 50 {
		t.Errorf("%d writes arrived, 50 are allowed", n)
	}
}

// TestBudgetThatWaits: with WaitForBudget, three days' writes take two days.
func TestBudgetThatWaits(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		inner := mem.New(mem.Config{})
		b := wrap(t, inner, throttle.Config{WritesPerDay: 10, WaitForBudget: true})
		begin := time.Now()
		var all sync.WaitGroup
		for range 30 {
			all.Go(func() {
				if _, err := b.Write(t.Context(), "a", nil); err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		if got := time.Since(begin); got != 48*time.Hour {
			t.Errorf("took %s, want 48h", got)
		}
		// A call without enough time is refused at once.
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		if _, err := b.Write(ctx, "a", nil); !errors.Is(err, blob.ErrBudget) {
			t.Errorf("got %v, want ErrBudget", err)
		}
	})
}

func TestBadConfig(t *testing.T) {
	t.Parallel()
	_, err := throttle.New(nil, throttle.Config{
		Reads: throttle.Rate{PerSecond: -1}, Writes: throttle.Rate{Burst: -1}, WritesPerDay: -1,
	})
	for _, word := range []string{"reads per second", "burst of writes", "writes per day"} {
		if err == nil || !strings.Contains(err.Error(), word) {
			t.Errorf("got %v, want a word about %s", err, word)
		}
	}
}
