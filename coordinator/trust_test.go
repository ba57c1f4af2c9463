package coordinator_test

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/emitd/emitd/coordinator"
	"github.com/emitd/emitd/coordinator/coordinatortest"
	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/internal/coordinator/lease"
	"github.com/emitd/emitd/node"
	"github.com/emitd/emitd/storage"
)

// trustFor returns the validity of a leadership, from the beginning of its last answered call.
func trustFor() time.Duration { return lease.Fast().ValidFor(lease.Fast().LeaseDuration) }

// lastRenewal records when the newest answered renewal began.
type lastRenewal struct{ at atomic.Pointer[time.Time] }

func (l *lastRenewal) after(_ context.Context, op string, _ any, err error) error {
	if op == "heartbeat" && err == nil {
		now := time.Now()
		l.at.Store(&now)
	}
	return err
}

// However the store fails (no answer, an error at once, or ignoring contexts), leadership ends
// exactly when the validity of the last answered renewal does. It is published and cancelled before
// anything else, and the term is the same until then.
func TestTrustEndsWhateverTheStoreDoes(t *testing.T) {
	t.Parallel()
	for name, fail := range map[string]func(release <-chan struct{}) func(context.Context, string, any, error) error{
		"errors": func(<-chan struct{}) func(context.Context, string, any, error) error {
			return func(context.Context, string, any, error) error { return storage.ErrUnavailable }
		},
		"hangs": func(<-chan struct{}) func(context.Context, string, any, error) error {
			return func(ctx context.Context, _ string, _ any, _ error) error { <-ctx.Done(); return ctx.Err() }
		},
		"ignores its context": func(release <-chan struct{}) func(context.Context, string, any, error) error {
			return func(context.Context, string, any, error) error { <-release; return storage.ErrUnavailable }
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				c, taps := tapped(t, coordinatortest.Config{})
				var last lastRenewal
				taps[0].set(nil, last.after)
				c.Elect()
				seen := follow(t, c.Node(0))
				_, ctx, _ := c.Node(0).Leadership()
				advance(3 * time.Second)
				release := make(chan struct{})
				defer close(release)
				// The leader's passes are answered: otherwise failed passes would end leadership
				// earlier.
				failed := fail(release)
				taps[0].set(func(ctx context.Context, op string, req any, err error) error {
					if op == "snapshot" || op == "commit" {
						return nil
					}
					return failed(ctx, op, req, err)
				}, last.after)
				deadline := last.at.Load().Add(trustFor())
				<-ctx.Done()
				if now := time.Now(); !now.Equal(deadline) {
					t.Errorf("the context ended %v after the trust deadline", now.Sub(deadline))
				}
				var lost *coordinator.LostError
				if !errors.As(context.Cause(ctx), &lost) || lost.Reason != node.ValidityEnded {
					t.Errorf("cause: %v", context.Cause(ctx))
				}
				advance(0)
				if tr := seen.all(); len(tr) != 2 || tr[1].Reason != node.ValidityEnded {
					t.Errorf("transitions: %+v", tr)
				}
				taps[0].set(nil, nil)
			})
		})
	}
}

// Lost is published, and the context cancelled, before the store receives a resignation, even if
// the store hangs for ever.
func TestLostComesBeforeResign(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c, taps := tapped(t, coordinatortest.Config{})
		c.Elect()
		_, ctx, _ := c.Node(0).Leadership()
		var resigned atomic.Bool
		taps[0].set(func(call context.Context, op string, _ any, _ error) error {
			if op == "leave" {
				resigned.Store(true)
				if ctx.Err() == nil {
					t.Error("the store hears of the resignation while the context is live")
				}
				<-call.Done()
				return call.Err()
			}
			return nil
		}, nil)
		if err := c.Node(0).Resign(t.Context(), 0); err != nil {
			t.Fatal(err)
		}
		if ctx.Err() == nil {
			t.Error("Resign returned while the context is live")
		}
		advance(100 * time.Millisecond)
		if !resigned.Load() {
			t.Error("no resignation was sent")
		}
		taps[0].set(nil, nil)
	})
}

