// Package sweeper is the built-in daemon emit:sweeper: it removes what piles up (rows of nodes
// that left, old events, expired locks, delivered messages). What there is to remove, others
// know; they bring it as tasks.
//
// A task is repeated at its interval. One repetition is as many steps as it takes: a step
// removes at most a batch of rows, under the run's fence, and a step that removed a full batch
// is followed by another after a pause, so that sweeping never holds the store's rows or a
// writer for long. Rules:
//
//  1. Every step is fenced: it gets the run's fence and must let the store refuse it. A refusal
//     (daemon.ErrStale) ends the run; the unit is another's.
//  2. Tasks do not know of each other. One that fails, hangs or panics is repeated with growing
//     pauses; the others go on.
//  3. Each step is bounded by Config.StepTimeout. Steps that time out again and again get smaller
//     batches, halved each time, until they fit; batches grow back slowly. (A table that was not
//     swept for a year must not time out for ever.)
//  4. Draining is looked at between steps; the step under way is finished.
//  5. The first repetition comes after a random part of the interval, at most a minute, so that
//     the tasks of a fresh run do not all fall upon the store at once.
//
// Nothing depends on the sweeper but space: every step may be repeated, and none may be needed.
package sweeper

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"runtime/debug"
	"sync"
	"time"

	"github.com/emitd/emitd/daemon"
)

// ID names the daemon.
const ID daemon.ID = daemon.Reserved + "sweeper"

// Spec declares the daemon: one unit, which never gives up.
func Spec() daemon.Spec { return daemon.Spec{ID: ID, Instances: 1, MaxFailures: -1} }

// Task is something to sweep.
type Task struct {
	// Name is for people: "nodes", "events".
	Name string
	// Every is the interval between two repetitions.
	Every time.Duration
	// Step removes at most limit rows under the fence and returns how many it removed; fewer
	// than limit says that nothing is left. It is never called concurrently with itself.
	Step func(ctx context.Context, fence daemon.Fence, limit int) (int, error)
}

// Config says how to sweep. The zero value is good.
type Config struct {
	// Limit is the batch size; default 500. Larger sweeps faster and locks longer.
	Limit int
	// Pause separates full batches; default 100 ms.
	Pause time.Duration
	// StepTimeout bounds one step; default 10 s.
	StepTimeout time.Duration
	// Logger defaults to slog.Default.
	Logger *slog.Logger
}

// New returns the daemon's agent. A task without name, interval or step is a programming error.
func New(tasks []Task, cfg Config) daemon.Agent {
	names := map[string]bool{}
	for _, t := range tasks {
		if t.Name == "" || t.Every <= 0 || t.Step == nil || names[t.Name] {
			panic(fmt.Sprintf("sweeper: task %q (every %v) lacks something, or is there twice", t.Name, t.Every))
		}
		names[t.Name] = true
	}
	cfg.Limit = max(cmp.Or(cfg.Limit, 500), 1)
	cfg.Pause = cmp.Or(cfg.Pause, 100*time.Millisecond)
	cfg.StepTimeout = cmp.Or(cfg.StepTimeout, 10*time.Second)
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	return &agent{tasks: tasks, cfg: cfg}
}

type agent struct {
	tasks []Task
	cfg   Config
}

var _ daemon.Agent = (*agent)(nil)

// Run sweeps until the assignment drains, ctx ends or the fence refuses.
func (g *agent) Run(ctx context.Context, a *daemon.Assignment) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	a.Ready()
	var wg sync.WaitGroup
	for _, t := range g.tasks {
		b := &broom{
			task: t, cfg: g.cfg, a: a, batch: g.cfg.Limit,
			log: g.cfg.Logger.With("task", t.Name, "unit", a.Unit.String(), "generation", a.Generation),
		}
		wg.Go(func() {
			if err := b.sweep(ctx); err != nil {
				cancel(err) // the first one counts
			}
		})
	}
	wg.Wait()
	if len(g.tasks) == 0 {
		wait(ctx, a, nil)
	}
	return context.Cause(ctx)
}

// wait returns true when c has something, and false once the run should end.
func wait(ctx context.Context, a *daemon.Assignment, c <-chan time.Time) bool {
	select {
	case <-c:
		return true
	case <-a.Draining():
	case <-ctx.Done():
	}
	return false
}

// broom is one task in one run.
type broom struct {
	task Task
	cfg  Config
	a    *daemon.Assignment
	log  *slog.Logger

	batch    int // rows of the next step
	timeouts int // in a row
	fits     int // full batches in a row that were in time
	failures int // in a row
}

// sweep repeats the task. It returns nil when the run drains or ctx ends, and daemon.ErrStale
// when the fence refuses.
func (b *broom) sweep(ctx context.Context) error {
	pause := rand.N(min(b.task.Every, time.Minute)) //nolint:gosec // jitter is no secret
	t := time.NewTimer(pause)
	defer t.Stop()
	for wait(ctx, b.a, t.C) {
		n, err := b.step(ctx)
		switch {
		case errors.Is(err, daemon.ErrStale):
			return fmt.Errorf("sweep %s: %w", b.task.Name, err)
		case ctx.Err() != nil:
			return nil
		}
		b.a.Progress(n)
		t.Reset(b.next(n, err))
	}
	return nil
}

// step runs one bounded step; a panic becomes its error.
func (b *broom) step(ctx context.Context) (n int, err error) {
	ctx, cancel := context.WithTimeout(ctx, b.cfg.StepTimeout)
	defer cancel()
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic: %.500s", fmt.Sprint(p))
			b.log.Error("sweep panicked", "error", err, "stack", string(debug.Stack()))
		}
	}()
	n, err = b.task.Step(ctx, b.a.Fence(), b.batch)
	if err != nil && errors.Is(ctx.Err(), context.DeadlineExceeded) && !errors.Is(err, context.DeadlineExceeded) {
		err = fmt.Errorf("%w: %w", context.DeadlineExceeded, err) // a driver's own word for it
	}
	return n, err
}

// The breaker: after so many timeouts in a row batches are halved, after so many full ones in
// time they are doubled.
const (
	breakAfter = 2
	mendAfter  = 10
)

// next takes the outcome of a step and returns the pause before the next one.
func (b *broom) next(n int, err error) time.Duration {
	if err != nil {
		return b.failed(err)
	}
	b.failures, b.timeouts = 0, 0
	if n < b.batch {
		return b.jitter(b.task.Every)
	}
	if b.fits++; b.fits >= mendAfter && b.batch < b.cfg.Limit {
		b.fits, b.batch = 0, min(2*b.batch, b.cfg.Limit)
	}
	return b.cfg.Pause
}

func (b *broom) failed(err error) time.Duration {
	b.failures++
	b.fits = 0
	if !errors.Is(err, context.DeadlineExceeded) {
		b.timeouts = 0
	} else if b.timeouts++; b.timeouts >= breakAfter && b.batch > 1 {
		b.timeouts, b.batch = 0, b.batch/2
	}
	pause := b.jitter(min(time.Second<<min(b.failures-1, 10), b.task.Every))
	b.log.Warn("sweep failed", "error", err, "failures", b.failures, "batch", b.batch, "retry_in", pause)
	return pause
}

// jitter returns d ±10 %.
func (b *broom) jitter(d time.Duration) time.Duration {
	return d*9/10 + rand.N(d/5+1) //nolint:gosec // jitter is no secret
}
