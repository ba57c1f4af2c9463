package supervisor

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/internal/channel"
	"github.com/emitd/emitd/internal/coordinator/member"
)

var errLost = errors.New("lost")

func TestARunFromStartToDrain(t *testing.T) {
	t.Parallel()
	agent := func(ctx context.Context, a *daemon.Assignment) error {
		want := daemon.Assignment{Unit: unit, Index: 2, Generation: 7, Term: 41, Node: "n1"}
		if a.Unit != want.Unit || a.Index != want.Index || a.Generation != want.Generation || a.Term != want.Term || a.Node != want.Node {
			t.Errorf("assignment is %v index %d term %d on %q", a.Fence(), a.Index, a.Term, a.Node)
		}
		return obedient(ctx, a)
	}
	act(t, Config{}, agent, func(th *theatre) {
		th.Start(fence, 41, daemon.Spec{})
		th.expect("stamp", "enter", "started")
		th.Start(fence, 41, daemon.Spec{}) // called twice
		th.expect()
		if got := th.Running(); len(got) != 1 || got[0] != fence {
			t.Errorf("running %v, want %v", got, fence)
		}
		th.Drain(fence)
		th.expect("ended returned")
	})
}

func TestCommandsForOtherRunsChangeNothing(t *testing.T) {
	t.Parallel()
	act(t, Config{}, obedient, func(th *theatre) {
		for _, f := range []daemon.Fence{fence, next} {
			th.Drain(f)
			th.Cancel(f, errLost)
			th.Abandon(f)
		}
		th.expect()
		th.Start(fence, 1, daemon.Spec{})
		th.expect("stamp", "enter", "started")
		for _, f := range []daemon.Fence{next, {Unit: unit, Generation: 6}, {Unit: daemon.Unit{Daemon: "acme:reports"}, Generation: 7}} {
			th.Drain(f)
			th.Cancel(f, errLost)
			th.Abandon(f)
		}
		th.expect()
		th.Cancel(fence, errLost)
		th.expect("ended returned")
	})
}

// Rule A10: stamp, then read. An agent that is called before its stamp was answered may read what
// an earlier run still writes.
func TestNothingIsEnteredBeforeTheStamp(t *testing.T) {
	t.Parallel()
	answer := make(chan error)
	defer close(answer)
	cfg := Config{StampTimeout: time.Hour, Stamp: func(ctx context.Context, _ daemon.Fence) error { return waitFor(ctx, answer) }}
	synctest.Test(t, func(t *testing.T) {
		answer = make(chan error)
		th := newTheatre(t, cfg, obedient)
		th.Start(fence, 1, daemon.Spec{})
		th.expect("stamp")
		pass(time.Minute)
		th.expect()
		answer <- nil
		th.expect("enter", "started")
		th.Drain(fence)
		th.expect("ended returned")
	})
}

func waitFor(ctx context.Context, c <-chan error) error {
	select {
	case err := <-c:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

func TestStampIsRepeatedUntilAnswered(t *testing.T) {
	t.Parallel()
	n := 0
	stamp := func(ctx context.Context, _ daemon.Fence) error {
		if n++; n <= 2 {
			<-ctx.Done() // a store that hangs: bounded by StampTimeout
			return ctx.Err()
		}
		return nil
	}
	act(t, Config{StampTimeout: 2 * time.Second, Stamp: stamp}, obedient, func(th *theatre) {
		th.Start(fence, 1, daemon.Spec{})
		th.expect("stamp")
		pass(2*time.Second + 100*time.Millisecond)
		th.expect("stamp")
		pass(2*time.Second + 200*time.Millisecond)
		th.expect("stamp", "enter", "started")
		th.Cancel(fence, errLost)
		th.expect("ended returned")
	})
}

// A run reports that its fence is stamped, before its agent begins, and once.
func TestStampedIsReportedOnce(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var kinds []ReportKind
		calls := 0
		s := New(Config{
			Agent: func(daemon.ID) (daemon.Agent, bool) { return daemon.AgentFunc(obedient), true },
			Stamp: func(context.Context, daemon.Fence) error {
				if calls++; calls == 1 {
					return errLost
				}
				return nil
			},
			OnReport: func(r Report) { kinds = append(kinds, r.Kind) },
		})
		s.Start(fence, 1, daemon.Spec{})
		pass(time.Minute)
		s.Drain(fence)
		synctest.Wait()
		if want := []ReportKind{Stamped, Started, Ended}; !slices.Equal(kinds, want) {
			t.Errorf("reports %v, want %v", kinds, want)
		}
	})
}

