package worker

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/emitd/emitd/internal/backoff"
	"github.com/emitd/emitd/queue"
)

const (
	// saturatedWait is how long a claim waits if types at their limit are left out: one of
	// their places may become free meanwhile.
	saturatedWait = time.Second
	// releaseTimeout is the time limit for finding and releasing the jobs of a claim call that was
	// cancelled.
	releaseTimeout = 2 * time.Second
)

// retries are the pauses after a failed call of the broker.
var retries = backoff.Policy{First: 100 * time.Millisecond, Limit: 5 * time.Second}

// claims claims jobs and starts their runs until ctx ends.
func (w *Worker) claims(ctx context.Context, jobs *sync.WaitGroup) {
	failures := 0
	for ctx.Err() == nil {
		n, types, saturated := w.capacity()
		if n <= 0 {
			select {
			case <-ctx.Done():
			case <-w.freed:
			}
			continue
		}
		req := queue.ClaimRequest{
			Worker: w.cfg.Name, Types: types, Max: n, Wait: w.cfg.Wait, Visibility: w.cfg.Visibility,
			RequestID: strings.ToLower(rand.Text()[:16]),
		}
		if saturated {
			req.Wait = min(req.Wait, saturatedWait)
		}
		sentAt := time.Now()
		claims, err := w.svc.Claim(ctx, w.cfg.Queue, req)
		switch {
		case ctx.Err() != nil:
			w.releaseUnstarted(ctx, req, claims, err)
			return
		case err != nil:
			w.cfg.Hooks.erred(fmt.Errorf("claim: %w", err))
			failures++
			_ = backoff.Sleep(ctx, retries.Jittered(failures))
			continue
		}
		failures = 0
		for _, c := range claims[:min(n, len(claims))] {
			w.start(ctx, c, sentAt, jobs)
		}
		if len(claims) > n { // the broker returned more than was asked for
			w.releaseUnstarted(ctx, req, claims[n:], nil)
		}
		if len(claims) == 0 && time.Since(sentAt) < req.Wait/2 {
			_ = backoff.Sleep(ctx, backoff.Jitter(saturatedWait)) // the broker does not wait
		}
	}
}

// start starts the run of a claimed job.
func (w *Worker) start(ctx context.Context, c queue.Claimed, sentAt time.Time, jobs *sync.WaitGroup) {
	if c.For <= 0 {
		c.For = w.cfg.Visibility
	}
	r := newRun(ctx, c, sentAt)
	w.takePlace(r)
	jobs.Go(func() { w.work(r) })
}

// releaseUnstarted releases the jobs of a cancelled claim call. If its answer was lost, the repeated call
// returns the same jobs; otherwise they would have to time out.
func (w *Worker) releaseUnstarted(ctx context.Context, req queue.ClaimRequest, claims []queue.Claimed, err error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseTimeout)
	defer cancel()
	if queue.TagOf(err) == queue.UnknownOutcome {
		req.Wait = 0
		if claims, err = w.svc.Claim(ctx, w.cfg.Queue, req); err != nil {
			return
		}
	}
	if len(claims) == 0 {
		return
	}
	what := make([]queue.Settlement, len(claims))
	for i, c := range claims {
		what[i] = queue.Settlement{Verb: queue.Release, ID: c.Job.ID, Token: c.Token}
	}
	if _, err := w.svc.Settle(ctx, w.cfg.Queue, what); err != nil {
		w.cfg.Hooks.erred(fmt.Errorf("release what was claimed last: %w", err))
	}
}

// heartbeat extends the claims every third of the visibility timeout.
func (w *Worker) heartbeat(ctx context.Context) {
	every := w.cfg.Visibility / 3
	tick := time.NewTicker(every)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		runs := w.active()
		for len(runs) > 0 {
			n := min(len(runs), queue.MaxCall)
			w.extend(ctx, runs[:n], every)
			runs = runs[n:]
		}
	}
}

// extend sends the heartbeats of some runs, and cancels those whose claims are over.
func (w *Worker) extend(ctx context.Context, runs []*run, limit time.Duration) {
	what := make([]queue.Settlement, len(runs))
	for i, r := range runs {
		what[i] = queue.Settlement{Verb: queue.Extend, ID: r.claim.Job.ID, Token: r.claim.Token, Visibility: w.cfg.Visibility}
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	sentAt := time.Now()
	outcomes, err := w.svc.Settle(ctx, w.cfg.Queue, what)
	if err != nil {
		if ctx.Err() == nil || errors.Is(context.Cause(ctx), context.DeadlineExceeded) {
			w.cfg.Hooks.erred(fmt.Errorf("heartbeat of %d jobs: %w", len(runs), err))
		}
		return
	}
	for i, o := range outcomes {
		switch {
		case i >= len(runs):
		case o.Err == nil:
			runs[i].extended(sentAt, w.cfg.Visibility)
		case !transient(o.Err):
			runs[i].loseClaim(o.Err)
		}
	}
}
