package supervisor

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"
	"runtime/pprof"
	"strconv"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/internal/channel"
)

// ErrStalled is the failure of an attempt that made no progress for Spec.StallTimeout.
var ErrStalled = errors.New("no progress within the stall timeout")

// attempt is one call of Agent.Run.
//
// It also waits for the run's readiness and detects that the agent is stalled. It has a goroutine for that only while
// one of the two can happen: most attempts last for days, and a node may have thousands.
type attempt struct {
	run    *run
	began  time.Time
	a      *daemon.Assignment
	ctx    context.Context
	cancel context.CancelCauseFunc

	returned bool
	err      error // of the agent, or that it did not return

	done    chan struct{}  // the agent has returned; nil if there is no such goroutine
	watch   sync.WaitGroup // the goroutine
	stalled bool
	lived   time.Duration // until the progress ceased
}

// attempt calls Agent.Run once, on a goroutine of its own. What follows is the last thing that this goroutine does,
// in a deferred call, because the agent may panic or call runtime.Goexit. The goroutine stays here while the agent
// runs, so this function uses little stack.
func (r *run) attempt() {
	t := r.newAttempt()
	defer t.finish()
	t.err = r.agent.Run(t.ctx, t.a)
	t.returned = true
}

// newAttempt prepares the call of the agent by this goroutine.
func (r *run) newAttempt() *attempt {
	t := &attempt{run: r, began: time.Now(), a: daemon.NewAssignment(r.fence, r.term, r.s.cfg.Node, r.s.cfg.OnFenceHeld), err: errGoexit}
	t.ctx, t.cancel = context.WithCancelCause(r.ctx)
	r.agentRunning.Store(true)
	r.s.tel.active(r, 1)
	r.drainable(t.a)
	if !r.spec.WaitReady {
		r.ready()
	}
	if !r.started || r.spec.StallTimeout > 0 {
		t.done = make(chan struct{})
		t.watch.Go(t.wait)
	}
	t.ctx = pprof.WithLabels(t.ctx, pprof.Labels(
		labelUnit, r.fence.Unit.String(), labelGeneration, strconv.FormatInt(r.fence.Generation, 10)))
	pprof.SetGoroutineLabels(t.ctx) // after the goroutine above was started: it is none of the agent's
	return t
}

// finish is the end of the attempt's goroutine, however the agent has ended.
func (t *attempt) finish() {
	r := t.run
	if !t.returned {
		if p := recover(); p != nil {
			t.err = newPanic(p)
		}
		r.log().Error("agent did not return", "error", t.err, "stack", truncate(string(debug.Stack()), maxStack))
	}
	lived := time.Since(t.began)
	r.s.tel.active(r, -1)
	r.agentRunning.Store(false)
	pprof.SetGoroutineLabels(context.Background()) // the next attempt's goroutines inherit them
	if t.done != nil {
		close(t.done)
		t.watch.Wait()
	}
	t.cancel(context.Canceled)
	if t.stalled {
		lived, t.err = t.lived, t.stallError()
	}
	r.attempted(lived, t.err)
}

// stallError returns the failure of a stalled attempt that has returned.
func (t *attempt) stallError() error {
	if t.err == nil || errors.Is(t.err, context.Canceled) || errors.Is(t.err, context.DeadlineExceeded) {
		return t.failure()
	}
	return fmt.Errorf("%w: %w", t.failure(), t.err)
}

func (t *attempt) failure() error { return fmt.Errorf("%w of %v", ErrStalled, t.run.spec.StallTimeout) }

// drainable makes a the assignment that begins to drain when the run does.
func (r *run) drainable(a *daemon.Assignment) {
	r.assignment.Store(a)
	if r.draining.isSet() {
		r.s.tel.drained(r)
		a.BeginDrain()
	}
}

// drain asks the run to finish the work in flight.
func (r *run) drain() {
	if !r.draining.set() {
		return
	}
	if a := r.assignment.Load(); a != nil {
		r.s.tel.drained(r)
		a.BeginDrain()
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

// wait waits for readiness and detects a stall. Meanwhile the attempt's own goroutine only calls the agent, so it is
// this one that reports Started.
//
// A stalled attempt counts as having lasted until its progress ceased. Otherwise an agent that never works could reach
// ResetAfter while its stall was not noticed yet, and its failures would be reset.
func (t *attempt) wait() {
	var ready <-chan struct{}
	if !t.run.started {
		ready = t.a.ReadyDone()
	}
	stall := newStall(t.run.spec.StallTimeout)
	defer stall.stop()
	for ready != nil || stall.ticker != nil {
		select {
		case <-ready:
			ready = nil
			t.run.ready()
		case <-stall.tick():
			switch {
			case t.run.over():
				stall.stop() // the deadline of the drain is enforced elsewhere
			case stall.expired(t.a.Progressed()):
				t.stalled = true
				t.lived = time.Since(t.began) - t.run.spec.StallTimeout - t.run.spec.StallTimeout/stallTicks
				t.cancel(ErrStalled)
				t.awaitReturn()
				return
			}
		case <-t.done:
			if channel.IsClosed(ready) { // both may have happened at the same time
				t.run.ready()
			}
			return
		}
	}
}

// awaitReturn waits for a stalled attempt to return. If the attempt ignores its cancelled context for StopTimeout,
// that is reported and logged. Only its return ends it.
func (t *attempt) awaitReturn() {
	r := t.run
	timer := time.NewTimer(r.s.cfg.StopTimeout)
	defer timer.Stop()
	for {
		select {
		case <-t.done:
			return
		case <-timer.C:
			if r.over() {
				continue // the caller of Drain or Cancel waits for the run, and abandons it
			}
			r.s.cfg.OnReport(Report{
				Kind: Failed, Fence: r.fence, Failures: r.failures + 1, Hangs: true, Lasted: t.lived >= r.s.cfg.ResetAfter,
				Err: fmt.Errorf("%w, and its cancelled context is ignored", t.failure()),
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
