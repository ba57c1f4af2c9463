package webhook

import (
	"context"
	"testing"
	"testing/synctest"
	"time"
)

// post sends n requests at once through the limiter to a receiver, and returns how long they take together.
func (l *limiter) post(t *testing.T, n int, receive func(inFlight int) (took time.Duration, overloaded bool)) time.Duration {
	t.Helper()
	began, done := time.Now(), make(chan struct{})
	for range n {
		go func() {
			if !l.enter(t.Context()) {
				t.Error("no slot")
			}
			l.mu.Lock()
			inFlight := l.inUse
			l.mu.Unlock()
			took, overloaded := receive(inFlight)
			time.Sleep(took)
			l.leave(took, overloaded)
			done <- struct{}{}
		}()
	}
	for range n {
		<-done
	}
	return time.Since(began)
}

// TestLimitFollowsTheReceiver checks that a receiver which keeps up gets more requests at once, that one whose
// answers take the longer the more it has gets about what it can do, and that one which is overloaded gets few.
func TestLimitFollowsTheReceiver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(0)
		l.post(t, 5000, func(int) (time.Duration, bool) { return 200 * time.Millisecond, false })
		if l.limit != mostParallel {
			t.Errorf("a receiver that keeps up gets %d at once, want %d", l.limit, mostParallel)
		}
		if took := l.post(t, 1000, func(int) (time.Duration, bool) { return 200 * time.Millisecond, false }); took > time.Second {
			t.Errorf("1,000 requests took %v", took)
		}

		l = newLimiter(0)
		l.post(t, 20_000, func(inFlight int) (time.Duration, bool) { // it can do 20 at once
			return 10 * time.Millisecond * time.Duration(max(inFlight, 20)) / 20, false
		})
		if l.limit < 16 || l.limit > 100 {
			t.Errorf("a receiver that can do 20 at once gets %d", l.limit)
		}

		l.post(t, 200, func(int) (time.Duration, bool) { return time.Millisecond, true })
		if l.limit != leastParallel {
			t.Errorf("a receiver that is overloaded gets %d at once, want %d", l.limit, leastParallel)
		}
		l.post(t, 5000, func(int) (time.Duration, bool) { return 10 * time.Millisecond, false })
		if l.limit < firstParallel {
			t.Errorf("when it works again, it gets %d at once", l.limit)
		}
	})
}

// TestLimitGivesSlotsBack checks that a request whose context ends takes no slot from others, and that a fixed
// bound stays.
func TestLimitGivesSlotsBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newLimiter(1)
		l.enter(t.Context())
		ctx, cancel := context.WithCancel(t.Context())
		got := make(chan bool)
		go func() { got <- l.enter(ctx) }()
		synctest.Wait()
		cancel()
		if <-got {
			t.Error("a slot although none is free")
		}
		l.leave(time.Second, true)
		if !l.enter(t.Context()) || l.limit != 1 || l.inUse != 1 {
			t.Errorf("limit %d, in use %d, want 1 and 1", l.limit, l.inUse)
		}
	})
}

// TestLimitBoundsGoroutines checks that deliveries have about as many goroutines as there are slots, and that a bound on
// them counts as one on requests.
func TestLimitBoundsGoroutines(t *testing.T) {
	l := newLimiter(0)
	for n := range firstParallel {
		if !l.startCaller(n == 0) {
			t.Fatalf("no goroutine %d", n)
		}
	}
	if l.startCaller(false) || !l.waited {
		t.Error("more goroutines than slots, or nobody waited")
	}
	if !l.startCaller(true) {
		t.Error("a delivery has none")
	}
	l.endCaller()
	l.endCaller()
	if !l.startCaller(false) {
		t.Error("no goroutine in the place of one that has ended")
	}
}
