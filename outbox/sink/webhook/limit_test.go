package webhook

import (
	"context"
	"io"
	"net"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/emitd/emitd/outbox/internal/progress"
	"github.com/emitd/emitd/outbox/sink/sinktest"
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

// TestWaitingForASlotIsNoSilence checks that a call is not cut off for want of progress while it waits for its slot and the
// receiver answers others, and that a receiver which answers nobody is still found out.
func TestWaitingForASlotIsNoSilence(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		requests := map[string]int{}
		var silent bool
		s := inMemory(t, Config{Parallel: 1}, func(_ http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body) // only then does the server notice that the sink has gone
			mu.Lock()
			requests[r.Header.Get("Ce-Id")]++
			wait := 300 * time.Millisecond
			if silent {
				wait = time.Hour
			}
			mu.Unlock()
			select {
			case <-time.After(wait):
			case <-r.Context().Done():
			}
		})
		const calls, rows = 8, 3
		failed := 0
		deliver := func() (took time.Duration) {
			began := time.Now()
			ctx, cancel := progress.WithTimeout(t.Context(), time.Second)
			defer cancel()
			for _, err := range s.Deliver(ctx, sinktest.Delivery(sinktest.Rows("t", rows, 1))) {
				if err != nil {
					mu.Lock()
					failed++
					mu.Unlock()
				}
			}
			return time.Since(began)
		}
		var all sync.WaitGroup
		for range calls {
			all.Go(func() { deliver() })
		}
		all.Wait()
		if failed > 0 || len(requests) != calls*rows {
			t.Errorf("%d rows failed, and the receiver got %d messages, want %d", failed, len(requests), calls*rows)
		}
		for id, n := range requests {
			if n != 1 {
				t.Errorf("message %s was posted %d times", id, n)
			}
		}

		silent = true
		late := 0
		for n := range calls {
			all.Go(func() {
				if n > 0 {
					time.Sleep(500 * time.Millisecond) // the first one has the slot until it is cut off, then one of these
				}
				if deliver() > time.Second {
					mu.Lock()
					late++
					mu.Unlock()
				}
			})
		}
		all.Wait()
		if failed != calls*rows || late > 1 {
			t.Errorf("of a receiver that is silent, %d rows failed, and %d calls took longer than their limit", failed, late)
		}
	})
}

// TestSilenceIsFoundOutByCallsThatShareSlots checks that slots which requests without an answer leave to others are no progress:
// calls that share few slots end in time if their receiver answers nobody, or hangs up on everybody.
func TestSilenceIsFoundOutByCallsThatShareSlots(t *testing.T) {
	for name, receive := range map[string]http.HandlerFunc{
		"silence": func(_ http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			<-r.Context().Done()
		},
		"hang-ups": func(_ http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			select {
			case <-time.After(200 * time.Millisecond):
			case <-r.Context().Done():
			}
			panic(http.ErrAbortHandler)
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := inMemory(t, Config{Parallel: 2, Timeout: 300 * time.Millisecond}, receive)
				const limit = time.Second
				var all sync.WaitGroup
				for range 4 {
					all.Go(func() {
						began := time.Now()
						ctx, cancel := progress.WithTimeout(t.Context(), limit)
						defer cancel()
						errs := s.Deliver(ctx, sinktest.Delivery(sinktest.Rows("t", 20, 20)))
						if took := time.Since(began); took > limit || len(errs) != 20 {
							t.Errorf("a call returned %d errors after %v, want 20 after %v", len(errs), took, limit)
						}
					})
				}
				all.Wait()
			})
		})
	}
}

// inMemory opens a sink in a synctest bubble, with a receiver that is reached by pipes in memory.
func inMemory(t *testing.T, cfg Config, receive http.HandlerFunc) *Sink {
	t.Helper()
	cfg.URL = "http://receiver.example/"
	s := open(t, cfg)
	l := pipes{make(chan net.Conn), make(chan struct{})}
	s.transport.DialContext = func(context.Context, string, string) (net.Conn, error) {
		ours, theirs := net.Pipe()
		select {
		case l.conns <- theirs:
			return ours, nil
		case <-l.closed: // a request that was cut off may still open its connection
			return nil, net.ErrClosed
		}
	}
	server := &http.Server{Handler: receive}
	go func() { _ = server.Serve(l) }()
	t.Cleanup(func() { _ = server.Close() })
	return s
}

// pipes is a listener whose connections are pipes.
type pipes struct {
	conns  chan net.Conn
	closed chan struct{}
}

func (l pipes) Accept() (net.Conn, error) {
	select {
	case c := <-l.conns:
		return c, nil
	case <-l.closed:
		return nil, net.ErrClosed
	}
}

func (l pipes) Close() error {
	close(l.closed)
	return nil
}

func (pipes) Addr() net.Addr { return &net.UnixAddr{} }
