package client_test

import (
	"context"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/emitd/emitd/queue"
	"github.com/emitd/emitd/queue/client"
	"github.com/emitd/emitd/queue/queuetest"
)

// moving is a locator that names the first address once, and then the second.
type moving struct {
	addrs             [2]string
	requested, doubts atomic.Int32
}

// Invalidate implements client.Invalidator.
func (m *moving) Invalidate() { m.doubts.Add(1) }

func (m *moving) Broker(context.Context, string, int) (string, int64, error) {
	n := min(m.requested.Add(1), 2)
	return m.addrs[n-1], int64(n), nil
}

// patient creates a client whose calls end where they would pause.
func patient(t *testing.T, c client.Config) *client.Client {
	t.Helper()
	c.Backoff = time.Hour
	out, err := client.New(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(out.Close)
	return out
}

// TestGoneNodeIsLeftAtOnce: if a node does not answer and another is known, there is no pause; with
// this client, the call would end before it.
func TestGoneNodeIsLeftAtOnce(t *testing.T) {
	t.Parallel()
	q := queuetest.New()
	dead, alive := serve(t, q, nil), serve(t, q, nil)
	dead.Close()
	byAddress := patient(t, client.Config{Addresses: []string{dead.URL, alive.URL}})
	where := &moving{addrs: [2]string{dead.Listener.Addr().String(), alive.Listener.Addr().String()}}
	byLocator := patient(t, client.Config{Locator: where})
	enqueue(t, byAddress, "a")
	enqueue(t, byLocator, "b")
	if n := where.doubts.Load(); n != 1 {
		t.Errorf("a locator that named a node which is gone was doubted %d times", n)
	}
}

// TestPausesAreMade: if a node answers and asks for a pause, the client pauses although another
// node is known. It also pauses when all nodes were tried.
func TestPausesAreMade(t *testing.T) {
	t.Parallel()
	q := queuetest.New()
	busy, other, dead := serve(t, moved{}, nil), serve(t, q, nil), serve(t, q, nil)
	dead.Close()
	for _, c := range []client.Config{
		{Addresses: []string{busy.URL, other.URL}},
		{Addresses: []string{dead.URL, dead.URL}},
		{Locator: &moving{addrs: [2]string{dead.Listener.Addr().String(), dead.Listener.Addr().String()}}},
	} {
		if _, err := patient(t, c).Enqueue(t.Context(), "q", []queue.Job{{ID: "x"}}); err == nil {
			t.Errorf("%+v: there was no pause", c)
		}
	}
	if q.Calls("Enqueue") != 0 {
		t.Error("another node was asked at once")
	}
}

// nowhere is a locator that knows no broker.
type nowhere struct{ requested int }

func (n *nowhere) Broker(context.Context, string, int) (string, int64, error) {
	n.requested++
	return "", 0, nil
}

// TestOwnPauses: while a queue moves, no broker asks for a pause. The client then makes its own
// pauses, which begin short, and does not wait for as long as a broker would ask it to.
func TestOwnPauses(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		where := &nowhere{}
		c, err := client.New(client.Config{Locator: where})
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		ctx, cancel := context.WithTimeout(t.Context(), 400*time.Millisecond)
		defer cancel()
		if _, err := c.Enqueue(ctx, "q", []queue.Job{{ID: "x"}}); queue.TagOf(err) != queue.Unavailable {
			t.Errorf("%v, want %s", err, queue.Unavailable)
		}
		if where.requested < 3 {
			t.Errorf("the locator was asked %d times in 400 ms", where.requested)
		}
	})
}

// spent is a broker whose store accepts no writes for the rest of the day.
type spent struct {
	moved
	calls atomic.Int32
}

func (s *spent) Enqueue(context.Context, string, []queue.Job) ([]queue.Receipt, error) {
	s.calls.Add(1)
	e := queue.Refuse(queue.Unavailable, "the budget is used up")
	e.RetryAfter = 7 * time.Hour
	return nil, e
}

// TestPauseBeyondTheCall: a call is not repeated to a broker that asks for a longer pause than the call may last.
func TestPauseBeyondTheCall(t *testing.T) {
	t.Parallel()
	q := &spent{}
	c, err := client.New(client.Config{Addresses: []string{serve(t, q, nil).URL}, RetryFor: 5 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_, err = c.Enqueue(t.Context(), "q", []queue.Job{{ID: "x"}})
	if queue.TagOf(err) != queue.Unavailable || !strings.Contains(err.Error(), "the budget is used up") || q.calls.Load() != 1 {
		t.Errorf("%v after %d calls", err, q.calls.Load())
	}
}
