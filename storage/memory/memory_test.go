package memory_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/storage/memory"
	"github.com/emitd/emitd/storage/storagetest"
)

// clock is a store clock that stands still between steps.
type clock struct {
	mu  sync.Mutex
	now time.Time
}

func newClock() *clock { return &clock{now: time.Date(2026, 3, 1, 12, 0, 0, 123456789, time.UTC)} }

func (c *clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *clock) Advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(d)
}

// backend is a store on some clock, in the form that the suite needs.
func backend(now func() time.Time) storagetest.Backend {
	s := memory.Open(memory.Config{Now: now})
	var another atomic.Int64
	return storagetest.Backend{
		Store: s,
		InTx: func(ctx context.Context, f daemon.Fence, fn func(context.Context) error) error {
			return s.InTx(ctx, f, func() error { return fn(ctx) })
		},
		ChangeIdentity: func(testing.TB) { s.SetStoreID(fmt.Sprint("store-", another.Add(1))) },
		WriteState:     func(_ testing.TB, u daemon.Unit, state daemon.State) { s.Plant(u, state) },
	}
}

// TestConformance runs every case: this store lacks nothing.
func TestConformance(t *testing.T) {
	t.Parallel()
	storagetest.Run(t, storagetest.Factory{Open: func(testing.TB) storagetest.Backend {
		c := newClock()
		b := backend(c.Now)
		b.Advance, b.Frozen = c.Advance, true
		return b
	}})
}

// TestConformanceOnTheWallClock runs the cases that need no control of the clock.
func TestConformanceOnTheWallClock(t *testing.T) {
	t.Parallel()
	storagetest.Run(t, storagetest.Factory{
		Open:  func(testing.TB) storagetest.Backend { return backend(nil) },
		Lacks: storagetest.Clock | storagetest.FrozenClock,
		Runs:  30,
	})
}
