package lock_test

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/emitd/emitd/coordinator/lock"
	"github.com/emitd/emitd/storage"
	"github.com/emitd/emitd/storage/memory"
)

// TestStorm lets processes take a lock from each other over lines that delay and lose requests and
// replies. Their clocks have different rates, and the store's clock steps by hours. No two contexts
// are live at the same time, and numbers grow.
func TestStorm(t *testing.T) {
	t.Parallel()
	for seed := range uint64(20) {
		t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := &storm{T: t, dice: rand.New(rand.NewPCG(seed, 7)), begin: time.Now()}
				s.run(10 * time.Minute)
			})
		})
	}
}

// storm is one simulation: its random numbers, and what it has observed.
type storm struct {
	*testing.T
	begin time.Time

	mu              sync.Mutex
	dice            *rand.Rand
	step            time.Duration // of the store's clock
	alive, holdings int
	last            int64
}

func (s *storm) run(d time.Duration) {
	store := memory.Open(memory.Config{Now: func() time.Time {
		s.mu.Lock()
		defer s.mu.Unlock()
		return time.Now().Add(s.step)
	}})
	ctx, cancel := context.WithTimeout(s.Context(), d)
	defer cancel()
	var processes sync.WaitGroup
	for range 4 {
		processes.Go(func() { s.process(ctx, store) })
	}
	for ctx.Err() == nil {
		step := s.upTo(4*time.Hour) - 2*time.Hour
		s.mu.Lock()
		s.step = step
		s.mu.Unlock()
		passOrEnd(ctx, 3*time.Second)
	}
	processes.Wait()
	if s.holdings < 10 {
		s.Errorf("%d holdings in %v: nobody gets on", s.holdings, d)
	}
}

// process takes the lock again and again, for a random time each.
func (s *storm) process(ctx context.Context, store storage.Locker) {
	rate := 1 + 0.0008*(float64(s.upTo(time.Second))/float64(time.Second)-0.5)
	locks, err := lock.New(&line{Locker: store, before: s.faults(), after: s.faults()}, lock.Config{
		TTL: 5 * time.Second, Renew: time.Second, QueryTimeout: time.Second, Wakeup: 100 * time.Millisecond,
		Clock:  func() time.Duration { return time.Duration(float64(time.Since(s.begin)) * rate) },
		Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		s.Error(err)
		return
	}
	for ctx.Err() == nil {
		h, err := locks.Acquire(ctx, "lock")
		if err != nil {
			continue
		}
		s.begins(h)
		passOrEnd(h.Context(), s.upTo(20*time.Second))
		s.mu.Lock()
		s.alive--
		s.mu.Unlock()
		_ = h.Release(ctx) // it may get lost: the TTL frees the lock
	}
}

func (s *storm) begins(h *lock.Held) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.alive++; s.alive > 1 {
		s.Error("two contexts are alive")
	}
	if h.Number() <= s.last {
		s.Errorf("number %d after %d", h.Number(), s.last)
	}
	s.last = h.Number()
	s.holdings++
}

// upTo draws a duration.
func (s *storm) upTo(d time.Duration) time.Duration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return time.Duration(s.dice.Int64N(int64(d)))
}

// chance returns true once in n times.
func (s *storm) chance(n int) bool { return s.upTo(time.Duration(n)) == 0 }

// trouble delays a message, and sometimes loses it, or delays it for so long that a holding is
// lost.
func (s *storm) faults() func(context.Context, string) error {
	var mu sync.Mutex
	var bad time.Time
	return func(ctx context.Context, call string) error {
		now := time.Now()
		mu.Lock()
		if s.chance(40) {
			bad = now.Add(s.upTo(12 * time.Second))
		}
		down := now.Before(bad)
		mu.Unlock()
		switch {
		case down && s.chance(2):
			return hang(ctx, call)
		case down, s.chance(10):
			return storage.ErrUnavailable
		}
		passOrEnd(ctx, s.upTo(300*time.Millisecond))
		return nil
	}
}

func passOrEnd(ctx context.Context, d time.Duration) {
	select {
	case <-time.After(d):
	case <-ctx.Done():
	}
}
