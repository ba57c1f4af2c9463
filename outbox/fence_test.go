package outbox_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/outbox"
)

// guarded is a sink with a receiver that knows only the order of calls: only the epoch that fenced last
// may deliver.
type guarded struct {
	*stage
	last  atomic.Int64 // epoch of the last Fence
	fence func(epoch int64) error
	count atomic.Int64
}

func (g *guarded) Fence(_ context.Context, _, _ string, epoch int64) error {
	g.count.Add(1)
	if g.fence != nil {
		if err := g.fence(epoch); err != nil {
			return err
		}
	}
	g.last.Store(epoch)
	return nil
}

func (g *guarded) Deliver(ctx context.Context, d outbox.Delivery) []error {
	if g.last.Load() != d.Epoch {
		return []error{fmt.Errorf("epoch %d: %w", d.Epoch, outbox.ErrFenced)}
	}
	return g.stage.Deliver(ctx, d)
}

// guard puts such a receiver behind the stage's relay.
func (s *stage) guard() *guarded {
	g := &guarded{stage: s}
	s.cfg.Sink = g
	return g
}

// TestDeposedWhileFencing checks that a relay that was replaced during its Fence delivers nothing: its
// second claim is refused.
func TestDeposedWhileFencing(t *testing.T) {
	bubble(t, func(s *stage) {
		g := s.guard()
		g.fence = func(epoch int64) error {
			sub := s.log.sub("sub")
			s.log.mu.Lock()
			defer s.log.mu.Unlock()
			sub.epoch, sub.rev = 9, sub.rev+1 // another relay claims meanwhile
			return nil
		}
		s.log.publish(m("a", 1))
		s.start(5)
		s.after(time.Minute)
		if err := <-s.done; !errors.Is(err, daemon.ErrStale) {
			t.Errorf("ended with %v", err)
		}
		s.want("of a deposed relay")
		if fmt.Sprint(s.floor) != "[9]" {
			t.Errorf("the node was told of %v", s.floor)
		}
	})
}

// TestOwnerFencesAgain checks that an owner whom a replaced relay's late Fence locked out fences again
// and continues.
func TestOwnerFencesAgain(t *testing.T) {
	bubble(t, func(s *stage) {
		g := s.guard()
		s.start(5)
		s.log.publish(m("a", 1))
		s.after(time.Second)
		s.want("before", "a1@1")
		g.last.Store(4) // the late Fence
		s.log.publish(m("a", 2))
		s.after(time.Minute)
		s.want("after", "a2@1")
		if n := g.count.Load(); n != 2 {
			t.Errorf("fenced %d times, want 2", n)
		}
		if err := s.drain(); err != nil || len(s.floor) > 0 {
			t.Errorf("ended with %v, told of %v", err, s.floor)
		}
	})
}

// TestReceiverRefusesForEver checks that a receiver that always refuses is tried with growing pauses, and
// that a drain ends that.
func TestReceiverRefusesForEver(t *testing.T) {
	bubble(t, func(s *stage) {
		g := s.guard()
		g.fence = func(int64) error { return outbox.ErrFenced }
		s.log.publish(m("a", 1))
		s.start(5)
		s.after(time.Minute)
		if n := g.count.Load(); n < 5 || n > 40 {
			t.Errorf("fenced %d times in a minute", n)
		}
		if err := s.drain(); err != nil {
			t.Error(err)
		}
		s.want("in spite of it")
	})
}

// TestReceiverKnowsHigherEpoch tests a receiver with a higher epoch than the log has, because the log or
// the cluster's store lost it. The run must end and report the epoch to the node, so that the next
// generation is above it.
func TestReceiverKnowsHigherEpoch(t *testing.T) {
	for name, refuse := range map[string]func(s *stage, err error){
		"fencing":    func(s *stage, err error) { s.guard().fence = func(int64) error { return err } },
		"delivering": func(s *stage, err error) { s.sink(func(outbox.Row) error { return err }) },
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(s *stage) {
				refuse(s, fmt.Errorf("shard 3: %w", &outbox.FencedError{Floor: 17}))
				s.log.publish(m("a", 1))
				s.start(5)
				s.after(time.Minute)
				var stale *daemon.StaleError
				if err := <-s.done; !errors.As(err, &stale) || stale.HeldGeneration != 17 {
					t.Errorf("ended with %v", err)
				}
				if fmt.Sprint(s.floor) != "[17]" {
					t.Errorf("the node was told of %v", s.floor)
				}
			})
		})
	}
}

