package supervisor

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"runtime/pprof"
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/internal/channel"
)

// ErrStalled is the failure of an attempt that made no progress for Spec.StallTimeout.
var ErrStalled = errors.New("no progress within the stall timeout")

// attempt calls Agent.Run once, on a goroutine of its own. It returns how long the attempt lasted,
// and its result. A stalled attempt counts as having lasted until its progress ceased. Otherwise an
// agent that never works could reach ResetAfter while its stall was not noticed yet, and its
// failures would be reset.
func (r *run) attempt(agent daemon.Agent) (lived time.Duration, err error) {
	began := time.Now()
	ctx, cancel := context.WithCancelCause(r.ctx)
	defer cancel(context.Canceled)
	a := daemon.NewAssignment(r.fence, r.term, r.s.cfg.Node, r.s.cfg.OnFenceHeld)
	entered, result := make(chan struct{}), make(chan error, 1)
	r.agentRunning.Store(true)
	go r.enter(agent, handle{ctx: ctx, a: a, entered: entered, result: result})

	var ready <-chan struct{} = entered
	if r.spec.WaitReady {
		ready = a.ReadyDone()
	}
	draining := r.draining.done()
	stall := newStall(r.spec.StallTimeout)
	defer stall.stop()
	for {
		select {
		case <-ready:
			ready = nil
			r.ready()
		case <-draining:
			draining = nil
			a.BeginDrain()
			r.s.tel.drained(r)
			stall.stop() // the drain deadline is enforced elsewhere
		case <-stall.tick():
			if r.over() {
				stall.stop()
			} else if stall.expired(a.Progressed()) {
				cancel(ErrStalled)
				lived = time.Since(began) - r.spec.StallTimeout - r.spec.StallTimeout/stallTicks
				return lived, r.stalled(result)
			}
		case err := <-result:
			if channel.IsClosed(ready) { // both may have happened at the same time
				r.ready()
			}
			return time.Since(began), err
		}
	}
}

// ready reports Started, once per run.
func (r *run) ready() {
	if !r.started {
		r.started = true
		r.s.tel.ready(r)
		r.s.cfg.OnReport(Report{Kind: Started, Fence: r.fence})
	}
}

// stalled waits for a cancelled attempt to return. If the attempt ignores its cancelled context for
// StopTimeout, that is reported and logged. Only its return ends it.
func (r *run) stalled(result <-chan error) error {
	fail := fmt.Errorf("%w of %v", ErrStalled, r.spec.StallTimeout)
	timer := time.NewTimer(r.s.cfg.StopTimeout)
	defer timer.Stop()
	for {
		select {
		case err := <-result:
			if err == nil || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
				return fail
			}
			return fmt.Errorf("%w: %w", fail, err)
		case <-timer.C:
			if r.over() {
				continue // the caller of Drain or Cancel waits for the run, and abandons it
			}
			r.s.cfg.OnReport(Report{
				Kind: Failed, Fence: r.fence, Failures: r.failures + 1,
				Err: fmt.Errorf("%w, and its cancelled context is ignored", fail),
			})
			r.logIgnoredCancel("stalled attempt ignores its cancelled context")
		}
	}
}

// The labels of an attempt's goroutines, and of the goroutines that they start. Profiles and the
// stacks of an abandoned run are found by them.
const (
	labelUnit       = "emitd.unit"
	labelGeneration = "emitd.generation"
)

// handle is the input of an attempt's goroutine.
type handle struct {
	ctx     context.Context
	a       *daemon.Assignment
	entered chan<- struct{}
	result  chan<- error // has room for one
}

// enter calls Run, turns a panic or Goexit into an error, and always sends the result.
func (r *run) enter(agent daemon.Agent, h handle) {
	ctx := pprof.WithLabels(h.ctx, pprof.Labels(
		labelUnit, r.fence.Unit.String(), labelGeneration, strconv.FormatInt(r.fence.Generation, 10)))
	pprof.SetGoroutineLabels(ctx)
	r.s.tel.active(r, 1)
	err, returned := errGoexit, false
	defer func() {
		if !returned {
			if p := recover(); p != nil {
				err = newPanic(p)
			}
			r.log.Error("agent did not return", "error", err, "stack", truncate(string(debug.Stack()), maxStack))
		}
		r.s.tel.active(r, -1)
		r.agentRunning.Store(false)
		h.result <- err
	}()
	close(h.entered)
	err = agent.Run(ctx, h.a)
	returned = true
}

// errGoexit is the failure of an agent that ended its goroutine.
var errGoexit = errors.New("agent called runtime.Goexit")

// Bounds of the texts that come from agents.
const (
	maxError = 1 << 10 // bytes of an error's text in a report
	maxStack = 8 << 10 // bytes of a stack in the log
)

// bounded is an error of an agent with a text of bounded length.
type bounded struct {
	text  string
	cause error
}

func (e *bounded) Error() string { return e.text }
func (e *bounded) Unwrap() error { return e.cause }

// boundError bounds the text of an error; what it wraps stays.
func boundError(err error) error {
	if err == nil {
		return nil
	}
	text := err.Error()
	if len(text) <= maxError {
		return err
	}
	return &bounded{text: truncate(text, maxError), cause: err}
}

// errPanic marks the failures that are panics.
var errPanic = errors.New("panic")

// newPanic makes an error of a recovered value. It wraps a value that is an error, so that
// errors.Is finds it: a panic with daemon.ErrStale is no failure either.
func newPanic(p any) error {
	text := truncate(fmt.Sprintf("panic: %v", p), maxError)
	if cause, ok := p.(error); ok {
		return &bounded{text: text, cause: errors.Join(errPanic, cause)}
	}
	return &bounded{text: text, cause: errPanic}
}

// truncate cuts text to at most n bytes, between characters.
func truncate(text string, n int) string {
	if len(text) <= n {
		return text
	}
	const more = "…"
	n -= len(more)
	for n > 0 && !utf8.RuneStart(text[n]) {
		n--
	}
	return text[:n] + more
}

// stall detects that progress has ceased. It counts ticks and not time: after a pause of the
// process there is only one tick, so a pause does not look like a stall.
type stall struct {
	ticker *time.Ticker // nil = never
	last   int64
	quiet  int
}

// stallTicks is how many ticks without progress are a stall. A stall is detected between
// StallTimeout and a quarter later.
const stallTicks = 4

func newStall(timeout time.Duration) *stall {
	if timeout <= 0 {
		return &stall{}
	}
	return &stall{ticker: time.NewTicker(max(timeout/stallTicks, 1))}
}

func (s *stall) tick() <-chan time.Time {
	if s.ticker == nil {
		return nil
	}
	return s.ticker.C
}

func (s *stall) stop() {
	if s.ticker != nil {
		s.ticker.Stop()
		s.ticker = nil
	}
}

// expired records the progress at a tick and reports whether it has ceased.
func (s *stall) expired(progressed int64) bool {
	if progressed != s.last {
		s.last, s.quiet = progressed, 0
		return false
	}
	s.quiet++
	return s.quiet >= stallTicks
}
