package daemon_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/internal/schedule"
	"github.com/emitd/emitd/storage/memory"
)

// clinic runs a periodic daemon's unit without a coordinator, on a store in memory and on virtual time.
type clinic struct {
	*testing.T
	store      *memory.Store
	begin      time.Time
	generation int64
	calls      []string // minute of the due time @ minute of the call
}

func newClinic(t *testing.T) *clinic {
	return &clinic{T: t, store: memory.Open(memory.Config{}), begin: time.Now()}
}

var reports = daemon.Unit{Daemon: "acme:reports"}

// noting makes a function that notes its calls and then does something.
func (c *clinic) noting(then func(ctx context.Context, a *daemon.Assignment) error) func(context.Context, *daemon.Assignment, time.Time) error {
	return func(ctx context.Context, a *daemon.Assignment, due time.Time) error {
		c.calls = append(c.calls, fmt.Sprintf("%g@%g", due.Sub(c.begin).Minutes(), time.Since(c.begin).Round(time.Second).Minutes()))
		if then == nil {
			return nil
		}
		return then(ctx, a)
	}
}

// run is a run of the unit under way.
type run struct {
	a      *daemon.Assignment
	cancel context.CancelFunc
	result chan error
}

// begins begins the unit's next run.
func (c *clinic) begins(p *daemon.Periodic) *run {
	c.Helper()
	c.generation++
	p.Logger = slog.New(slog.DiscardHandler)
	f := daemon.Fence{Unit: reports, Generation: c.generation}
	if err := c.store.StampFence(c.Context(), f); err != nil {
		c.Fatal(err)
	}
	ctx, cancel := context.WithCancel(daemon.WithStates(c.Context(), c.store))
	c.Cleanup(cancel)
	r := &run{a: daemon.NewAssignment(f, 1, "alpha", nil), cancel: cancel, result: make(chan error, 1)}
	go func() { r.result <- p.Run(ctx, r.a) }()
	return r
}

// drain ends a run in order.
func (c *clinic) drain(r *run) {
	c.Helper()
	r.a.BeginDrain()
	if err := <-r.result; err != nil {
		c.Fatalf("a run that drains returned %v", err)
	}
}

func (c *clinic) called(want ...string) {
	c.Helper()
	if !slices.Equal(c.calls, want) {
		c.Fatalf("called %v, want %v", c.calls, want)
	}
}

// history lists the kinds of the unit's events.
func (c *clinic) history(want ...string) {
	c.Helper()
	page, err := c.store.Events(c.Context(), 0, 1000)
	if err != nil {
		c.Fatal(err)
	}
	var got []string
	for _, e := range page.Events {
		if e.Unit == reports {
			got = append(got, strings.TrimPrefix(string(e.Kind), "periodic."))
		}
	}
	if !slices.Equal(got, want) {
		c.Fatalf("events %v, want %v", got, want)
	}
}

func (c *clinic) state() (s schedule.State) {
	c.Helper()
	found, err := c.store.UnitStates(c.Context(), reports)
	if err != nil || len(found) != 1 {
		c.Fatalf("states %v, %v", found, err)
	}
	if err := json.Unmarshal(found[0].Data, &s); err != nil {
		c.Fatal(err)
	}
	return s
}

// pass lets virtual time pass, in minutes.
func pass(minutes float64) {
	time.Sleep(time.Duration(minutes * float64(time.Minute)))
	synctest.Wait()
}

func bubble(t *testing.T, test func(*clinic)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { test(newClinic(t)) })
}

// The due times are kept over runs: none comes twice, and none is lost between two runs.
func TestPeriodicOverRuns(t *testing.T) {
	t.Parallel()
	bubble(t, func(c *clinic) {
		p := daemon.Every(10*time.Minute, c.noting(nil))
		r := c.begins(p)
		pass(20.5)
		c.called("10@10", "20@20")
		c.drain(r)
		pass(4)
		r = c.begins(p)
		pass(15)
		c.called("10@10", "20@20", "30@30")
		c.drain(r)
		pass(21) // 40, 50 and 60 pass
		r = c.begins(p)
		pass(1)
		c.called("10@10", "20@20", "30@30", "60@60.5")
		c.drain(r)
		c.history("scheduled", "started", "ended", "started", "ended", "started", "ended", "missed", "started", "ended")
		if s := c.state(); s.Schedule != "every 10m" || !s.Next.Equal(c.begin.Add(70*time.Minute)) || !s.Ended.Due.Equal(c.begin.Add(time.Hour)) {
			t.Errorf("state %+v", s)
		}
	})
}

