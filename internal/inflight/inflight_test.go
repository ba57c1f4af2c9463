package inflight_test

import (
	"context"
	"sync"
	"testing"

	"github.com/emitd/emitd/internal/inflight"
)

// TestBudget: all calls together never hold more than the budget, small calls cost none of it, and
// everything is given back.
func TestBudget(t *testing.T) {
	t.Parallel()
	b := inflight.New(1<<20, 3)
	large, _ := b.Begin()
	small, _ := b.Begin()
	third, ok := b.Begin()
	if !ok {
		t.Fatal("three calls are allowed")
	}
	if _, ok := b.Begin(); ok {
		t.Error("a fourth call began")
	}
	if !large.Take(1<<20 + inflight.FreeBytes) {
		t.Error("one call may hold the whole budget")
	}
	if large.Take(1) || third.Take(inflight.FreeBytes+1) {
		t.Error("more than the budget was taken")
	}
	if !small.Take(inflight.FreeBytes) {
		t.Error("a small call was kept out")
	}
	large.End()
	large.End()
	if !third.Take(1 << 20) {
		t.Error("what a call held did not come back")
	}
	third.End()
	small.End()
	if bytes, calls := b.Held(); bytes != 0 || calls != 0 {
		t.Errorf("%d bytes and %d calls are still held", bytes, calls)
	}
}

// TestBudgetConcurrently: calls of many goroutines leave nothing reserved.
func TestBudgetConcurrently(t *testing.T) {
	t.Parallel()
	b := inflight.New(1<<20, 1000)
	var all sync.WaitGroup
	for n := range 100 {
		all.Go(func() {
			c, ok := b.Begin()
			if !ok {
				t.Error("too many calls")
				return
			}
			defer c.End()
			for range 100 {
				c.Take(int64(n) << 10)
			}
			if bytes, _ := b.Held(); bytes > 1<<20 {
				t.Errorf("%d bytes are held", bytes)
			}
		})
	}
	all.Wait()
	if bytes, calls := b.Held(); bytes != 0 || calls != 0 {
		t.Errorf("%d bytes and %d calls are still held", bytes, calls)
	}
}

// TestContext: Of finds the call of a context; without one, the call has no bound.
func TestContext(t *testing.T) {
	t.Parallel()
	c, _ := inflight.New(0, 1).Begin()
	if inflight.FromContext(inflight.NewContext(context.Background(), c)) != c {
		t.Error("the context lost its call")
	}
	if none := inflight.FromContext(context.Background()); none != nil || !none.Take(1<<40) || none.Budget() != nil {
		t.Error("no call has a bound")
	}
}