func TestStampThatIsRefused(t *testing.T) {
	t.Parallel()
	stamp := func(context.Context, daemon.Fence) error { return &daemon.StaleError{Fence: fence, HeldGeneration: 99} }
	act(t, Config{Stamp: stamp}, obedient, func(th *theatre) {
		th.Start(fence, 1, daemon.Spec{})
		th.expect("stamp", "held 99", "ended refused: fence acme:reports/2@7 refused: generation 99 owns the unit")
	})
}

func TestEndsWhileStamping(t *testing.T) {
	t.Parallel()
	hang := func(ctx context.Context, _ daemon.Fence) error { <-ctx.Done(); return ctx.Err() }
	fail := func(context.Context, daemon.Fence) error { return errors.New("store is down") }
	for name, c := range map[string]struct {
		stamp func(context.Context, daemon.Fence) error
		end   func(th *theatre)
		want  string
	}{
		"cancel in a stamp":   {hang, func(th *theatre) { th.Cancel(fence, errLost) }, "ended refused: fence not stamped before the run was cancelled: lost\ncontext canceled"},
		"cancel in back-off":  {fail, func(th *theatre) { th.Cancel(fence, errLost) }, "ended refused: fence not stamped before the run was cancelled: lost\nstore is down"},
		"drain in back-off":   {fail, func(th *theatre) { th.Drain(fence) }, "ended returned"},
		"drain before answer": {func(ctx context.Context, _ daemon.Fence) error { <-time.After(time.Second); return nil }, func(th *theatre) { th.Drain(fence); pass(time.Second) }, "ended returned"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			act(t, Config{Stamp: c.stamp}, obedient, func(th *theatre) {
				th.Start(fence, 1, daemon.Spec{})
				th.expect("stamp")
				c.end(th)
				th.expect(c.want)
			})
		})
	}
}

func TestUnknownAgent(t *testing.T) {
	t.Parallel()
	cfg := Config{Agent: func(daemon.ID) (daemon.Agent, bool) { return nil, false }}
	act(t, cfg, nil, func(th *theatre) {
		th.Start(fence, 1, daemon.Spec{})
		th.expect("ended forgotten: this node has no agent for the daemon")
		if !errors.Is(th.reports[0].Err, ErrNoAgent) {
			t.Error("not ErrNoAgent")
		}
	})
}

// Rule A4: with WaitReady the acknowledgement waits for the agent's Ready, also across restarts.
func TestStartedWaitsForReady(t *testing.T) {
	t.Parallel()
	record := make(map[int]chan struct{})
	n := 0
	agent := func(ctx context.Context, a *daemon.Assignment) error {
		n++
		select {
		case <-record[n]:
			a.Ready()
		case <-time.After(time.Minute):
			return errors.New("never got ready")
		}
		if n == 2 {
			<-time.After(time.Second)
			return errors.New("crashed")
		}
		return obedient(ctx, a)
	}
	act(t, Config{}, agent, func(th *theatre) {
		record[2], record[3] = make(chan struct{}), make(chan struct{})
		th.Start(fence, 1, daemon.Spec{WaitReady: true})
		th.expect("stamp", "enter")
		pass(time.Minute)
		th.expect("lasted, failed #1: never got ready")
		pass(time.Second)
		th.expect("enter")
		close(record[2])
		th.expect("started")
		pass(3 * time.Second)
		th.expect("failed #2: crashed", "enter")
		close(record[3])
		th.expect() // once per run
		th.Drain(fence)
		th.expect("ended returned")
	})
}

func TestReadyJustBeforeReturning(t *testing.T) {
	t.Parallel()
	agent := func(_ context.Context, a *daemon.Assignment) error { a.Ready(); return daemon.ErrRelease }
	for range 50 { // both arrive at once, and select chooses at random
		act(t, Config{}, agent, func(th *theatre) {
			th.Start(fence, 1, daemon.Spec{WaitReady: true})
			th.expect("stamp", "enter", "started", "ended released: release the unit")
		})
	}
}