// A renewal that succeeds slowly extends the validity from its beginning, not from its answer.
func TestSlowRenewalDoesNotExtendTrust(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c, taps := tapped(t, coordinatortest.Config{})
		c.Elect()
		_, ctx, _ := c.Node(0).Leadership()
		slow := 400 * time.Millisecond
		var began atomic.Pointer[time.Time]
		taps[0].set(func(_ context.Context, op string, _ any, _ error) error {
			if op != "heartbeat" {
				return nil
			}
			if began.Load() != nil {
				return storage.ErrUnavailable // this one was the last
			}
			now := time.Now()
			began.Store(&now)
			return nil
		}, func(ctx context.Context, op string, _ any, err error) error {
			if op == "heartbeat" && err == nil {
				<-time.After(slow)
			}
			return err
		})
		<-ctx.Done()
		if held := time.Since(*began.Load()); held != trustFor() {
			t.Errorf("trust ended %v after the beginning of the slow renewal, want %v", held, trustFor())
		}
		taps[0].set(nil, nil)
	})
}

// The local clock decides. A machine that was suspended beyond its validity notices when it next
// reads the clock, within Timing.ClockCheckInterval and before it calls any store. Leadership and agents end.
func TestSuspendIsNoticed(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var ended record[string]
		c, taps, jump := suspendable(t)
		c.Register(daemon.Spec{ID: "acme:x"}, daemon.AgentFunc(func(ctx context.Context, _ *daemon.Assignment) error {
			<-ctx.Done()
			ended.add(context.Cause(ctx).Error())
			return ctx.Err()
		}))
		c.WaitUntil("it runs", func() bool { return c.Holder("acme:x/0") == 0 })
		_, ctx, _ := c.Node(0).Leadership()
		// The worst moment: a heartbeat hangs, and nothing else is due before it times out.
		hangs := make(chan struct{}, 16)
		taps[0].set(func(ctx context.Context, _ string, _ any, _ error) error {
			hangs <- struct{}{}
			<-ctx.Done()
			return ctx.Err()
		}, nil)
		<-hangs
		advance(100 * time.Millisecond)
		woke := time.Now()
		jump.Store(int64(time.Hour))
		<-ctx.Done()
		if took := time.Since(woke); took > lease.Fast().ClockCheckInterval {
			t.Errorf("the leadership context ended after %v", took)
		}
		advance(0)
		if got := ended.all(); len(got) != 1 || !strings.Contains(got[0], "trust") {
			t.Errorf("the agent was told %v", got)
		}
		taps[0].set(nil, nil)
	})
}

// Leadership notices a suspend at once, whatever other goroutines have read.
func TestLeadershipSeesSuspendAtOnce(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c, _, jump := suspendable(t)
		c.Elect()
		jump.Store(int64(time.Hour))
		if _, ctx, ok := c.Node(0).Leadership(); ok || ctx.Err() == nil {
			t.Error("Leadership says yes an hour later")
		}
	})
}

// suspendable is a node whose clock can be set forward, as after a suspend.
func suspendable(t *testing.T) (*coordinatortest.Cluster, []*tap, *atomic.Int64) {
	t.Helper()
	began, jump := time.Now(), &atomic.Int64{}
	c, taps := tapped(t, coordinatortest.Config{Configure: func(_ int, cfg *coordinator.Config) {
		cfg.Clock = func() time.Duration { return time.Since(began) + time.Hour + time.Duration(jump.Load()) }
	}})
	return c, taps, jump
}

// If the loop hangs (which nothing should cause), leadership still ends. Leadership returns false
// once the validity is over, and the watchdog ends the context and publishes the loss. When the
// loop goes on, it agrees.
func TestStuckLoop(t *testing.T) {
	bubble(t, func(t *testing.T) {
		began := time.Now()
		var stick atomic.Bool
		goOn := make(chan struct{})
		c, taps := tapped(t, coordinatortest.Config{Nodes: 1, Configure: func(_ int, cfg *coordinator.Config) {
			cfg.Clock = func() time.Duration {
				if stick.Load() && calledFrom("(*shell).loop") {
					<-goOn
				}
				return time.Since(began) + time.Hour
			}
		}})
		var last lastRenewal
		taps[0].set(nil, last.after)
		c.Elect()
		advance(2500 * time.Millisecond)
		seen := follow(t, c.Node(0))
		_, ctx, _ := c.Node(0).Leadership()
		stick.Store(true)
		deadline := last.at.Load().Add(trustFor())
		<-time.After(time.Until(deadline) - time.Millisecond)
		if _, _, ok := c.Node(0).Leadership(); !ok {
			t.Error("trust ended too early")
		}
		<-ctx.Done()
		if late := time.Since(deadline); late < 0 || late > lease.Fast().ClockCheckInterval {
			t.Errorf("the watchdog ended the context %v after the trust deadline", late)
		}
		if _, _, ok := c.Node(0).Leadership(); ok {
			t.Error("it leads after its trust")
		}
		advance(lease.Fast().LeaseDuration)
		if err := c.Node(0).Live()["loop"]; err == nil {
			t.Error("nobody notices that the loop is stuck")
		}
		stick.Store(false)
		close(goOn)
		advance(10 * time.Second)
		if c.Leader() != 0 {
			t.Error("it does not lead again")
		}
		if err := c.Node(0).Live()["loop"]; err != nil {
			t.Error(err)
		}
		for i, tr := range seen.all() {
			if tr.Leading != (i%2 == 0) {
				t.Errorf("transitions: %+v", seen.all())
			}
		}
	})
}

