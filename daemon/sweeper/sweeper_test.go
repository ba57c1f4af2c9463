package sweeper

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"github.com/emitd/emitd/daemon"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var fence = daemon.Fence{Unit: daemon.Unit{Daemon: ID}, Generation: 5}

// heap is a task with that many rows to remove, and a record of its steps.
type heap struct {
	rows  int
	fail  func(limit int) error // nil = never
	steps []step
	busy  bool
}

type step struct {
	at    time.Time
	limit int
}

func (h *heap) task(name string, every time.Duration) Task {
	return Task{Name: name, Every: every, Step: func(_ context.Context, f daemon.Fence, limit int) (int, error) {
		if f != fence {
			return 0, fmt.Errorf("fence is %v", f)
		}
		if h.busy {
			return 0, errors.New("step is called concurrently with itself")
		}
		h.busy = true
		defer func() { h.busy = false }()
		h.steps = append(h.steps, step{time.Now(), limit})
		if h.fail != nil {
			if err := h.fail(limit); err != nil {
				return 0, err
			}
		}
		n := min(h.rows, limit)
		h.rows -= n
		return n, nil
	}}
}

// runs is a sweeper in a bubble.
type runs struct {
	a      *daemon.Assignment
	cancel context.CancelCauseFunc
	end    chan error
	log    *bytes.Buffer
}

func start(t *testing.T, cfg Config, tasks ...Task) *runs {
	r := &runs{a: daemon.NewAssignment(fence, 1, "n1", nil), end: make(chan error, 1), log: new(bytes.Buffer)}
	cfg.Logger = slog.New(slog.NewTextHandler(&locked{w: r.log}, nil))
	var ctx context.Context
	ctx, r.cancel = context.WithCancelCause(t.Context())
	agent := New(tasks, cfg)
	go func() { r.end <- agent.Run(ctx, r.a) }()
	return r
}

type locked struct {
	mu sync.Mutex
	w  *bytes.Buffer
}

func (l *locked) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.w.Write(p)
}

// drain ends the run, which must return nil without any time passing.
func (r *runs) drain(t *testing.T) {
	t.Helper()
	before := time.Now()
	r.a.BeginDrain()
	if err := <-r.end; err != nil {
		t.Errorf("drained: %v", err)
	}
	if d := time.Since(before); d != 0 {
		t.Errorf("draining took %v", d)
	}
}

// pass lets virtual time pass.
func pass(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

// story runs f in a bubble.
func story(t *testing.T, f func(t *testing.T)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, f)
}

func TestSweepsInBatchesWithPauses(t *testing.T) {
	story(t, func(t *testing.T) {
		h := &heap{rows: 1250}
		r := start(t, Config{Pause: time.Second}, h.task("events", time.Hour))
		pass(2 * time.Minute)
		r.drain(t)
		if h.rows != 0 || len(h.steps) != 3 {
			t.Fatalf("%d rows left after steps %v", h.rows, h.steps)
		}
		for i, s := range h.steps {
			if s.limit != 500 {
				t.Errorf("step %d with limit %d", i, s.limit)
			}
			if i > 0 && s.at.Sub(h.steps[i-1].at) != time.Second {
				t.Errorf("step %d came %v after the one before", i, s.at.Sub(h.steps[i-1].at))
			}
		}
	})
}

func TestRepeatsAtItsInterval(t *testing.T) {
	story(t, func(t *testing.T) {
		h := &heap{}
		r := start(t, Config{}, h.task("events", 10*time.Minute))
		begin := time.Now()
		pass(24 * time.Hour)
		r.drain(t)
		if first := h.steps[0].at.Sub(begin); first > time.Minute {
			t.Errorf("the first step came after %v", first)
		}
		different := map[time.Duration]bool{}
		for i := range h.steps[1:] {
			d := h.steps[i+1].at.Sub(h.steps[i].at)
			if d < 9*time.Minute || d > 11*time.Minute {
				t.Errorf("interval of %v", d)
			}
			different[d] = true
		}
		if len(different) < 10 {
			t.Error("there is no jitter")
		}
	})
}

func TestTasksStartApart(t *testing.T) {
	story(t, func(t *testing.T) {
		heaps := make([]*heap, 8)
		tasks := make([]Task, len(heaps))
		for i := range heaps {
			heaps[i] = &heap{}
			tasks[i] = heaps[i].task(fmt.Sprint("task", i), time.Hour)
		}
		r := start(t, Config{}, tasks...)
		pass(time.Minute)
		r.drain(t)
		at := map[time.Time]bool{}
		for _, h := range heaps {
			at[h.steps[0].at] = true
		}
		if len(at) < 2 {
			t.Error("all tasks started at once")
		}
	})
}