// Rule A9: a process has one run of a unit at a time.
func TestASecondRunIsRefusedWhileTheFirstRuns(t *testing.T) {
	t.Parallel()
	act(t, Config{}, obedient, func(th *theatre) {
		th.Start(fence, 1, daemon.Spec{})
		th.expect("stamp", "enter", "started")
		th.Start(next, 1, daemon.Spec{})
		th.expect("ended refused: an earlier run of the unit has not returned")
		if !errors.Is(th.reports[1].Err, ErrBusy) {
			t.Error("not ErrBusy")
		}
		th.Cancel(fence, errLost)
		th.expect("ended returned")
		th.Start(next, 1, daemon.Spec{})
		th.expect("stamp", "enter", "started")
		th.Drain(next)
		th.expect("ended returned")
	})
}

// If a node starts the next run while it handles the report of the last one's end, it finds the
// unit free.
func TestTheUnitIsFreeWhenItsEndIsReported(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var s *Supervisor
		var ends []Report
		started := make(chan struct{}, 2)
		s = New(Config{
			Agent: func(daemon.ID) (daemon.Agent, bool) { return daemon.AgentFunc(obedient), true },
			Stamp: func(context.Context, daemon.Fence) error { return nil },
			OnReport: func(r Report) {
				switch {
				case r.Kind == Stamped:
				case r.Kind == Started:
					started <- struct{}{}
				case r.Fence == fence:
					s.Start(next, 1, daemon.Spec{})
					fallthrough
				default:
					ends = append(ends, r)
				}
			},
		})
		s.Start(fence, 1, daemon.Spec{})
		<-started
		s.Drain(fence)
		<-started
		s.Drain(next)
		if err := s.Wait(t.Context()); err != nil {
			t.Fatal(err)
		}
		for _, r := range ends {
			if r.Ending != member.Returned {
				t.Errorf("ended %v, want returned", r)
			}
		}
		if len(ends) != 2 {
			t.Errorf("%d ends, want 2", len(ends))
		}
	})
}

func TestWait(t *testing.T) {
	t.Parallel()
	act(t, Config{}, obedient, func(th *theatre) {
		if err := th.Wait(th.t.Context()); err != nil {
			t.Errorf("nothing runs: %v", err)
		}
		th.Start(fence, 1, daemon.Spec{})
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		if err := th.Wait(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a run runs: %v", err)
		}
		th.Drain(fence)
		if err := th.Wait(th.t.Context()); err != nil {
			t.Errorf("it ended: %v", err)
		}
		th.expect("stamp", "enter", "started", "ended returned")
	})
}

func TestTrustReachesTheAgent(t *testing.T) {
	t.Parallel()
	cfg := Config{Validity: func(u daemon.Unit) time.Duration {
		if u != unit {
			t.Errorf("asked for %v", u)
		}
		return time.Minute
	}}
	hold := make(chan struct{})
	agent := func(ctx context.Context, a *daemon.Assignment) error {
		if d, ok := daemon.Validity(ctx); !ok || d != time.Minute {
			t.Errorf("trust is %v, %v", d, ok)
		}
		<-hold
		if d, _ := daemon.Validity(ctx); d != 0 {
			t.Errorf("an abandoned run has trust left: %v", d)
		}
		return nil
	}
	act(t, cfg, agent, func(th *theatre) {
		hold = make(chan struct{})
		th.Start(fence, 1, daemon.Spec{})
		th.expect("stamp", "enter", "started")
		th.Cancel(fence, errLost)
		th.Abandon(fence)
		th.expect("abandoned")
		close(hold)
		th.expect("ended returned")
	})
}

func TestNewNeedsAgentAndStamp(t *testing.T) {
	t.Parallel()
	defer func() {
		if recover() == nil {
			t.Error("an empty config was accepted")
		}
	}()
	New(Config{})
}

// A drain that comes after the last look whether the run is over, and before the attempt has an assignment, reaches
// the agent.
func TestDrainJustBeforeAnAttempt(t *testing.T) {
	t.Parallel()
	s := New(Config{Agent: func(daemon.ID) (daemon.Agent, bool) { return nil, false }, Stamp: func(context.Context, daemon.Fence) error { return nil }})
	r := newRun(s, daemon.Fence{Unit: daemon.Unit{Daemon: "a"}, Generation: 1}, 1, daemon.Spec{ID: "a"}.WithDefaults())
	r.drain()
	a := daemon.NewAssignment(r.fence, 1, "n1", nil)
	r.drainable(a)
	if !channel.IsClosed(a.Draining()) {
		t.Error("the agent is not asked to end")
	}
}
