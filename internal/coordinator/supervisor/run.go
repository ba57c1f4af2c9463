package supervisor

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/internal/backoff"
	"github.com/emitd/emitd/internal/channel"
	"github.com/emitd/emitd/internal/coordinator/member"
)

// run is one generation of one unit. It has one goroutine at a time: begin's, and then one for each attempt, which
// begins the next attempt or ends the run as the last thing it does. Commands reach it through ctx and the two
// flags.
type run struct {
	s     *Supervisor
	fence daemon.Fence
	term  int64
	spec  daemon.Spec

	ctx          context.Context
	cancel       context.CancelCauseFunc
	draining     flag
	abandoned    atomic.Bool
	agentRunning atomic.Bool                       // the agent's code may execute
	awaited      sync.Once                         // see stopAwaiting
	assignment   atomic.Pointer[daemon.Assignment] // of the newest attempt
	spans        spans

	// Only the run's goroutine uses the fields below.
	agent    daemon.Agent
	started  bool
	failures int
}

func newRun(s *Supervisor, f daemon.Fence, term int64, spec daemon.Spec) *run {
	r := &run{
		s: s, fence: f, term: term, spec: spec, draining: flag{c: make(chan struct{})},
	}
	ctx := s.ctx
	if s.cfg.Validity != nil {
		ctx = daemon.WithValidity(ctx, r.trust)
	}
	r.ctx, r.cancel = context.WithCancelCause(ctx)
	return r
}

// log returns the run's logger. It is made when it is needed: most runs log nothing, and a node may have thousands.
func (r *run) log() *slog.Logger {
	return r.s.cfg.Logger.With("unit", r.fence.Unit.String(), "generation", r.fence.Generation)
}

// stopAwaiting says, once, that Wait need not wait for the run any more.
func (r *run) stopAwaiting() { r.awaited.Do(r.s.awaitedDone) }

// trust returns the validity of the run's assignment. An abandoned run has none, because the unit
// may belong to another node by now.
func (r *run) trust() time.Duration {
	if r.abandoned.Load() {
		return 0
	}
	return r.s.cfg.Validity(r.fence.Unit)
}

// begin finds the agent, stamps the fence, and makes the first attempt.
func (r *run) begin() {
	r.s.tel.started(r)
	agent, ok := r.s.cfg.Agent(r.fence.Unit.Daemon)
	if !ok {
		r.end(Report{Ending: member.NoAgent, Err: ErrNoAgent})
		return
	}
	if end, ok := r.stamp(); !ok {
		r.end(end)
		return
	}
	r.s.cfg.OnReport(Report{Kind: Stamped, Fence: r.fence})
	r.agent = agent
	r.next()
}

// refuse ends a run that never began.
func (r *run) refuse(err error) { r.end(Report{Ending: member.FenceRefused, Err: err}) }

// end is the end of the run.
func (r *run) end(rep Report) {
	r.s.tel.ended(r, rep)
	rep.Kind, rep.Fence, rep.Failures = Ended, r.fence, r.failures
	r.cancel(context.Canceled)
	r.s.free(r)
	r.s.cfg.OnReport(rep)
	r.stopAwaiting()
}

// next begins the next attempt, unless the run is over.
func (r *run) next() {
	if r.over() {
		r.end(Report{Ending: member.Returned})
		return
	}
	go r.attempt()
}

// attempted is what follows an attempt: the end of the run or, after a pause, the next attempt.
func (r *run) attempted(lived time.Duration, err error) {
	v := r.interpret(err)
	if v.over {
		r.end(v.end)
		return
	}
	pause := r.s.cfg.RestartMin
	if v.failed {
		lasted := lived >= r.s.cfg.ResetAfter
		if lasted {
			r.failures = 0
		}
		r.failures++
		if r.spec.MaxFailures >= 0 && r.failures >= r.spec.MaxFailures {
			r.log().Error("run gave up", "failures", r.failures, "error", v.end.Err)
			r.end(Report{Ending: member.GaveUp, Err: v.end.Err})
			return
		}
		pause = r.backoff(r.failures)
		r.log().Warn("attempt failed", "failures", r.failures, "restart_in", pause, "error", v.end.Err)
		r.s.cfg.OnReport(Report{Kind: Failed, Fence: r.fence, Err: v.end.Err, Failures: r.failures, RetryIn: pause, Lasted: lasted})
	} else {
		r.failures = 0
	}
	if r.sleep(pause) {
		r.s.tel.restarted(r, v.end.Err)
	}
	r.next()
}