// A task that fails, hangs or panics does not disturb any other.
func TestOneBadTaskBlocksNoOther(t *testing.T) {
	for name, bad := range map[string]func(ctx context.Context, f daemon.Fence, limit int) (int, error){
		"fails":  func(context.Context, daemon.Fence, int) (int, error) { return 0, errors.New("no such table") },
		"panics": func(context.Context, daemon.Fence, int) (int, error) { panic("nil map") },
		"hangs":  func(ctx context.Context, _ daemon.Fence, _ int) (int, error) { <-ctx.Done(); return 0, ctx.Err() },
	} {
		t.Run(name, func(t *testing.T) {
			story(t, func(t *testing.T) {
				n := 0
				count := func(ctx context.Context, f daemon.Fence, limit int) (int, error) { n++; return bad(ctx, f, limit) }
				h := &heap{}
				r := start(t, Config{}, Task{Name: "bad", Every: time.Minute, Step: count}, h.task("good", time.Minute))
				pass(time.Hour)
				r.a.BeginDrain() // read only after all writers have ended
				if err := <-r.end; err != nil {
					t.Errorf("drained: %v", err)
				}
				if len(h.steps) < 50 {
					t.Errorf("the good task took %d steps in an hour", len(h.steps))
				}
				if n < 30 || n > 80 {
					t.Errorf("the bad task was tried %d times in an hour", n)
				}
				if !strings.Contains(r.log.String(), "task=bad") || strings.Contains(r.log.String(), "task=good") {
					t.Errorf("log: %.500s", r.log)
				}
			})
		})
	}
}

func TestAFailedStepIsRetriedSoon(t *testing.T) {
	story(t, func(t *testing.T) {
		n := 0
		h := &heap{rows: 10, fail: func(int) error {
			if n++; n <= 3 {
				return errors.New("store is down")
			}
			return nil
		}}
		r := start(t, Config{}, h.task("events", 24*time.Hour))
		pass(time.Minute + 10*time.Second)
		r.drain(t)
		if h.rows != 0 {
			t.Errorf("%d rows are left after %v", h.rows, h.steps)
		}
		for i, want := range []time.Duration{time.Second, 2 * time.Second, 4 * time.Second} {
			if d := h.steps[i+1].at.Sub(h.steps[i].at); d < want*9/10 || d > want*11/10 {
				t.Errorf("pause %d was %v, want about %v", i, d, want)
			}
		}
	})
}

func TestARefusalEndsTheRun(t *testing.T) {
	story(t, func(t *testing.T) {
		h := &heap{fail: func(int) error { return &daemon.StaleError{Fence: fence, HeldGeneration: 9} }}
		other := &heap{}
		r := start(t, Config{}, h.task("events", time.Hour), other.task("nodes", time.Hour))
		err := <-r.end
		var stale *daemon.StaleError
		if !errors.Is(err, daemon.ErrStale) || !errors.As(err, &stale) || stale.HeldGeneration != 9 || !strings.HasPrefix(err.Error(), "sweep events: ") {
			t.Errorf("ended with %v", err)
		}
		if len(h.steps) != 1 {
			t.Errorf("%d steps after a refusal", len(h.steps))
		}
	})
}

func TestCancelEndsTheRun(t *testing.T) {
	story(t, func(t *testing.T) {
		hang := Task{Name: "hang", Every: time.Millisecond, Step: func(ctx context.Context, _ daemon.Fence, _ int) (int, error) {
			<-ctx.Done()
			return 0, fmt.Errorf("delete: %w", ctx.Err())
		}}
		r := start(t, Config{}, hang)
		pass(time.Second)
		lost := errors.New("lost")
		r.cancel(lost)
		if err := <-r.end; !errors.Is(err, lost) {
			t.Errorf("ended with %v", err)
		}
		if strings.Contains(r.log.String(), "failed") {
			t.Errorf("a cancelled step was logged as a failure: %s", r.log)
		}
	})
}

func TestDrainFinishesTheStep(t *testing.T) {
	story(t, func(t *testing.T) {
		hold, steps := make(chan struct{}), 0
		slow := Task{Name: "slow", Every: time.Millisecond, Step: func(_ context.Context, _ daemon.Fence, limit int) (int, error) {
			steps++
			<-hold
			return limit, nil
		}}
		r := start(t, Config{}, slow)
		pass(time.Second)
		r.a.BeginDrain()
		pass(time.Second)
		select {
		case err := <-r.end:
			t.Fatalf("returned %v in the middle of a step", err)
		default:
		}
		close(hold)
		if err := <-r.end; err != nil || steps != 1 {
			t.Errorf("ended with %v after %d steps", err, steps)
		}
	})
}