// TestFailedFenceIsAProblem checks that operators see at any time why a receiver that cannot be fenced gets nothing, also
// while a fence hangs, and no longer once it works.
func TestFailedFenceIsAProblem(t *testing.T) {
	bubble(t, func(s *stage) {
		f := &hangingFence{stage: s}
		s.cfg.Sink = f
		s.log.publish(m("a", 1))
		problem := func() string {
			sub := s.log.sub("sub")
			s.log.mu.Lock()
			defer s.log.mu.Unlock()
			return sub.problem
		}
		s.start(1)
		s.after(time.Second)
		for range 60 {
			s.after(time.Second)
			if got := problem(); got != "fence the receiver: no such table" {
				t.Fatalf("the problem is %q", got)
			}
		}
		f.works.Store(true)
		s.after(time.Minute)
		if got := problem(); got != "" {
			t.Errorf("the problem is %q although the fence works", got)
		}
		s.want("in the end", "a1@1")
		if err := s.drain(); err != nil {
			t.Error(err)
		}
	})
}

// TestDrainedFenceIsNoProblem checks that a fence that a drain interrupts is no problem of the receiver.
func TestDrainedFenceIsNoProblem(t *testing.T) {
	bubble(t, func(s *stage) {
		s.cfg.Sink = &slowFence{stage: s}
		s.start(1)
		s.after(time.Second)
		if err := s.drain(); err != nil {
			t.Error(err)
		}
		if got := s.log.sub("sub").faults; len(got) > 0 {
			t.Errorf("the problem is %q", got)
		}
	})
}

// hangingFence fails until it works: at once, and after that only when it is cut off.
type hangingFence struct {
	*stage
	calls int
	works atomic.Bool
}

func (f *hangingFence) Fence(ctx context.Context, _, _ string, _ int64) error {
	if f.works.Load() {
		return nil
	}
	if f.calls++; f.calls > 1 {
		<-ctx.Done()
	}
	return errors.New("no such table")
}

// TestFenceHangs checks that a Fence that hangs is cut off and tried again.
func TestFenceHangs(t *testing.T) {
	bubble(t, func(s *stage) {
		f := &slowFence{stage: s}
		s.cfg.Sink = f
		s.log.publish(m("a", 1))
		s.start(1)
		s.after(time.Minute)
		s.want("in the end", "a1@1")
		if f.calls != 2 {
			t.Errorf("%d calls", f.calls)
		}
		if err := s.drain(); err != nil {
			t.Error(err)
		}
	})
}

// TestDrainWhileFenceHangs checks that a drain does not wait for a Fence that hangs.
func TestDrainWhileFenceHangs(t *testing.T) {
	bubble(t, func(s *stage) {
		s.cfg.Sink = &slowFence{stage: s}
		s.log.publish(m("a", 1))
		s.start(1)
		s.after(time.Second)
		began := time.Now()
		if err := s.drain(); err != nil {
			t.Error(err)
		}
		if took := time.Since(began); took > 0 {
			t.Errorf("it took %v", took)
		}
		s.want("of who drains")
	})
}

// slowFence hangs in the first call of Fence and answers the second.
type slowFence struct {
	*stage
	calls int
}

func (f *slowFence) Fence(ctx context.Context, _, _ string, _ int64) error {
	if f.calls++; f.calls == 1 {
		<-ctx.Done()
		return ctx.Err()
	}
	return nil
}

// TestNoTrustNoCall tests a process that was stopped for so long that its assignment can no longer be
// trusted. When it continues, it must deliver nothing, not even before its timers have fired.
func TestNoTrustNoCall(t *testing.T) {
	bubble(t, func(s *stage) {
		var left atomic.Int64
		left.Store(int64(time.Hour))
		r, err := outbox.NewRelay(s.cfg)
		if err != nil {
			t.Fatal(err)
		}
		a := daemon.NewAssignment(daemon.Fence{Unit: daemon.Unit{Daemon: outbox.ID("sub")}, Generation: 1}, 1, "n", nil)
		ctx := daemon.WithValidity(context.Background(), func() time.Duration { return time.Duration(left.Load()) })
		go func() { s.done <- r.Run(ctx, a) }()
		s.after(100 * time.Millisecond)
		left.Store(0) // its timer checks again only in a second
		s.log.publish(m("a", 1))
		s.after(10 * time.Millisecond)
		s.want("without trust")
		if err := <-s.done; err == nil {
			t.Error("it ended as if drained")
		}
		_ = r.Close(context.Background())
	})
}
