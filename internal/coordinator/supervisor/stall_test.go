package supervisor

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/emitd/emitd/daemon"
)

func waits(ctx context.Context, _ *daemon.Assignment) error { <-ctx.Done(); return ctx.Err() }

func TestAStallIsAFailure(t *testing.T) {
	t.Parallel()
	spec := daemon.Spec{StallTimeout: time.Minute}
	works := func(ctx context.Context, a *daemon.Assignment) error {
		for range 10 {
			<-time.After(50 * time.Second)
			a.Progress(0) // no work done, but progress
		}
		return waits(ctx, a)
	}
	for name, c := range map[string]struct {
		agent daemon.AgentFunc
		after time.Duration
		fails string
		err   string
	}{
		"from the beginning": {waits, time.Minute, "failed", ""},
		"after progress":     {works, 560 * time.Second, "lasted, failed", ""},
		"returns nil":        {func(ctx context.Context, a *daemon.Assignment) error { <-ctx.Done(); return nil }, time.Minute, "failed", ""},
		"returns an error":   {func(ctx context.Context, a *daemon.Assignment) error { <-ctx.Done(); return errors.New("half done") }, time.Minute, "failed", ": half done"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			act(t, Config{}, plays(c.agent), func(th *theatre) {
				th.Start(fence, 1, spec)
				pass(c.after - time.Second)
				th.expect("stamp", "enter", "started")
				pass(time.Minute/4 + time.Second)
				th.expect(c.fails+" #1: no progress within the stall timeout of 1m0s"+c.err, "enter")
				th.Cancel(fence, errLost)
				th.expect("ended returned")
			})
		})
	}
}

// Stalls are failures in a row, however long it took to detect each. Work before a stall resets the
// count.
func TestStallsInARow(t *testing.T) {
	t.Parallel()
	spec := daemon.Spec{StallTimeout: 10 * time.Minute, MaxFailures: 2}
	fail := func(n string) string { return n + ": no progress within the stall timeout of 10m0s" }
	works := func(d time.Duration) daemon.AgentFunc {
		return func(ctx context.Context, a *daemon.Assignment) error {
			a.Progress(1)
			select {
			case <-time.After(d):
				a.Progress(1)
			case <-ctx.Done():
			}
			return waits(ctx, a)
		}
	}
	for name, c := range map[string]struct {
		agent daemon.AgentFunc
		want  []string
	}{
		"never any progress":     {waits, []string{fail("failed #1"), "enter", fail("ended gave up #2")}},
		"progress as they begin": {works(0), []string{fail("failed #1"), "enter", fail("ended gave up #2")}},
		"minutes of progress":    {works(4 * time.Minute), []string{fail("lasted, failed #1"), "enter", fail("lasted, failed #1"), "enter"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			act(t, Config{}, c.agent, func(th *theatre) {
				th.Start(fence, 1, spec)
				pass(45 * time.Minute)
				th.expect(append([]string{"stamp", "enter", "started"}, c.want...)...)
				th.Cancel(fence, errLost)
			})
		})
	}
}

// What an agent learns while it is cancelled for a stall still counts.
func TestAStalledAttemptMayLearnThatItIsStale(t *testing.T) {
	t.Parallel()
	agent := func(ctx context.Context, _ *daemon.Assignment) error { <-ctx.Done(); return daemon.ErrStale }
	act(t, Config{}, agent, func(th *theatre) {
		th.Start(fence, 1, daemon.Spec{StallTimeout: time.Second})
		pass(2 * time.Second)
		th.expect("stamp", "enter", "started", "ended refused: no progress within the stall timeout of 1s: stale generation")
	})
}

// While a run drains, only the drain deadline counts, which is enforced elsewhere.
func TestADrainingRunDoesNotStall(t *testing.T) {
	t.Parallel()
	act(t, Config{}, waits, func(th *theatre) {
		th.Start(fence, 1, daemon.Spec{StallTimeout: time.Second})
		th.expect("stamp", "enter", "started")
		th.Drain(fence)
		pass(time.Minute)
		th.expect()
		th.Cancel(fence, errLost)
		th.expect("ended returned")
	})
}

// A paused process sees one tick when it goes on, however long the pause was.
func TestAPauseIsNoStall(t *testing.T) {
	t.Parallel()
	s := newStall(time.Minute)
	defer s.stop()
	for range 3 {
		if s.expired(0) {
			t.Error("stalled after three ticks")
		}
	}
	for range 4 {
		if s.expired(5) {
			t.Error("progress did not count")
		}
	}
	if !s.expired(5) {
		t.Error("four quiet ticks are no stall")
	}
}

func TestAStalledAttemptThatIgnoresItsContext(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		spec  daemon.Spec
		works time.Duration
		fails string
		exit  []string
	}{
		"goes on": {daemon.Spec{StallTimeout: time.Second}, 0, "failed", nil},
		"exits":   {daemon.Spec{StallTimeout: time.Second, OnAbandoned: "exit"}, 0, "failed", []string{"exit 1"}},
		"works":   {daemon.Spec{StallTimeout: time.Second}, 2 * time.Minute, "lasted, failed", nil},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var hold chan struct{}
			agent := plays(func(_ context.Context, a *daemon.Assignment) error {
				for end := time.Now().Add(c.works); time.Now().Before(end); a.Progress(1) {
					<-time.After(time.Second / 2)
				}
				hangs(hold)
				return nil
			})
			act(t, Config{StopTimeout: 10 * time.Second}, agent, func(th *theatre) {
				hold = make(chan struct{})
				th.Start(fence, 1, c.spec)
				pass(c.works + 11250*time.Millisecond)
				th.expect(append([]string{
					"stamp", "enter", "started",
					c.fails + " #1: no progress within the stall timeout of 1s, and its cancelled context is ignored",
				}, c.exit...)...)
				if !strings.Contains(th.logged(), "hangs") {
					t.Error("the log does not say where it hangs")
				}
				pass(time.Minute)
				th.expect() // never two attempts at once
				close(hold)
				pass(time.Second)
				th.expect(c.fails+" #1: no progress within the stall timeout of 1s", "enter")
				th.Drain(fence)
				th.expect("ended returned")
			})
		})
	}
}