// Validity ends at the exact instant even if only Leadership reads the clock.
func TestLeadershipReadsTheClock(t *testing.T) {
	bubble(t, func(t *testing.T) {
		began := time.Now()
		var stick atomic.Bool
		goOn := make(chan struct{})
		c, taps := tapped(t, coordinatortest.Config{Configure: func(_ int, cfg *coordinator.Config) {
			cfg.Clock = func() time.Duration {
				if stick.Load() && calledFrom("(*shell).loop") {
					<-goOn
				}
				return time.Since(began) + time.Hour
			}
		}})
		var last lastRenewal
		taps[0].set(nil, last.after)
		c.Elect()
		advance(1500 * time.Millisecond)
		stick.Store(true)
		<-time.After(time.Until(last.at.Load().Add(trustFor())))
		if _, ctx, ok := c.Node(0).Leadership(); ok || ctx.Err() == nil {
			t.Error("Leadership says yes at its trust deadline")
		}
		stick.Store(false)
		close(goOn)
	})
}

func calledFrom(function string) bool {
	pc := make([]uintptr, 32)
	frames := runtime.CallersFrames(pc[:runtime.Callers(2, pc)])
	for {
		f, more := frames.Next()
		if strings.HasSuffix(f.Function, function) {
			return true
		}
		if !more {
			return false
		}
	}
}

// Many wake-ups change neither renewals nor validity, and do not pile up.
func TestHintStorm(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var wake atomic.Pointer[func(storage.WakeUp)]
		c, taps := stormy(t, &wake)
		var beats record[time.Duration]
		began := time.Now()
		c.Elect()
		var fail atomic.Bool
		var last lastRenewal
		taps[0].set(func(_ context.Context, op string, _ any, _ error) error {
			if op == "heartbeat" {
				beats.add(time.Since(began))
				if fail.Load() {
					return storage.ErrUnavailable
				}
			}
			return nil
		}, last.after)
		storm, stop := context.WithCancel(t.Context())
		calm := make(chan struct{})
		go func() {
			defer close(calm)
			for storm.Err() == nil {
				for range 10 {
					(*wake.Load())(storage.WakeUp{})
					(*wake.Load())(storage.WakeUp{Leader: true})
				}
				<-time.After(time.Millisecond)
			}
		}()
		_, ctx, _ := c.Node(0).Leadership()
		advance(20 * time.Second)
		if ctx.Err() != nil {
			t.Fatalf("the storm ended leadership: %v", context.Cause(ctx))
		}
		longest := time.Duration(0)
		for i, at := range beats.all()[1:] {
			longest = max(longest, at-beats.all()[i])
		}
		if longest > 1100*time.Millisecond {
			t.Errorf("a renewal was %v late", longest)
		}
		fail.Store(true)
		deadline := last.at.Load().Add(trustFor())
		<-ctx.Done()
		if late := time.Since(deadline); late != 0 {
			t.Errorf("in the storm, the context ended %v after the trust deadline", late)
		}
		stop()
		<-calm
		taps[0].set(nil, nil)
	})
}

// stormy is a node whose wake-ups the test creates.
func stormy(t *testing.T, wake *atomic.Pointer[func(storage.WakeUp)]) (*coordinatortest.Cluster, []*tap) {
	t.Helper()
	var taps []*tap
	c := coordinatortest.New(t, coordinatortest.Config{Wrap: func(_ int, s storage.Store) storage.Store {
		tp := &tap{Store: s}
		taps = append(taps, tp)
		return &wakingTap{tap: tp, wake: wake}
	}})
	return c, taps
}

type wakingTap struct {
	*tap
	wake *atomic.Pointer[func(storage.WakeUp)]
}

