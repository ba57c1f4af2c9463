package lock_test

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/emitd/emitd/coordinator/lock"
	"github.com/emitd/emitd/storage"
	"github.com/emitd/emitd/storage/memory"
)

// line is the connection between a process and the store. Nil functions let everything through.
type line struct {
	storage.Locker
	mu     sync.Mutex
	before func(ctx context.Context, call string) error // an error: the call does not reach the store
	after  func(ctx context.Context, call string) error // an error: the reply is lost
}

func (l *line) carry(ctx context.Context, call string, do func() error) error {
	l.mu.Lock()
	before, after := l.before, l.after
	l.mu.Unlock()
	if before != nil {
		if err := before(ctx, call); err != nil {
			return err
		}
	}
	err := do()
	if after != nil {
		if lost := after(ctx, call); lost != nil {
			return lost
		}
	}
	return err
}

// set changes the behaviour of the line.
func (l *line) set(before, after func(context.Context, string) error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.before, l.after = before, after
}

func (l *line) Acquire(ctx context.Context, name, owner string, ttl time.Duration, expired storage.Lock) (row storage.Lock, err error) {
	err = l.carry(ctx, "acquire", func() (err error) { row, err = l.Locker.Acquire(ctx, name, owner, ttl, expired); return err })
	return row, err
}

func (l *line) Extend(ctx context.Context, held storage.Lock, ttl time.Duration) (row storage.Lock, err error) {
	err = l.carry(ctx, "extend", func() (err error) { row, err = l.Locker.Extend(ctx, held, ttl); return err })
	return row, err
}

func (l *line) Release(ctx context.Context, held storage.Lock) error {
	return l.carry(ctx, "release", func() error { return l.Locker.Release(ctx, held) })
}

// hang waits until the caller gives up.
func hang(ctx context.Context, _ string) error {
	<-ctx.Done()
	return ctx.Err()
}

func down(context.Context, string) error { return storage.ErrUnavailable }

// world is a store and a clock in a bubble.
type world struct {
	*testing.T
	store *memory.Store
	begin time.Time
}

// story runs a test in a bubble: time passes only while all goroutines wait, and a goroutine that
// is left behind fails the test.
func story(t *testing.T, run func(w *world)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		run(&world{T: t, store: memory.Open(memory.Config{}), begin: time.Now()})
	})
}

// pass lets the bubble's time pass, without any real waiting.
func pass(d time.Duration) { <-time.After(d) }

func (w *world) clock() time.Duration { return time.Since(w.begin) }

// process returns the locks of a process behind a line.
func (w *world) process(l *line, cfg lock.Config) *lock.Locks {
	w.Helper()
	l.Locker = w.store
	if cfg.Clock == nil {
		cfg.Clock = w.clock
	}
	cfg.Logger = slog.New(slog.DiscardHandler)
	locks, err := lock.New(l, cfg)
	w.ok(err)
	return locks
}

