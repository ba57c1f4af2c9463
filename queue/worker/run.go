package worker

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"
	"unicode/utf8"

	"github.com/emitd/emitd/queue"
)

// run is the execution of one claimed job.
type run struct {
	claim  queue.Claimed
	ctx    context.Context // the handler's context; ended by a lost claim, the worker's stop, or the run's end
	cancel context.CancelCauseFunc

	mu       sync.Mutex
	deadline time.Time // end of the claim, by the local clock
	timer    *time.Timer
	refused  bool // the broker said that the claim is over
}

// newRun creates a run.
func newRun(ctx context.Context, c claimed) *run {
	r := &run{claim: c.Claimed, deadline: c.deadline}
	r.ctx, r.cancel = context.WithCancelCause(context.WithoutCancel(ctx))
	r.timer = time.AfterFunc(time.Until(r.deadline), func() {
		r.cancel(fmt.Errorf("%w: no heartbeat was answered in time", ErrClaimLost))
	})
	return r
}

// extended moves the deadline after a heartbeat that was sent at sentAt.
func (r *run) extended(sentAt time.Time, length time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if until := sentAt.Add(length); until.After(r.deadline) {
		r.deadline = until
		r.timer.Reset(time.Until(until))
	}
}

// loseClaim cancels the run because the broker said that the claim is over.
func (r *run) loseClaim(err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.refused = true
	r.cancel(fmt.Errorf("%w: %w", ErrClaimLost, err))
}

func (r *run) stop() { r.cancel(ErrStopped) }

// claimLost reports whether the broker has said that the claim is over.
func (r *run) claimLost() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.refused
}

// reportDeadline returns the time after which a report is useless.
func (r *run) reportDeadline(grace time.Duration) time.Time {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.deadline.Add(grace)
}

// work runs the handler of a claimed job and reports the result.
func (w *Worker) work(r *run) {
	defer w.freePlace(r)
	defer r.timer.Stop()
	defer r.cancel(nil)
	job := r.claim.Job
	w.cfg.Hooks.claimed(job)
	begin := time.Now()
	ctx, span := w.meters.begin(r.ctx, job)
	h := w.handlers[job.Type]
	if h == nil {
		h = releaseUnknownType
	}
	result, err := guard(ctx, h, r, w.draining)
	took := time.Since(begin)
	w.meters.end(span, job.Type, took, err)
	if p, ok := errors.AsType[*PanicError](err); ok {
		w.cfg.Logger.Error("handler panicked", "queue", w.cfg.Queue, "job", job.ID, "type", job.Type, "panic", p.Error(), "stack", string(p.Stack))
	}
	s := w.settlementOf(r, result, err)
	out, problem := w.report(r, s)
	switch {
	case problem != nil:
		w.cfg.Hooks.lost(job, problem)
	case s.Verb == queue.Complete:
		w.cfg.Hooks.completed(job, took)
	case s.Verb == queue.Release:
		w.cfg.Hooks.released(job)
	default:
		w.cfg.Hooks.failed(job, err, out.State)
	}
}

// settlementOf converts a handler's result into a settlement.
func (w *Worker) settlementOf(r *run, result []byte, err error) queue.Settlement {
	s := queue.Settlement{ID: r.claim.Job.ID, Token: r.claim.Token}
	// An error that a handler returns after its context has ended is about the context, not
	// about the job.
	interrupted := r.ctx.Err() != nil && !isPanic(err)
	switch {
	case err == nil:
		s.Verb, s.Result = queue.Complete, result
	case errors.Is(err, ErrRelease) || interrupted:
		s.Verb = queue.Release
	default:
		s.Verb, s.Cause = queue.Fail, truncate(err.Error(), queue.MaxCause)
		if v, ok := errors.AsType[*outcomeError](err); ok {
			s.Dead, s.RetryAfter = v.dead, v.after
		}
		if s.RetryAfter != nil {
			d := min(max(*s.RetryAfter, 0), longestRetry)
			s.RetryAfter = &d
		}
	}
	return s
}

// longestRetry is the limit of RetryAfter, so that a mistaken unit is not refused as absurd.
const longestRetry = 10 * 365 * 24 * time.Hour

// releaseUnknownType releases a job whose type was not asked for.
func releaseUnknownType(_ context.Context, info queue.Info, _ []byte, _ <-chan struct{}) ([]byte, error) {
	return nil, fmt.Errorf("no handler of type %q: %w", info.Type, ErrRelease)
}

func isPanic(err error) bool {
	_, ok := errors.AsType[*PanicError](err)
	return ok
}

// truncate shortens a text to n bytes without splitting a character, and makes it valid UTF-8.
func truncate(s string, n int) string {
	s = strings.ToValidUTF8(s, "?")
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}

// report settles a claim. It repeats the call as long as there is no answer and the claim may still
// hold. An error means that the broker has not recorded the result: the claim was over, or time was
// up.
func (w *Worker) report(r *run, s queue.Settlement) (queue.Outcome, error) {
	// This is checked only once, before the first report: if a report took effect and its
	// answer was lost, a heartbeat is refused too. From here on the answer to the report
	// decides.
	if r.claimLost() {
		return queue.Outcome{}, context.Cause(r.ctx)
	}
	for failures := 1; ; failures++ {
		out, err := w.reports.settle(s)
		switch {
		case err == nil && out.Err == nil:
			return out, nil
		case err == nil && !transient(out.Err):
			return out, out.Err
		case err == nil:
			err = out.Err
		}
		w.failed("report", fmt.Errorf("%s job %s: %w", s.Verb, s.ID, err))
		if !transient(err) || time.Now().After(r.reportDeadline(w.cfg.Visibility)) {
			return queue.Outcome{}, fmt.Errorf("%s: %w", s.Verb, err)
		}
		if err := w.reports.sleep(retries.Jittered(failures)); err != nil {
			return queue.Outcome{}, err
		}
	}
}

// transient reports whether the same call may succeed later. Every error may, except a refusal of
// the call's content.
func transient(err error) bool {
	switch queue.TagOf(err) {
	case queue.StaleClaim, queue.JobNotFound, queue.QueueNotFound, queue.BadRequest, queue.PayloadTooLarge, queue.TooManyJobs:
		return false
	}
	return true
}
