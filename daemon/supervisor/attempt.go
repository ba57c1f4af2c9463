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
)

// ErrStalled is the failure of an attempt that made no progress for Spec.StallTimeout.
var ErrStalled = errors.New("no progress within the stall timeout")

// attempt calls Agent.Run once, on a goroutine of its own, and returns how long it lived and what came
// of it. A stalled one has lived until its progress ceased: what never works is not forgiven for the
// time in which nobody noticed.
func (r *run) attempt(agent daemon.Agent) (lived time.Duration, err error) {
	began := time.Now()
	ctx, cancel := context.WithCancelCause(r.ctx)
	defer cancel(context.Canceled)
	a := daemon.NewAssignment(r.fence, r.term, r.s.cfg.Node, r.s.cfg.Held)
	entered, result := make(chan struct{}), make(chan error, 1)
	r.inside.Store(true)
	go r.enter(agent, handle{ctx: ctx, a: a, entered: entered, result: result})

	var ready <-chan struct{} = entered
	if r.spec.WaitReady {
		ready = a.IsReady()
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
			stall.stop() // the drain deadline is another's affair
		case <-stall.tick():
			if r.over() {
				stall.stop()
			} else if stall.expired(a.Progressed()) {
				cancel(ErrStalled)
				lived = time.Since(began) - r.spec.StallTimeout - r.spec.StallTimeout/stallTicks
				return lived, r.stalled(result)
			}
		case err := <-result:
			if isClosed(ready) { // both may have come at once
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
		r.s.cfg.Report(Report{Kind: Started, Fence: r.fence})
	}
}

// stalled waits for a cancelled attempt. If it ignores that for StopTimeout, it is called out:
// only its return ends it.
func (r *run) stalled(result <-chan error) error {
	fail := fmt.Errorf("%w of %v", ErrStalled, r.spec.StallTimeout)
	patience := time.NewTimer(r.s.cfg.StopTimeout)
	defer patience.Stop()
	for {
		select {
		case err := <-result:
			if err == nil || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
				return fail
			}
			return fmt.Errorf("%w: %w", fail, err)
		case <-patience.C:
			if r.over() {
				continue // whoever ended the run waits for it, and abandons it
			}
			r.s.cfg.Report(Report{
				Kind: Failed, Fence: r.fence, Failures: r.failures + 1,
				Err: fmt.Errorf("%w, and its cancelled context is ignored", fail),
			})
			r.ignores("stalled attempt ignores its cancelled context")
		}
	}
}

// The labels of an attempt's goroutines, and of those they start: profiles and the stack of an
// abandoned run are found by them.
const (
	labelUnit       = "emitd.unit"
	labelGeneration = "emitd.generation"
)

// handle is what the goroutine of an attempt gets.
type handle struct {
	ctx     context.Context
	a       *daemon.Assignment
	entered chan<- struct{}
	result  chan<- error // has room for one
}

// enter calls Run, turns panic and Goexit into errors, and sends the result in every case.
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
			r.log.Error("agent did not return", "error", err, "stack", clip(string(debug.Stack()), maxStack))
		}
		r.s.tel.active(r, -1)
		r.inside.Store(false)
		h.result <- err
	}()
	close(h.entered)
	err = agent.Run(ctx, h.a)
	returned = true
}

// errGoexit is the failure of an agent that ended its goroutine.
var errGoexit = errors.New("agent called runtime.Goexit")

// Bounds of what is taken over from agents.
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

// brief bounds the text of an error; what it wraps stays.
func brief(err error) error {
	if err == nil {
		return nil
	}
	text := err.Error()
	if len(text) <= maxError {
		return err
	}
	return &bounded{text: clip(text, maxError), cause: err}
}

// errPanic marks the failures that are panics.
var errPanic = errors.New("panic")

// newPanic makes an error of a recovered value. If that is an error it can still be asked for:
// a panic because the unit is another's is no failure either.
func newPanic(p any) error {
	text := clip(fmt.Sprintf("panic: %v", p), maxError)
	if cause, ok := p.(error); ok {
		return &bounded{text: text, cause: errors.Join(errPanic, cause)}
	}
	return &bounded{text: text, cause: errPanic}
}

// clip cuts text to at most n bytes, between characters.
func clip(text string, n int) string {
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

// stall finds out that progress has ceased. It counts ticks, not time: after a pause of the
// process there is one tick, so that a pause is not taken for a stall.
type stall struct {
	ticker *time.Ticker // nil = never
	last   int64
	quiet  int
}

// stallTicks quiet ticks are a stall: found between StallTimeout and a quarter later.
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

// expired takes the progress at a tick and reports whether it has ceased.
func (s *stall) expired(progressed int64) bool {
	if progressed != s.last {
		s.last, s.quiet = progressed, 0
		return false
	}
	s.quiet++
	return s.quiet >= stallTicks
}

// isClosed reports whether c is closed; nil is not.
func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
