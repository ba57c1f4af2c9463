package coordinator

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/emitd/emitd/internal/coordinator/lease"
	"github.com/emitd/emitd/internal/coordinator/member"
	"github.com/emitd/emitd/node"
)

// throne is a leadership alone, with what it posts and publishes.
type throne struct {
	*leadership
	posted   []member.Input
	reported []Transition
}

func newThrone() *throne {
	began := time.Now()
	th := &throne{leadership: newLeadership(func() lease.Instant { return lease.Instant(time.Since(began) + time.Hour) }, 25*time.Millisecond)}
	th.post = func(in member.Input) { th.posted = append(th.posted, in) }
	th.notify = func(_ *leaderTerm, t Transition) { th.reported = append(th.reported, t) }
	th.newEntered = func() []chan struct{} { return nil }
	return th
}

func (th *throne) reignFor(number int64, d time.Duration) {
	th.begin(context.Background(), node.Term{Number: number, Ordinal: number}, th.clock().Add(d))
}

// A request to resign that belongs to an earlier term does not affect the current one.
func TestResignBelongsToItsTerm(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		th := newThrone()
		th.reignFor(1, time.Minute)
		old := th.leading
		th.end(1, node.Replaced)
		th.reignFor(2, time.Minute)
		if th.resign(old, node.PassesFailed, 0) || len(th.posted) != 0 {
			t.Error("work of an earlier term made the present one resign")
		}
		if !th.resign(th.leading, node.PassesFailed, 0) || len(th.posted) != 1 {
			t.Error("work of the present term cannot resign")
		}
		th.close()
	})
}

// The watchdog acts after the loop should have, follows extensions, and informs the loop once.
func TestWatchdog(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		th := newThrone()
		th.reignFor(1, time.Second)
		ctx := th.leading.ctx
		<-time.After(900 * time.Millisecond)
		th.extend(th.clock().Add(time.Second))
		<-time.After(time.Second)
		synctest.Wait()
		if ctx.Err() != nil {
			t.Fatal("the watchdog came before the loop could have")
		}
		<-time.After(30 * time.Millisecond)
		synctest.Wait()
		var lost *LostError
		if !errors.As(context.Cause(ctx), &lost) || lost.Reason != node.ValidityEnded || lost.Term.Number != 1 {
			t.Errorf("cause: %v", context.Cause(ctx))
		}
		if len(th.posted) != 1 || len(th.reported) != 2 {
			t.Errorf("posted %v, told %v", th.posted, th.reported)
		}
		if r := th.end(1, node.ValidityEnded); r == nil || len(th.reported) != 2 {
			t.Error("the loop's own loss is published twice, or its term is forgotten")
		}
		if th.end(7, node.Replaced) != nil {
			t.Error("a term that never was is led")
		}
	})
}

// close ends the current term as a shutdown, and later subscribers get one transition.
func TestCloseEndsLeadership(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		th := newThrone()
		th.reignFor(1, time.Minute)
		q := th.subscribe()
		th.close()
		for _, want := range []Transition{{Leading: true, Term: node.Term{Number: 1, Ordinal: 1}}, {Term: node.Term{Number: 1, Ordinal: 1}, Reason: node.Shutdown}} {
			if got, ok := q.pop(); !ok || got != want {
				t.Errorf("got %+v, want %+v", got, want)
			}
		}
		if !q.done() {
			t.Error("the subscription goes on")
		}
	})
}

// The bound of a stop counts from its beginning, once.
func TestBound(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := newBound()
		<-time.After(time.Minute)
		if b.over.Err() != nil {
			t.Fatal("it ran before it began")
		}
		began := time.Now()
		b.begin(time.Second)
		<-time.After(500 * time.Millisecond)
		b.begin(time.Second)
		<-b.over.Done()
		if took := time.Since(began); took != time.Second {
			t.Errorf("it took %v", took)
		}
		b.cancel()
		never := newBound()
		never.cancel()
		never.begin(time.Second)
		if never.timer != nil {
			t.Error("a cancelled bound began")
		}
	})
}

// Only a new maximum of the generations in fences reaches the loop.
func TestHeldIsMerged(t *testing.T) {
	t.Parallel()
	s := &shell{c: &Coordinator{inbox: newQueue[member.Input]()}}
	for _, g := range []int64{5, 5, 3, 5, 7, 7, 6} {
		s.onFenceHeld(g)
	}
	for _, want := range []int64{5, 7} {
		if in, ok := s.c.inbox.pop(); !ok || in != (member.FenceHeld{Generation: want}) {
			t.Errorf("got %v, want %d", in, want)
		}
	}
	if in, ok := s.c.inbox.pop(); ok {
		t.Errorf("and %v", in)
	}
}