func TestPeriodicMissed(t *testing.T) {
	t.Parallel()
	for policy, want := range map[daemon.MissedPolicy][]string{
		daemon.MissedOnce: {"60@65", "70@70"},
		daemon.MissedSkip: {"70@70"},
		daemon.MissedAll:  {"40@65", "50@65", "60@65", "70@70"},
	} {
		t.Run(string(policy), func(t *testing.T) {
			t.Parallel()
			bubble(t, func(c *clinic) {
				p := daemon.Every(10*time.Minute, c.noting(nil))
				p.Missed, p.CatchUp = policy, 3
				c.drain(c.begins(p))
				pass(65)
				r := c.begins(p)
				pass(6)
				c.called(want...)
				c.drain(r)
			})
		})
	}
}

// A drain waits for the call that is under way, and no other begins.
func TestPeriodicDrainsWhileCalled(t *testing.T) {
	t.Parallel()
	bubble(t, func(c *clinic) {
		p := daemon.Every(time.Minute, c.noting(func(context.Context, *daemon.Assignment) error {
			time.Sleep(5 * time.Minute)
			return nil
		}))
		r := c.begins(p)
		pass(2)
		r.a.BeginDrain()
		pass(3)
		select {
		case <-r.result:
			t.Fatal("the run ended while its call was under way")
		default:
		}
		pass(1.1)
		if err := <-r.result; err != nil {
			t.Fatal(err)
		}
		c.called("1@1")
		c.history("scheduled", "started", "ended")
	})
}

// A call that fails or panics is repeated with pauses, up to Attempts.
func TestPeriodicRetries(t *testing.T) {
	t.Parallel()
	bubble(t, func(c *clinic) {
		n := 0
		p := daemon.Every(time.Hour, c.noting(func(context.Context, *daemon.Assignment) error {
			if n++; n == 2 {
				panic("ouch")
			}
			return errors.New(strings.Repeat("boom", 1000))
		}))
		r := c.begins(p)
		pass(100)
		c.called("60@60", fmt.Sprintf("60@%g", 60+10.0/60), "60@60.5")
		c.history("scheduled", "started", "failed", "started", "failed", "started", "failed")
		if s := c.state(); len(s.Ended.Error) > 310 || !strings.HasPrefix(s.Ended.Error, "boom") || !s.Next.Equal(c.begin.Add(2*time.Hour)) {
			t.Errorf("state %+v", s)
		}
		c.drain(r)
	})
}

// The next attempt of a call goes on at another node, with its number.
func TestPeriodicReleases(t *testing.T) {
	t.Parallel()
	bubble(t, func(c *clinic) {
		p := daemon.Every(time.Hour, c.noting(func(_ context.Context, a *daemon.Assignment) error {
			if a.Generation == 1 {
				return fmt.Errorf("not here: %w", daemon.ErrRelease)
			}
			return nil
		}))
		r := c.begins(p)
		if err := <-r.result; !errors.Is(err, daemon.ErrRelease) {
			t.Fatal(err)
		}
		r = c.begins(p)
		pass(1)
		c.called("60@60", fmt.Sprintf("60@%g", 60+10.0/60))
		if s := c.state(); s.Ended.Attempt != 2 || s.Ended.Error != "" {
			t.Errorf("state %+v, ended %+v", s, s.Ended)
		}
		c.drain(r)
	})
}

// A run whose process is gone has not recorded the end of its call: the next one repeats it at once. What the former
// one still wants to write is refused.
func TestPeriodicAfterKill(t *testing.T) {
	t.Parallel()
	bubble(t, func(c *clinic) {
		release := make(chan struct{})
		p := daemon.Every(time.Hour, c.noting(func(_ context.Context, a *daemon.Assignment) error {
			if a.Generation == 1 {
				<-release
			}
			return nil
		}))
		old := c.begins(p)
		pass(61)
		r := c.begins(p)
		pass(1)
		c.called("60@60", "60@61")
		c.history("scheduled", "started", "failed", "started", "ended")
		close(release)
		if err := <-old.result; !errors.Is(err, daemon.ErrStale) {
			t.Errorf("the former run ended with %v", err)
		}
		pass(1)
		c.called("60@60", "60@61")
		c.history("scheduled", "started", "failed", "started", "ended")
		c.drain(r)
	})
}

// A run that is cancelled still records the end of a call that succeeded.
func TestPeriodicRecordsTheEndWhenCancelled(t *testing.T) {
	t.Parallel()
	bubble(t, func(c *clinic) {
		p := daemon.Every(time.Hour, c.noting(func(ctx context.Context, _ *daemon.Assignment) error {
			<-ctx.Done()
			return nil
		}))
		r := c.begins(p)
		pass(60.5)
		r.cancel()
		if err := <-r.result; !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
		c.history("scheduled", "started", "ended")
	})
}

