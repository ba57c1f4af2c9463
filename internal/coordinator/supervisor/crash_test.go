package supervisor

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/internal/channel"
)

// plays returns an agent that does one thing per attempt, and after that returns when asked to.
func plays(acts ...daemon.AgentFunc) daemon.AgentFunc {
	n := 0
	return func(ctx context.Context, a *daemon.Assignment) error {
		if n++; n <= len(acts) {
			return acts[n-1](ctx, a)
		}
		return obedient(ctx, a)
	}
}

func returns(err error) daemon.AgentFunc {
	return func(context.Context, *daemon.Assignment) error { return err }
}

// What each way to return means: the table of the package comment.
func TestReturns(t *testing.T) {
	t.Parallel()
	boom := errors.New("boom")
	stale := fmt.Errorf("save: %w", &daemon.StaleError{Fence: fence, HeldGeneration: 12})
	staleText := "save: fence acme:reports/2@7 refused: generation 12 owns the unit"
	for name, c := range map[string]struct {
		agent daemon.AgentFunc
		want  []string // after the agent was called
		again bool     // it is started again
	}{
		"nil":             {returns(nil), []string{"started"}, true},
		"error":           {returns(boom), []string{"started", "failed #1: boom"}, true},
		"own timeout":     {returns(context.DeadlineExceeded), []string{"started", "failed #1: context deadline exceeded"}, true},
		"panic":           {func(context.Context, *daemon.Assignment) error { panic("ouch") }, []string{"started", "failed #1: panic: ouch"}, true},
		"panic nil":       {func(context.Context, *daemon.Assignment) error { panic(nil) }, []string{"started", "failed #1: panic: panic called with nil argument"}, true},
		"goexit":          {func(context.Context, *daemon.Assignment) error { runtime.Goexit(); return nil }, []string{"started", "failed #1: agent called runtime.Goexit"}, true},
		"release":         {returns(fmt.Errorf("no disk: %w", daemon.ErrRelease)), []string{"started", "ended released: no disk: release the unit"}, false},
		"stale":           {returns(stale), []string{"started", "held 12", "ended refused: " + staleText}, false},
		"stale and plain": {returns(errors.Join(boom, daemon.ErrStale)), []string{"started", "ended refused: boom\nstale generation"}, false},
		"stale panic":     {func(context.Context, *daemon.Assignment) error { panic(stale) }, []string{"started", "held 12", "ended refused: panic: " + staleText}, false},
		"refused by hand": {func(_ context.Context, a *daemon.Assignment) error { a.ReportRefused(31); return boom }, []string{"started", "held 31", "failed #1: boom"}, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			act(t, Config{}, plays(c.agent), func(th *theatre) {
				th.Start(fence, 1, daemon.Spec{})
				th.expect(append([]string{"stamp", "enter"}, c.want...)...)
				if c.again {
					pass(100 * time.Millisecond)
					th.expect("enter")
					th.Drain(fence)
					th.expect("ended returned")
				}
			})
		})
	}
}

// After Drain or Cancel nothing counts as a failure.
func TestReturnsAfterTheEndWasRequested(t *testing.T) {
	t.Parallel()
	boom := errors.New("boom")
	for name, c := range map[string]struct {
		err  error
		want string
	}{
		"nil":      {nil, "ended returned"},
		"context":  {fmt.Errorf("read: %w", context.Canceled), "ended returned"},
		"release":  {daemon.ErrRelease, "ended returned"},
		"error":    {boom, "ended returned: boom"},
		"stale":    {daemon.ErrStale, "ended returned: stale generation"},
		"too long": {errors.New(strings.Repeat("x", 5000)), "ended returned: " + strings.Repeat("x", maxError-len("…")) + "…"},
	} {
		for _, how := range []string{"drain", "cancel"} {
			t.Run(how+" "+name, func(t *testing.T) {
				t.Parallel()
				agent := func(ctx context.Context, a *daemon.Assignment) error {
					_ = obedient(ctx, a)
					return c.err
				}
				act(t, Config{}, agent, func(th *theatre) {
					th.Start(fence, 1, daemon.Spec{MaxFailures: 1})
					th.expect("stamp", "enter", "started")
					if how == "drain" {
						th.Drain(fence)
					} else {
						th.Cancel(fence, errLost)
					}
					th.expect(c.want)
				})
			})
		}
	}
}

func TestTheCauseOfACancelReachesTheAgent(t *testing.T) {
	t.Parallel()
	agent := func(ctx context.Context, _ *daemon.Assignment) error {
		<-ctx.Done()
		if !errors.Is(context.Cause(ctx), errLost) {
			t.Errorf("cause is %v", context.Cause(ctx))
		}
		return fmt.Errorf("read: %w", context.Cause(ctx))
	}
	act(t, Config{}, agent, func(th *theatre) {
		th.Start(fence, 1, daemon.Spec{})
		th.expect("stamp", "enter", "started")
		th.Cancel(fence, errLost)
		th.expect("ended returned")
	})
}

func TestGivesUp(t *testing.T) {
	t.Parallel()
	act(t, Config{}, returns(errors.New("boom")), func(th *theatre) {
		th.Start(fence, 1, daemon.Spec{MaxFailures: 3})
		pass(time.Second)
		th.expect("stamp", "enter", "started", "failed #1: boom", "enter", "failed #2: boom", "enter", "ended gave up #3: boom")
	})
}

