package daemon

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// anyStates keeps nothing and accepts everything.
type anyStates struct{ StateStore }

func (anyStates) SaveUnitState(context.Context, Fence, UnitState, ...Event) error { return nil }

// TestPeriodicClockIsSetBack: a run under way notices that the clock was ahead and is right again. It waits neither for the
// due times nor for a repetition that come only by the wrong clock.
func TestPeriodicClockIsSetBack(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var ahead, calls, failures atomic.Int64
		p := Every(3*time.Hour, func(context.Context, *Assignment, time.Time) error {
			calls.Add(1)
			if failures.Add(-1) >= 0 {
				return errors.New("boom")
			}
			return nil
		})
		rules, err := p.rules()
		if err != nil {
			t.Fatal(err)
		}
		r := &periodicRun{
			p: p, a: NewAssignment(Fence{Unit: Unit{Daemon: "acme:reports"}, Generation: 1}, 1, "alpha", nil), rules: rules,
			states: anyStates{}, log: slog.New(slog.DiscardHandler), now: func() time.Time { return wallClock().Add(time.Duration(ahead.Load())) },
		}
		ended := make(chan error)
		go func() { ended <- r.loop(t.Context()) }()
		step := func(d time.Duration, want int64, when string) {
			t.Helper()
			time.Sleep(d)
			synctest.Wait()
			if got := calls.Swap(0); got != want {
				t.Errorf("%d calls %s, want %d", got, when, want)
			}
		}
		step(time.Minute, 0, "at first")
		ahead.Store(int64(24 * time.Hour))
		step(time.Minute, 1, "by a clock that is a day ahead")
		ahead.Store(0)
		step(3*time.Hour+time.Minute, 1, "within one interval of the right time")

		failures.Store(1)
		step(3*time.Hour-10*time.Minute, 0, "before the next due time")
		ahead.Store(int64(50 * time.Minute))
		step(11*time.Second, 1, "by a clock that is 50 minutes ahead")
		ahead.Store(0)
		step(time.Minute, 1, "soon after the failure")
		r.a.BeginDrain()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}