// The wall clock counts: a store that does not answer delays a call, and does not repeat it.
func TestPeriodicWhileTheStoreIsAway(t *testing.T) {
	t.Parallel()
	bubble(t, func(c *clinic) {
		away := &absent{Store: c.store}
		p := daemon.Every(10*time.Minute, c.noting(nil))
		p.Logger = slog.New(slog.DiscardHandler)
		f := daemon.Fence{Unit: reports, Generation: 1}
		if err := c.store.StampFence(c.Context(), f); err != nil {
			c.Fatal(err)
		}
		a, result := daemon.NewAssignment(f, 1, "alpha", nil), make(chan error, 1)
		go func() { result <- p.Run(daemon.WithStates(c.Context(), away), a) }()
		pass(9)
		away.lost.Store(3) // these writes happen, and their answers are lost
		pass(3)
		if len(c.calls) != 1 || !strings.HasPrefix(c.calls[0], "10@10") {
			c.Errorf("called %v", c.calls)
		}
		c.history("scheduled", "started", "ended")
		away.away.Store(true)
		pass(10)
		away.away.Store(false)
		pass(1)
		if len(c.calls) != 2 || !strings.HasPrefix(c.calls[1], "20@22") {
			c.Errorf("called %v", c.calls)
		}
		a.BeginDrain()
		if err := <-result; err != nil {
			c.Error(err)
		}
	})
}

// absent is a store that is away at times, and at times loses answers.
type absent struct {
	*memory.Store
	away atomic.Bool
	lost atomic.Int32
}

var errAway = errors.New("no answer")

func (s *absent) SaveUnitState(ctx context.Context, f daemon.Fence, state daemon.UnitState, events ...daemon.Event) error {
	if s.away.Load() {
		return errAway
	}
	err := s.Store.SaveUnitState(ctx, f, state, events...)
	if s.lost.Add(-1) >= 0 {
		return errAway
	}
	return err
}

func TestPeriodicWithoutStates(t *testing.T) {
	t.Parallel()
	p := daemon.Every(time.Hour, func(context.Context, *daemon.Assignment, time.Time) error { return nil })
	err := p.Run(t.Context(), daemon.NewAssignment(daemon.Fence{Unit: reports, Generation: 1}, 1, "alpha", nil))
	if err == nil || !strings.Contains(err.Error(), "does not keep states") {
		t.Error(err)
	}
}

func TestPeriodicValidate(t *testing.T) {
	t.Parallel()
	do := func(context.Context, *daemon.Assignment, time.Time) error { return nil }
	for _, c := range []struct {
		p       *daemon.Periodic
		message string
	}{
		{daemon.Every(time.Second, do), ""},
		{daemon.Cron("@daily", do), ""},
		{&daemon.Periodic{Cron: "0 3 * * *", TimeZone: "UTC", Missed: daemon.MissedAll, CatchUp: 100, Attempts: 1, Do: do}, ""},
		{daemon.Every(0, do), "the interval is 0s, want 1s or more"},
		{daemon.Every(-time.Minute, do), "the interval is -1m0s"},
		{daemon.Every(time.Hour, nil), "no function"},
		{daemon.Cron("0 0 30 2 *", do), "never comes"},
		{daemon.Cron("", do), "the interval is 0s"},
		{&daemon.Periodic{Cron: "@daily", Interval: time.Hour, Do: do}, "give one of them"},
		{&daemon.Periodic{Cron: "@daily", TimeZone: "Mars/Olympus", Do: do}, `"Mars/Olympus" is not known`},
		{&daemon.Periodic{Interval: time.Hour, TimeZone: "Europe/Berlin", Do: do}, "without a cron line"},
		{&daemon.Periodic{Interval: time.Hour, Missed: "never", Do: do}, "want once, skip or all"},
		{&daemon.Periodic{Interval: time.Hour, CatchUp: 101, Do: do}, "want 1 to 100"},
		{&daemon.Periodic{Interval: time.Hour, Attempts: -1, Do: do}, "want 1 or more"},
	} {
		err := c.p.Validate()
		if c.message == "" && err != nil || c.message != "" && (err == nil || !strings.Contains(err.Error(), c.message)) {
			t.Errorf("%+v: %v, want %q", c.p, err, c.message)
		}
	}
}

// The kinds of event are the same in both packages.
func TestPeriodicEventKinds(t *testing.T) {
	t.Parallel()
	for public, internal := range map[daemon.EventKind]string{
		daemon.PeriodicScheduled: schedule.Scheduled, daemon.PeriodicStarted: schedule.Started, daemon.PeriodicEnded: schedule.Ended,
		daemon.PeriodicFailed: schedule.Failed, daemon.PeriodicMissed: schedule.Missed,
	} {
		if string(public) != internal {
			t.Errorf("%s and %s", public, internal)
		}
	}
}