func TestNeverGivesUp(t *testing.T) {
	t.Parallel()
	act(t, Config{RestartMax: time.Second}, returns(errors.New("boom")), func(th *theatre) {
		th.Start(fence, 1, daemon.Spec{MaxFailures: -1})
		pass(time.Hour)
		if n := th.reports[len(th.reports)-1].Failures; n < 3600 || n > 7300 {
			t.Errorf("%d failures in an hour with at most 1 s between them", n)
		}
		th.lines = nil
		th.Cancel(fence, errLost) // in back-off
		th.expect("ended returned")
	})
}

// The pauses grow, stay within their bounds and differ.
func TestBackoff(t *testing.T) {
	t.Parallel()
	s := New(Config{
		Agent: func(daemon.ID) (daemon.Agent, bool) { return nil, false },
		Stamp: func(context.Context, daemon.Fence) error { return nil },
	})
	r := newRun(s, fence, 1, daemon.Spec{})
	defer r.cancel(nil)
	for n, full := range map[int]time.Duration{
		1: 100 * time.Millisecond, 2: 200 * time.Millisecond, 5: 1600 * time.Millisecond,
		9: 25600 * time.Millisecond, 10: 30 * time.Second, 1000: 30 * time.Second,
	} {
		seen := map[time.Duration]bool{}
		for range 200 {
			d := r.backoff(n)
			if d < full/2 || d > full || d < 100*time.Millisecond {
				t.Fatalf("after %d failures: %v, want at most %v", n, d, full)
			}
			seen[d] = true
		}
		if n > 1 && len(seen) < 2 {
			t.Errorf("after %d failures there is no jitter", n)
		}
	}
}

// MaxFailures counts failures in a row. A long attempt or a voluntary return resets the count.
func TestWhatBreaksTheRowOfFailures(t *testing.T) {
	t.Parallel()
	boom := errors.New("boom")
	lives := func(ctx context.Context, _ *daemon.Assignment) error { <-time.After(2 * time.Minute); return boom }
	for name, c := range map[string]struct {
		second daemon.AgentFunc
		want   []string
	}{
		"long life":  {lives, []string{"enter", "lasted, failed #1: boom", "enter", "failed #2: boom"}},
		"nil":        {returns(nil), []string{"enter", "enter", "failed #1: boom"}},
		"short life": {returns(boom), []string{"enter", "failed #2: boom", "enter", "failed #3: boom"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			act(t, Config{}, plays(returns(boom), c.second, returns(boom)), func(th *theatre) {
				th.Start(fence, 1, daemon.Spec{})
				th.expect("stamp", "enter", "started", "failed #1: boom")
				pass(3 * time.Minute)
				th.expect(append(c.want, "enter")...)
				th.Drain(fence)
				th.expect("ended returned")
			})
		})
	}
}

// Every attempt gets a handle of its own with the same fence. A Ready or Progress of the last
// attempt does not count for the next.
func TestARestartHasAFreshHandleAndTheSameFence(t *testing.T) {
	t.Parallel()
	var handles []*daemon.Assignment
	var contexts []context.Context
	agent := func(ctx context.Context, a *daemon.Assignment) error {
		handles, contexts = append(handles, a), append(contexts, ctx)
		if len(handles) == 1 {
			a.Ready()
			return errors.New("boom")
		}
		return obedient(ctx, a)
	}
	act(t, Config{}, agent, func(th *theatre) {
		th.Start(fence, 1, daemon.Spec{WaitReady: true})
		pass(time.Second)
		th.expect("stamp", "enter", "started", "failed #1: boom", "enter")
		if handles[0] == handles[1] || channel.IsClosed(handles[1].ReadyDone()) {
			t.Error("the second attempt has the first one's handle")
		}
		if handles[0].Fence() != fence || handles[1].Fence() != fence {
			t.Error("the fence changed")
		}
		if contexts[0].Err() == nil || contexts[1].Err() != nil {
			t.Error("the context of an attempt must end with it, and only then")
		}
		th.Drain(fence)
		th.expect("ended returned")
		if channel.IsClosed(handles[0].Draining()) {
			t.Error("a handle of the past was drained")
		}
	})
}

func TestDrainInBackoffEndsAtOnce(t *testing.T) {
	t.Parallel()
	act(t, Config{RestartMin: time.Hour, RestartMax: time.Hour}, returns(errors.New("boom")), func(th *theatre) {
		th.Start(fence, 1, daemon.Spec{})
		th.expect("stamp", "enter", "started", "failed #1: boom")
		th.Drain(fence)
		th.expect("ended returned")
	})
}

func TestAPanicIsLoggedWithItsStackAndBounded(t *testing.T) {
	t.Parallel()
	agent := plays(func(context.Context, *daemon.Assignment) error { panic(strings.Repeat("é", 100_000)) })
	act(t, Config{}, agent, func(th *theatre) {
		th.Start(fence, 1, daemon.Spec{})
		if log := th.logged(); !strings.Contains(log, "TestAPanicIsLoggedWithItsStackAndBounded") || len(log) > 20_000 {
			t.Errorf("log of %d bytes without the stack: %.300s", len(log), log)
		}
		if n := len(th.reports[1].Err.Error()); n > maxError {
			t.Errorf("error of %d bytes", n)
		}
		th.Drain(fence)
	})
}

func TestClip(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		in   string
		n    int
		want string
	}{
		{"abc", 3, "abc"}, {"abcd", 3, "…"}, {"abcdef", 5, "ab…"}, {"ééé", 5, "é…"}, {"ééé", 6, "ééé"}, {"aééé", 5, "a…"},
	} {
		if got := truncate(c.in, c.n); got != c.want {
			t.Errorf("clip(%q, %d) = %q, want %q", c.in, c.n, got, c.want)
		}
	}
}