func (h *wakingTap) Watch(ctx context.Context, wake func(storage.WakeUp)) error {
	h.wake.Store(&wake)
	<-ctx.Done()
	return ctx.Err()
}

// Wake-ups for other nodes, for the node's own changes, and after the end change nothing. Many
// early ones are coalesced into few heartbeats.
func TestHintsAreMergedAndAddressed(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var wake atomic.Pointer[func(storage.WakeUp)]
		c, taps := stormy(t, &wake)
		c.Elect()
		beats := 0
		taps[0].set(func(_ context.Context, op string, _ any, _ error) error {
			if op == "heartbeat" {
				beats++
			}
			return nil
		}, nil)
		advance(50 * time.Millisecond)
		beats = 0
		for range 100 {
			(*wake.Load())(storage.WakeUp{Nodes: []node.Incarnation{"somebody else"}})
		}
		advance(100 * time.Millisecond)
		if beats != 0 {
			t.Errorf("wake-ups for somebody else caused %d heartbeats", beats)
		}
		for range 100 {
			(*wake.Load())(storage.WakeUp{})
		}
		advance(100 * time.Millisecond)
		if beats < 1 || beats > 2 {
			t.Errorf("100 wake-ups at once caused %d heartbeats, want one or two", beats)
		}
		if err := c.Stop(0); err != nil {
			t.Fatal(err)
		}
		beats = 0
		(*wake.Load())(storage.WakeUp{})
		advance(time.Minute)
		if beats != 0 {
			t.Error("a wake-up after the end caused a heartbeat")
		}
	})
}

// Listening that fails is started again, with pauses. Without wake-ups everything is found by
// polling.
func TestListeningBeginsAgain(t *testing.T) {
	bubble(t, func(t *testing.T) {
		var calls atomic.Int32
		c := coordinatortest.New(t, coordinatortest.Config{Wrap: func(_ int, s storage.Store) storage.Store {
			return &deafWaker{Store: s, calls: &calls}
		}})
		c.Elect()
		advance(time.Minute)
		if n := calls.Load(); n < 10 || n > 40 {
			t.Errorf("listening was begun %d times in a minute", n)
		}
	})
}

type deafWaker struct {
	storage.Store
	calls *atomic.Int32
}

func (d *deafWaker) Watch(context.Context, func(storage.WakeUp)) error {
	d.calls.Add(1)
	return errors.New("connection refused")
}

// A call that the store never answers does no harm: it is answered by an error in time, and the
// next call follows.
func TestSwallowedCalls(t *testing.T) {
	t.Parallel()
	for _, op := range []string{"heartbeat", "snapshot", "commit", "report", "stamp"} {
		t.Run(op, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				c, taps := tapped(t, coordinatortest.Config{})
				c.Elect()
				_, ctx, _ := c.Node(0).Leadership()
				release := make(chan struct{})
				defer close(release)
				var swallowed atomic.Bool
				taps[0].set(func(call context.Context, what string, _ any, _ error) error {
					if what != op || swallowed.Swap(true) {
						return nil
					}
					if op == "stamp" { // the supervisor issues it itself, and relies on the context
						<-call.Done()
						return call.Err()
					}
					<-release
					return storage.ErrUnavailable
				}, nil)
				c.Register(daemon.Spec{ID: "acme:x"}, worker)
				advance(20 * time.Second)
				if !swallowed.Load() || ctx.Err() != nil {
					t.Errorf("swallowed %v, leadership: %v", swallowed.Load(), context.Cause(ctx))
				}
				if c.Holder("acme:x/0") != 0 {
					t.Error("the unit does not run")
				}
			})
		})
	}
}

// An agent that is refused in a tight loop disturbs nothing else. Later generations are higher than
// the one in its refusals.
func TestRefusedInALoop(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := coordinatortest.New(t, coordinatortest.Config{})
		high := time.Now().Add(time.Hour).UnixMilli()
		var generations record[int64]
		c.Register(daemon.Spec{ID: "acme:x"}, daemon.AgentFunc(func(ctx context.Context, a *daemon.Assignment) error {
			generations.add(a.Generation)
			if a.Generation > high {
				return worker(ctx, a)
			}
			for range 100_000 {
				a.ReportRefused(high)
			}
			return daemon.ErrStale
		}))
		c.WaitUntil("a higher generation runs", func() bool { g := generations.all(); return len(g) > 0 && g[len(g)-1] > high })
		if c.Leader() != 0 {
			t.Error("leadership was lost")
		}
	})
}