func (w *world) ok(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

func (w *world) refused(err, want error) {
	w.Helper()
	if !errors.Is(err, want) {
		w.Fatalf("got error %v, want %v", err, want)
	}
}

func (w *world) acquire(l *lock.Locks) *lock.Held {
	w.Helper()
	h, err := l.Acquire(w.Context(), "lock")
	w.ok(err)
	return h
}

// ended waits for the end of a holding, and returns when it ended and why.
func (w *world) ended(h *lock.Held) (time.Duration, error) {
	w.Helper()
	select {
	case <-h.Context().Done():
	case <-time.After(time.Hour):
		w.Fatal("the holding goes on")
	}
	return w.clock(), context.Cause(h.Context())
}

// within fails the test unless lo ≤ d ≤ hi.
func (w *world) within(what string, d, lo, hi time.Duration) {
	w.Helper()
	if d < lo || d > hi {
		w.Fatalf("%s after %v, want between %v and %v", what, d, lo, hi)
	}
}

const ttl = 30 * time.Second

// trust is the validity: ttl less its margin of 0.001·30 s + 1 s.
const trust = ttl - 1030*time.Millisecond

func TestHoldingIsRenewed(t *testing.T) {
	story(t, func(w *world) {
		h := w.acquire(w.process(&line{}, lock.Config{}))
		other := w.process(&line{}, lock.Config{})
		for range 20 {
			pass(ttl / 2)
			_, err := other.TryAcquire(w.Context(), "lock")
			w.refused(err, storage.ErrLocked)
			w.ok(h.Context().Err())
		}
		w.ok(h.Release(w.Context()))
		w.refused(context.Cause(h.Context()), lock.ErrReleased)
	})
}

func TestReleaseLetsTheNextIn(t *testing.T) {
	story(t, func(w *world) {
		h := w.acquire(w.process(&line{}, lock.Config{}))
		next := make(chan *lock.Held)
		go func() {
			h, err := w.process(&line{}, lock.Config{}).Acquire(w.Context(), "lock")
			if err != nil {
				w.Error(err)
			}
			next <- h
		}()
		pass(5 * ttl)
		released := w.clock()
		w.ok(h.Release(w.Context()))
		second := <-next
		w.within("the next holding", w.clock()-released, 0, 1500*time.Millisecond)
		if second.Number() <= h.Number() || second.Name() != "lock" {
			w.Errorf("%s has number %d after %d", second.Name(), second.Number(), h.Number())
		}
		w.ok(h.Release(w.Context())) // again: frees no other holder's lock
		_, err := w.process(&line{}, lock.Config{}).TryAcquire(w.Context(), "lock")
		w.refused(err, storage.ErrLocked)
		w.ok(second.Release(w.Context()))
	})
}

// A release that the store did not answer is tried again by the next one, until it has freed the lock.
func TestReleaseIsRepeated(t *testing.T) {
	story(t, func(w *world) {
		wire := &line{}
		h := w.acquire(w.process(wire, lock.Config{}))
		wire.set(down, nil)
		for range 2 {
			w.refused(h.Release(w.Context()), storage.ErrUnavailable)
		}
		wire.set(nil, nil)
		w.ok(h.Release(w.Context()))
		next, err := w.process(&line{}, lock.Config{}).TryAcquire(w.Context(), "lock")
		w.ok(err)
		w.ok(h.Release(w.Context()))
		w.ok(next.Release(w.Context()))
	})
}

// A holder that gets no answers from the store stops before another can begin, whether calls fail
// at once or hang.
func TestLossOfTheStoreEndsTheHoldingInTime(t *testing.T) {
	for name, cut := range map[string]func(context.Context, string) error{"down": down, "hangs": hang} {
		t.Run(name, func(t *testing.T) {
			story(t, func(w *world) {
				wire := &line{}
				h := w.acquire(w.process(wire, lock.Config{}))
				wire.set(cut, nil)
				next := make(chan *lock.Held)
				go func() {
					h, err := w.process(&line{}, lock.Config{}).Acquire(w.Context(), "lock")
					if err != nil {
						w.Error(err)
					}
					next <- h
				}()
				at, why := w.ended(h)
				w.refused(why, lock.ErrNotRenewed)
				w.within("the end", at, trust, trust)
				second := <-next
				w.within("the next holding", w.clock(), ttl, ttl+2*time.Second)
				w.refused(h.Extend(w.Context()), lock.ErrNotRenewed)
				wire.set(nil, nil)
				w.refused(h.Release(w.Context()), storage.ErrLockLost)
				w.ok(second.Release(w.Context()))
			})
		})
	}
}

// Validity counts from before the call: a slow answer shortens it.
func TestSlowAnswerShortensTheBelief(t *testing.T) {
	story(t, func(w *world) {
		wire := &line{after: func(context.Context, string) error { pass(4 * time.Second); return nil }}
		h := w.acquire(w.process(wire, lock.Config{Renew: -1}))
		at, why := w.ended(h)
		w.refused(why, lock.ErrNotRenewed)
		w.within("the end", at, trust, trust)
		w.ok(h.Release(w.Context())) // the store still has it

		h = w.acquire(w.process(wire, lock.Config{Renew: -1}))
		pass(10 * time.Second)
		began := w.clock()
		w.ok(h.Extend(w.Context()))
		at, _ = w.ended(h)
		w.within("the end", at-began, trust, trust)
		w.ok(h.Release(w.Context()))
	})
}

// An answer that arrives after the validity has ended (the machine was suspended during the call)
// gives no holding. The next call finds the same holding and counts anew.
func TestLateAnswerIsNoHolding(t *testing.T) {
	story(t, func(w *world) {
		var asleep atomic.Int64
		var numbers []int64
		wire := &line{after: func(ctx context.Context, call string) error {
			row, err := w.store.Acquire(ctx, "lock", "other", ttl, storage.Lock{})
			w.refused(err, storage.ErrLocked)
			if numbers = append(numbers, row.Number); len(numbers) == 1 {
				asleep.Store(int64(time.Minute))
			}
			return nil
		}}
		locks := w.process(wire, lock.Config{Renew: -1, Clock: func() time.Duration { return w.clock() + time.Duration(asleep.Load()) }})
		h := w.acquire(locks)
		if len(numbers) != 2 || numbers[0] != h.Number() || numbers[1] != h.Number() {
			w.Errorf("holding %d after calls that were answered %v", h.Number(), numbers)
		}
		again := w.clock()
		w.within("the second call", again, 25*time.Millisecond, 75*time.Millisecond)
		at, _ := w.ended(h)
		w.within("the end", at-again, trust, trust)
		wire.set(nil, nil)
		w.ok(h.Release(w.Context()))
	})
}

// After a lost reply the same holding is found again, with the same number.
func TestLostReplies(t *testing.T) {
	story(t, func(w *world) {
		var calls atomic.Int64
		wire := &line{after: func(_ context.Context, call string) error {
			if calls.Add(1)%3 != 0 && call != "release" {
				return storage.ErrUnavailable
			}
			return nil
		}}
		h := w.acquire(w.process(wire, lock.Config{}))
		row, err := w.store.Acquire(w.Context(), "lock", "other", ttl, storage.Lock{})
		w.refused(err, storage.ErrLocked)
		if row.Number != h.Number() || calls.Load() < 3 {
			w.Errorf("holding %d, the store says %d, after %d calls", h.Number(), row.Number, calls.Load())
		}
		pass(10 * ttl)
		w.ok(h.Context().Err())
		w.ok(h.Release(w.Context()))
	})
}

// Nothing of a holding goes on once Release has returned.
func TestReleaseWaitsForWhatIsUnderWay(t *testing.T) {
	story(t, func(w *world) {
		var under atomic.Int64
		wire := &line{}
		h := w.acquire(w.process(wire, lock.Config{}))
		wire.set(func(_ context.Context, call string) error {
			if call == "extend" {
				under.Add(1)
				pass(3 * time.Second) // whatever its context's state
				under.Add(-1)
			}
			return nil
		}, nil)
		pass(11 * time.Second)
		if under.Load() != 1 {
			w.Fatal("no renewal is under way")
		}
		w.ok(h.Release(w.Context()))
		if n := under.Load(); n != 0 {
			w.Errorf("%d calls go on after Release", n)
		}
	})
}

// If the store gives the lock to another holder, the holding ends at the next renewal, with that
// cause.
func TestTakenLockEndsTheHolding(t *testing.T) {
	story(t, func(w *world) {
		h := w.acquire(w.process(&line{}, lock.Config{}))
		row, _ := w.store.Acquire(w.Context(), "lock", "other", ttl, storage.Lock{})
		w.ok(w.store.Release(w.Context(), row)) // an operator forces it
		at, why := w.ended(h)
		w.refused(why, storage.ErrLockLost)
		w.within("the end", at, 9*time.Second, 10*time.Second)
		w.refused(h.Extend(w.Context()), storage.ErrLockLost)
		w.refused(h.Release(w.Context()), storage.ErrLockLost)
	})
}

func TestExtendExplicitly(t *testing.T) {
	story(t, func(w *world) {
		h := w.acquire(w.process(&line{}, lock.Config{Renew: -1}))
		for range 4 {
			pass(20 * time.Second)
			w.ok(h.Extend(w.Context()))
		}
		at, why := w.ended(h)
		w.refused(why, lock.ErrNotRenewed)
		w.within("the end", at, 80*time.Second+trust, 80*time.Second+trust)
		w.ok(h.Release(w.Context()))
	})
}

// A suspended machine notices soon after it resumes, although its timers did not run.
func TestSuspendIsNoticed(t *testing.T) {
	story(t, func(w *world) {
		var asleep atomic.Int64
		h := w.acquire(w.process(&line{}, lock.Config{Clock: func() time.Duration { return w.clock() + time.Duration(asleep.Load()) }}))
		pass(time.Second)
		asleep.Store(int64(time.Hour))
		at, why := w.ended(h)
		w.refused(why, lock.ErrNotRenewed)
		w.within("the end", at, time.Second, 1250*time.Millisecond)
		w.ok(h.Release(w.Context()))
	})
}

// A caller that breaks off during the call leaves no lock taken.
func TestCancelledAcquireLeavesNothing(t *testing.T) {
	story(t, func(w *world) {
		wire := &line{after: func(context.Context, string) error { pass(time.Second); return nil }}
		ctx, cancel := context.WithTimeout(w.Context(), 500*time.Millisecond)
		defer cancel()
		_, err := w.process(wire, lock.Config{}).Acquire(ctx, "lock")
		w.refused(err, context.DeadlineExceeded)
		h, err := w.process(&line{}, lock.Config{}).TryAcquire(w.Context(), "lock")
		w.ok(err)
		w.ok(h.Release(w.Context()))

		_, err = w.process(&line{}, lock.Config{}).Acquire(ctx, "lock") // its context has ended before
		w.refused(err, context.DeadlineExceeded)
	})
}

func TestAcquireWaitsNoLongerThanItsContext(t *testing.T) {
	story(t, func(w *world) {
		h := w.acquire(w.process(&line{}, lock.Config{}))
		ctx, cancel := context.WithTimeout(w.Context(), 2*ttl)
		defer cancel()
		_, err := w.process(&line{}, lock.Config{}).Acquire(ctx, "lock")
		w.refused(err, context.DeadlineExceeded)
		w.refused(err, storage.ErrLocked) // the last answer while it waited
		w.within("the end of the wait", w.clock(), 2*ttl, 2*ttl)
		w.ok(h.Release(w.Context()))
	})
}

// An error that is not temporary is returned at once.
func TestAcquireGivesUpOnOtherErrors(t *testing.T) {
	story(t, func(w *world) {
		broken := errors.New("no such table")
		_, err := w.process(&line{before: func(context.Context, string) error { return broken }}, lock.Config{}).Acquire(w.Context(), "lock")
		w.refused(err, broken)
		if !strings.Contains(err.Error(), `"lock"`) {
			w.Errorf("%q does not name the lock", err)
		}
		w.within("the error", w.clock(), 0, 0)
	})
}

// The holding outlives the context of the wait, and keeps its values.
func TestContextOfTheHolding(t *testing.T) {
	story(t, func(w *world) {
		type key struct{}
		ctx, cancel := context.WithCancel(context.WithValue(w.Context(), key{}, "value"))
		h, err := w.process(&line{}, lock.Config{}).Acquire(ctx, "lock")
		w.ok(err)
		cancel()
		pass(2 * ttl)
		w.ok(h.Context().Err())
		if h.Context().Value(key{}) != "value" {
			w.Error("the values are gone")
		}
		w.ok(h.Release(w.Context()))
	})
}

func TestValidate(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		cfg     lock.Config
		message string
	}{
		"negative":        {lock.Config{TTL: -1}, "TTL is -1ns"},
		"no time to wait": {lock.Config{RetryMin: time.Second, RetryMax: time.Millisecond}, "RetryMax 1ms is below RetryMin 1s"},
		"blind":           {lock.Config{ClockCheckInterval: time.Minute}, "ClockCheckInterval 1m0s is above Wakeup 1s"},
		"too short":       {lock.Config{TTL: 2 * time.Second, Wakeup: time.Second}, "TTL 2s is too short"},
		"rare renewals":   {lock.Config{Renew: 29 * time.Second}, "a renewal every 29s that may take 5s needs 34s"},
	} {
		if _, err := lock.New(memory.Open(memory.Config{}), c.cfg); err == nil || !strings.Contains(err.Error(), c.message) {
			t.Errorf("%s: got %v, want %q", name, err, c.message)
		}
	}
	for _, d := range []time.Duration{time.Second, 5 * time.Second, 15 * time.Second, time.Minute, 24 * time.Hour} {
		if _, err := lock.New(memory.Open(memory.Config{}), lock.Config{TTL: d}); err != nil {
			t.Errorf("a TTL of %v: %v", d, err)
		}
	}
}

// While the store is away, Acquire asks ever more rarely, up to RetryMax: there may be many that wait.
func TestAcquireBacksOffWhileTheStoreIsAway(t *testing.T) {
	story(t, func(w *world) {
		calls, wire := 0, &line{}
		wire.set(func(context.Context, string) error { calls++; return storage.ErrUnavailable }, nil)
		ctx, cancel := context.WithTimeout(w.Context(), time.Minute)
		defer cancel()
		_, err := w.process(wire, lock.Config{}).Acquire(ctx, "lock")
		w.refused(err, storage.ErrUnavailable)
		if calls < 60 || calls > 130 {
			w.Errorf("%d calls in a minute, want about 80", calls)
		}
	})
}
