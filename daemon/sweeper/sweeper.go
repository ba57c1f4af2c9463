// Package sweeper is the built-in daemon emit:sweeper. It removes rows that accumulate: those of
// nodes that left, old events, released locks, delivered messages. Other packages know what can be
// removed and pass that as tasks.
//
// A task is repeated at its interval. One repetition takes as many steps as needed. A step removes
// at most one batch of rows, under the run's fence. After a step that removed a full batch, another
// follows after a pause, so that sweeping never holds the store's rows or delays a writer for long.
// Rules:
//
//  1. Every step is fenced: it gets the run's fence and must have the store check it. A refusal
//     (daemon.ErrStale) ends the run, because the unit belongs to another run.
//  2. Tasks are independent. One that fails, hangs or panics is repeated with growing pauses; the
//     others go on.
//  3. Config.StepTimeout bounds each step. Steps that time out repeatedly get smaller batches,
//     halved each time, until they fit. Batches grow back slowly. (A table that was not swept for a
//     year must not time out for ever.)
//  4. Draining is checked between steps; the current step is finished.
//  5. The first repetition comes after a random part of the interval, at most a minute, so that the
//     tasks of a new run do not all load the store at once.
//
// Without the sweeper, the store only grows. Every step may be repeated, and none is needed for correctness.
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
	"github.com/emitd/emitd/internal/backoff"
)

// ID is the ID of the daemon.
const ID daemon.ID = daemon.Reserved + "sweeper"

// Spec declares the daemon: one unit, which never gives up.
func Spec() daemon.Spec { return daemon.Spec{ID: ID, Instances: 1, MaxFailures: -1} }

// Task is something to sweep.
type Task struct {
	// Name is for people: "nodes", "events".
	Name string
	// Every is the interval between two repetitions.
	Every time.Duration
	// Step removes at most limit rows under the fence and returns how many it removed. Fewer than
	// limit means that nothing is left to remove. Calls of one Step never overlap.
	Step func(ctx context.Context, fence daemon.Fence, limit int) (int, error)
}

// Config says how to sweep. The zero value is usable.
type Config struct {
	// Limit is the batch size; default 500. A larger batch sweeps faster and locks longer.
	Limit int
	// Pause separates full batches; default 100 ms.
	Pause time.Duration
	// StepTimeout bounds one step; default 10 s.
	StepTimeout time.Duration
	// Logger defaults to slog.Default.
	Logger *slog.Logger
}

// New returns the daemon's agent. A task without name, interval or step is a programming error and
// panics.
func New(tasks []Task, cfg Config) daemon.Agent {
	names := map[string]bool{}
	for _, t := range tasks {
		if t.Name == "" || t.Every <= 0 || t.Step == nil || names[t.Name] {
			panic(fmt.Sprintf("sweeper: task %q (every %v) is incomplete or duplicated", t.Name, t.Every))
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
		b := &taskRunner{
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

// wait returns true when c has a value, and false once the run should end.
func wait(ctx context.Context, a *daemon.Assignment, c <-chan time.Time) bool {
	select {
	case <-c:
		return true
	case <-a.Draining():
	case <-ctx.Done():
	}
	return false
}

// taskRunner executes one task in one run.
type taskRunner struct {
	task Task
	cfg  Config
	a    *daemon.Assignment
	log  *slog.Logger

	batch    int // batch size of the next step
	timeouts int // in a row
	fits     int // full batches in a row that finished in time
	failures int // in a row
}

// sweep repeats the task. It returns nil when the run drains or ctx ends, and daemon.ErrStale when
// the fence refuses.
func (b *taskRunner) sweep(ctx context.Context) error {
	pause := rand.N(min(b.task.Every, time.Minute))
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
func (b *taskRunner) step(ctx context.Context) (n int, err error) {
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
		err = fmt.Errorf("%w: %w", context.DeadlineExceeded, err) // the driver used an error of its own for the deadline
	}
	return n, err
}

// Batches are halved after shrinkAfter timeouts in a row, and doubled after growAfter full batches
// in time.
const (
	shrinkAfter = 2
	growAfter   = 10
)

// next handles the outcome of a step and returns the pause before the next one.
func (b *taskRunner) next(n int, err error) time.Duration {
	if err != nil {
		return b.failed(err)
	}
	b.failures, b.timeouts = 0, 0
	if n < b.batch {
		return b.jitter(b.task.Every)
	}
	if b.fits++; b.fits >= growAfter && b.batch < b.cfg.Limit {
		b.fits, b.batch = 0, min(2*b.batch, b.cfg.Limit)
	}
	return b.cfg.Pause
}

func (b *taskRunner) failed(err error) time.Duration {
	b.failures++
	b.fits = 0
	if !errors.Is(err, context.DeadlineExceeded) {
		b.timeouts = 0
	} else if b.timeouts++; b.timeouts >= shrinkAfter && b.batch > 1 {
		b.timeouts, b.batch = 0, b.batch/2
	}
	pause := b.jitter(backoff.Policy{First: time.Second, Limit: b.task.Every}.After(b.failures))
	b.log.Warn("sweep failed", "error", err, "failures", b.failures, "batch", b.batch, "retry_in", pause)
	return pause
}

// jitter returns d ±10 %.
func (b *taskRunner) jitter(d time.Duration) time.Duration {
	return d*9/10 + rand.N(d/5+1)
}