// The stacks that are logged are those of the agent, also of one that was restarted.
func TestStacksAreOfTheAgent(t *testing.T) {
	t.Parallel()
	var hold chan struct{}
	agent := plays(returns(errors.New("boom")), func(context.Context, *daemon.Assignment) error { hangs(hold); return nil })
	act(t, Config{StopTimeout: 10 * time.Second}, agent, func(th *theatre) {
		hold = make(chan struct{})
		th.Start(fence, 1, daemon.Spec{StallTimeout: time.Second})
		pass(20 * time.Second)
		if text := th.logged(); !strings.Contains(text, "hangs") || strings.Contains(text, "awaitReturn") {
			t.Errorf("logged: %s", text)
		}
		close(hold)
		th.Drain(fence)
	})
}

//go:noinline
func hangs(hold <-chan struct{}) { <-hold }

// Nothing waits for an abandoned run. It keeps its unit, and is reported when it returns after all.
func TestAbandon(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		spec daemon.Spec
		exit []string
	}{
		"goes on": {daemon.Spec{}, nil},
		"exits":   {daemon.Spec{OnAbandoned: "exit"}, []string{"exit 1"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var hold chan struct{}
			agent := func(context.Context, *daemon.Assignment) error {
				done := make(chan struct{})
				go func() { defer close(done); hangs(hold) }() // a goroutine of the agent's own
				<-done
				return nil
			}
			act(t, Config{}, agent, func(th *theatre) {
				hold = make(chan struct{})
				th.Start(fence, 1, c.spec)
				synctest.Wait()
				th.Cancel(fence, errLost)
				synctest.Wait()
				th.lines = nil
				th.Abandon(fence)
				th.Abandon(fence)
				th.expect(append([]string{"abandoned"}, c.exit...)...)
				if log := th.logged(); !strings.Contains(log, "supervisor.hangs") {
					t.Errorf("the log does not say where it hangs: %s", log)
				}
				if err := th.Wait(th.t.Context()); err != nil {
					t.Errorf("wait waits for an abandoned run: %v", err)
				}
				th.Start(next, 1, daemon.Spec{})
				th.expect("ended refused: an earlier run of the unit has not returned")
				close(hold)
				th.expect("ended returned")
			})
		})
	}
}

// A run whose agent was not called yet, or that waits between two attempts, is not abandoned: no
// code of the agent ignores anything.
func TestAbandonOutsideTheAgent(t *testing.T) {
	t.Parallel()
	t.Run("while its fence is stamped", func(t *testing.T) {
		t.Parallel()
		var answer chan struct{}
		stamp := func(context.Context, daemon.Fence) error { <-answer; return nil } // ignores its context
		act(t, Config{Stamp: stamp}, obedient, func(th *theatre) {
			answer = make(chan struct{})
			th.Start(fence, 1, daemon.Spec{OnAbandoned: "exit"})
			th.expect("stamp")
			th.Cancel(fence, errLost)
			th.Abandon(fence)
			th.expect()
			close(answer)
			th.expect("ended returned")
		})
	})
	t.Run("between two attempts", func(t *testing.T) {
		t.Parallel()
		act(t, Config{}, plays(returns(errors.New("boom"))), func(th *theatre) {
			th.Start(fence, 1, daemon.Spec{OnAbandoned: "exit"})
			th.expect("stamp", "enter", "started", "failed #1: boom")
			th.Abandon(fence)
			th.expect("ended returned")
		})
	})
}

func TestStacksOfARunThatIsGone(t *testing.T) {
	t.Parallel()
	if got := stacks(daemon.Fence{Unit: daemon.Unit{Daemon: "no:such"}, Generation: 1}); !strings.HasPrefix(got, "none") {
		t.Errorf("stacks of no run: %s", got)
	}
}

func TestMetrics(t *testing.T) {
	t.Parallel()
	reader := metric.NewManualReader()
	provider := metric.NewMeterProvider(metric.WithReader(reader))
	agent := plays(returns(errors.New("boom")), returns(nil), func(context.Context, *daemon.Assignment) error { panic("x") })
	act(t, Config{MeterProvider: provider}, agent, func(th *theatre) {
		th.Start(fence, 1, daemon.Spec{})
		pass(time.Second)
		var got metricdata.ResourceMetrics
		if err := reader.Collect(context.Background(), &got); err != nil {
			t.Fatal(err)
		}
		counts := map[string]int64{}
		for _, m := range got.ScopeMetrics[0].Metrics {
			for _, p := range m.Data.(metricdata.Sum[int64]).DataPoints {
				kind, _ := p.Attributes.Value("error.type")
				counts[strings.TrimSpace(m.Name+" "+kind.AsString())] = p.Value
			}
		}
		for name, want := range map[string]int64{
			"emitd.daemon.active": 1, "emitd.daemon.restarts error": 1, "emitd.daemon.restarts returned": 1, "emitd.daemon.restarts panic": 1,
		} {
			if counts[name] != want {
				t.Errorf("%s is %d, want %d (all: %v)", name, counts[name], want, counts)
			}
		}
		th.Drain(fence)
	})
}