// over reports whether the agent should not be called (again).
func (r *run) over() bool { return r.ctx.Err() != nil || r.draining.isSet() }

// stamp stamps the fence. If it cannot, it returns false and the end of the run.
func (r *run) stamp() (Report, bool) {
	var last error
	for n := 1; ; n++ {
		switch {
		case r.ctx.Err() != nil:
			return Report{Ending: member.FenceRefused, Err: boundError(errors.Join(fmt.Errorf("fence not stamped before the run was cancelled: %w", context.Cause(r.ctx)), last))}, false
		case r.draining.isSet():
			return Report{Ending: member.Returned}, false
		}
		ctx, cancel := context.WithTimeout(r.ctx, r.s.cfg.StampTimeout)
		last = r.s.cfg.Stamp(ctx, r.fence)
		cancel()
		switch {
		case last == nil:
			return Report{}, true
		case errors.Is(last, daemon.ErrStale):
			r.held(last)
			return Report{Ending: member.FenceRefused, Err: boundError(last)}, false
		case r.ctx.Err() == nil:
			pause := r.backoff(n)
			r.log().Warn("fence not stamped", "attempt", n, "retry_in", pause, "error", boundError(last))
			r.sleep(pause)
		}
	}
}

// attemptResult is what the return of an attempt means.
type attemptResult struct {
	over   bool // the run is over; end says how
	failed bool // the attempt failed; end.Err says how
	end    Report
}

// interpret interprets the return of an attempt, in the order of the package comment.
func (r *run) interpret(err error) attemptResult {
	r.held(err)
	switch {
	case r.over():
		if r.expected(err) {
			err = nil
		}
		return attemptResult{over: true, end: Report{Ending: member.Returned, Err: boundError(err)}}
	case errors.Is(err, daemon.ErrStale):
		return attemptResult{over: true, end: Report{Ending: member.FenceRefused, Err: boundError(err)}}
	case errors.Is(err, daemon.ErrRelease):
		return attemptResult{over: true, end: Report{Ending: member.Released, Err: boundError(err)}}
	}
	return attemptResult{failed: err != nil, end: Report{Err: boundError(err)}}
}

// expected reports whether err is only what an agent returns when it is asked to end.
func (r *run) expected(err error) bool {
	for _, e := range []error{context.Canceled, context.DeadlineExceeded, daemon.ErrRelease, ErrStalled, context.Cause(r.ctx)} {
		if e != nil && errors.Is(err, e) {
			return true
		}
	}
	return false
}

// held reports which generation a fence holds, if err contains it.
func (r *run) held(err error) {
	var stale *daemon.StaleError
	if errors.As(err, &stale) {
		r.s.cfg.OnFenceHeld(stale.HeldGeneration)
	}
}

// backoff returns the pause after n failures in a row. It doubles each time, with jitter, so that
// runs that failed together do not restart together.
func (r *run) backoff(n int) time.Duration {
	shortest := r.s.cfg.RestartMin
	return max(backoff.Policy{First: shortest, Limit: r.s.cfg.RestartMax}.Jittered(n), shortest)
}

// sleep waits for d and returns true, or returns false as soon as the run is cancelled or drained.
func (r *run) sleep(d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-r.ctx.Done():
	case <-r.draining.done():
	}
	return false
}

// flag is a signal that is set once.
type flag struct {
	once sync.Once
	c    chan struct{}
}

// set sets the flag, and reports whether this call was the first.
func (f *flag) set() (first bool) {
	f.once.Do(func() { close(f.c); first = true })
	return first
}

func (f *flag) done() <-chan struct{} { return f.c }

func (f *flag) isSet() bool { return channel.IsClosed(f.c) }
