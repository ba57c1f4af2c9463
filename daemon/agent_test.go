package daemon_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/emitd/emitd/daemon"
)

func assignment() *daemon.Assignment {
	return daemon.NewAssignment(daemon.Fence{Unit: daemon.Unit{Daemon: "a", Index: 2}, Generation: 9}, 42, "n1", nil)
}

func closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

func TestAnAssignmentNamesItsRun(t *testing.T) {
	t.Parallel()
	a := assignment()
	if a.Unit != (daemon.Unit{Daemon: "a", Index: 2}) || a.Index != 2 || a.Generation != 9 || a.Term != 42 || a.Node != "n1" {
		t.Errorf("%+v", a)
	}
	if got := a.Fence().String(); got != "a/2@9" {
		t.Errorf("fence %s", got)
	}
}

// TestSignalsAreGivenOnce: BeginDrain and Ready may be called twice, and by several goroutines at
// once.
func TestSignalsAreGivenOnce(t *testing.T) {
	t.Parallel()
	a := assignment()
	if closed(a.Draining()) || closed(a.ReadyDone()) {
		t.Fatal("drains or is ready from the beginning")
	}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(a.BeginDrain)
		wg.Go(a.Ready)
	}
	wg.Wait()
	if !closed(a.Draining()) || !closed(a.ReadyDone()) {
		t.Error("does not drain or is not ready")
	}
}

func TestEveryProgressIsSeen(t *testing.T) {
	t.Parallel()
	a, last := assignment(), int64(0)
	for _, n := range []int{0, 1, 0, 100} { // no items done is also progress
		a.Progress(n)
		if now := a.Progressed(); now == last {
			t.Errorf("Progress(%d) changed nothing", n)
		} else {
			last = now
		}
	}
}

func TestRefusedNotifiesTheNode(t *testing.T) {
	t.Parallel()
	var reported int64
	a := daemon.NewAssignment(daemon.Fence{Generation: 9}, 42, "n1", func(held int64) { reported = held })
	a.ReportRefused(12)
	if reported != 12 {
		t.Errorf("told %d", reported)
	}
	assignment().ReportRefused(12) // without a function to call
}

// tooMany ends a loop that should have ended by itself.
func tooMany(steps int) error {
	if steps > 10 {
		return errors.New("the loop does not end")
	}
	return nil
}

func TestEachRunsUntilItDrains(t *testing.T) {
	t.Parallel()
	a, steps := assignment(), 0
	err := daemon.Each(func(_ context.Context, a *daemon.Assignment) error {
		if steps++; steps == 3 {
			a.BeginDrain() // the current step ends, and no other begins
		}
		return tooMany(steps)
	}).Run(t.Context(), a)
	if err != nil || steps != 3 {
		t.Errorf("%d steps, %v", steps, err)
	}
}

func TestEachBeginsNothingWhenItIsOver(t *testing.T) {
	t.Parallel()
	never := daemon.Each(func(context.Context, *daemon.Assignment) error {
		return errors.New("a step was begun")
	})
	a := assignment()
	a.BeginDrain()
	if err := never.Run(t.Context(), a); err != nil {
		t.Errorf("drained: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := never.Run(ctx, assignment()); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}

func TestEachEndsWithItsContext(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		steps := 0
		err := daemon.Each(func(ctx context.Context, _ *daemon.Assignment) error {
			steps++
			select {
			case <-ctx.Done(): // a step that notices it need not return it
			case <-time.After(25 * time.Second):
			}
			return tooMany(steps)
		}).Run(ctx, assignment())
		if !errors.Is(err, context.DeadlineExceeded) || steps != 3 {
			t.Errorf("%d steps, %v", steps, err)
		}
	})
}

func TestEachReturnsTheErrorOfAStep(t *testing.T) {
	t.Parallel()
	for _, want := range []error{errors.New("boom"), fmt.Errorf("not here: %w", daemon.ErrRelease)} {
		steps := 0
		err := daemon.Each(func(_ context.Context, a *daemon.Assignment) error {
			switch steps++; steps {
			case 2:
				return want
			case 10: // so that a loop that ignores errors also ends
				a.BeginDrain()
			}
			return nil
		}).Run(t.Context(), assignment())
		if !errors.Is(err, want) || steps != 2 {
			t.Errorf("%d steps, %v", steps, err)
		}
	}
}

func TestStaleErrors(t *testing.T) {
	t.Parallel()
	err := fmt.Errorf("save order: %w", &daemon.StaleError{Fence: daemon.Fence{Unit: daemon.Unit{Daemon: "a"}, Generation: 5}, HeldGeneration: 7})
	if !errors.Is(err, daemon.ErrStale) || errors.Is(err, daemon.ErrRelease) {
		t.Errorf("%v is of the wrong kind", err)
	}
	var stale *daemon.StaleError
	if !errors.As(err, &stale) || stale.HeldGeneration != 7 {
		t.Errorf("%v does not say who holds the unit", err)
	}
	if got := err.Error(); got != "save order: fence a/0@5 refused: generation 7 owns the unit" {
		t.Error(got)
	}
}

func TestTrust(t *testing.T) {
	t.Parallel()
	if left, ok := daemon.Validity(t.Context()); ok || left != 0 {
		t.Errorf("a context of nobody is trusted for %v", left)
	}
	remaining := time.Minute
	ctx, cancel := context.WithCancel(daemon.WithValidity(t.Context(), func() time.Duration { return remaining }))
	defer cancel()
	if left, ok := daemon.Validity(ctx); !ok || left != time.Minute {
		t.Errorf("%v, %t", left, ok)
	}
	remaining = -time.Second // called anew each time, and never negative
	if left, ok := daemon.Validity(ctx); !ok || left != 0 {
		t.Errorf("%v, %t", left, ok)
	}
}