// A table with too many dead rows times out; halved batches succeed.
func TestTimeoutsMakeBatchesSmaller(t *testing.T) {
	story(t, func(t *testing.T) {
		var well atomic.Bool
		h := &heap{rows: 1 << 20, fail: func(limit int) error {
			if !well.Load() && limit > 64 {
				return fmt.Errorf("delete events: %w", context.DeadlineExceeded)
			}
			return nil
		}}
		r := start(t, Config{Limit: 512, Pause: time.Second}, h.task("events", time.Hour))
		pass(10 * time.Minute)
		well.Store(true)
		pass(5 * time.Minute)
		r.drain(t)
		fits := 0
		for i := range h.steps[1:] {
			if was, is := h.steps[i].limit, h.steps[i+1].limit; is != was && is != was/2 && is != was*2 {
				t.Errorf("step %d: batch of %d after one of %d", i+1, is, was)
			}
			if h.steps[i].limit <= 64 {
				fits++
			}
		}
		if fits < 100 {
			t.Errorf("%d steps fitted", fits)
		}
		if last := h.steps[len(h.steps)-1].limit; last != 512 {
			t.Errorf("batches of %d long after the store got well", last)
		}
	})
}

// Some drivers have their own error for a statement that exceeded its deadline.
func TestTimeoutsInADriversOwnWords(t *testing.T) {
	story(t, func(t *testing.T) {
		var limits []int
		task := Task{Name: "events", Every: time.Hour, Step: func(ctx context.Context, _ daemon.Fence, limit int) (int, error) {
			limits = append(limits, limit)
			<-ctx.Done()
			return 0, errors.New("interrupted")
		}}
		r := start(t, Config{}, task)
		pass(5 * time.Minute)
		r.cancel(nil)
		<-r.end
		if last := limits[len(limits)-1]; last >= 500 {
			t.Errorf("batches stay at %d", last)
		}
		if !strings.Contains(r.log.String(), "interrupted") {
			t.Error("the driver's words are lost")
		}
	})
}

func TestOneTimeoutChangesNothing(t *testing.T) {
	story(t, func(t *testing.T) {
		n := 0
		h := &heap{rows: 1e6, fail: func(int) error {
			if n++; n%5 == 0 {
				return context.DeadlineExceeded
			}
			return nil
		}}
		r := start(t, Config{}, h.task("events", time.Hour))
		pass(5 * time.Minute)
		r.drain(t)
		for _, s := range h.steps {
			if s.limit != 500 {
				t.Fatalf("a batch of %d", s.limit)
			}
		}
	})
}

func TestStepsAreBounded(t *testing.T) {
	story(t, func(t *testing.T) {
		var left time.Duration
		task := Task{Name: "events", Every: time.Hour, Step: func(ctx context.Context, _ daemon.Fence, _ int) (int, error) {
			deadline, _ := ctx.Deadline()
			left = time.Until(deadline)
			return 0, nil
		}}
		r := start(t, Config{StepTimeout: 3 * time.Second}, task)
		pass(time.Minute)
		r.drain(t)
		if left != 3*time.Second {
			t.Errorf("a step has %v", left)
		}
	})
}

func TestProgressAndReady(t *testing.T) {
	story(t, func(t *testing.T) {
		h := &heap{rows: 3}
		r := start(t, Config{}, h.task("events", time.Hour))
		synctest.Wait()
		select {
		case <-r.a.ReadyDone():
		default:
			t.Error("not ready")
		}
		pass(time.Minute)
		if r.a.Progressed() == 0 {
			t.Error("no progress")
		}
		r.drain(t)
	})
}

func TestWithoutTasks(t *testing.T) {
	story(t, func(t *testing.T) {
		r := start(t, Config{})
		pass(time.Hour)
		r.drain(t)
	})
}

func TestSpec(t *testing.T) {
	t.Parallel()
	if err := Spec().Validate(); err != nil {
		t.Error(err)
	}
	if units := Spec().Units(); len(units) != 1 || units[0].String() != "emit:sweeper/0" {
		t.Errorf("units %v", units)
	}
}

func TestIncompleteTasks(t *testing.T) {
	t.Parallel()
	good := (&heap{}).task("events", time.Hour)
	for name, tasks := range map[string][]Task{
		"no name":     {{Every: time.Hour, Step: good.Step}},
		"no interval": {{Name: "x", Step: good.Step}},
		"no step":     {{Name: "x", Every: time.Hour}},
		"twice":       {good, good},
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: accepted", name)
				}
			}()
			New(tasks, Config{})
		}()
	}
}
