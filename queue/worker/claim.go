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
	"github.com/emitd/emitd/internal/queue/wire"
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
	var c claiming
	for ctx.Err() == nil {
		if !c.unsure() {
			n, types, saturated := w.capacity()
			if n <= 0 {
				select {
				case <-ctx.Done():
				case <-w.freed:
				}
				continue
			}
			c.req = queue.ClaimRequest{
				Worker: w.cfg.Name, Types: types, Max: n, Wait: w.cfg.Wait, Visibility: w.cfg.Visibility,
				RequestID: strings.ToLower(rand.Text()[:16]),
			}
			if saturated {
				c.req.Wait = min(c.req.Wait, saturatedWait)
			}
		}
		sentAt := time.Now()
		claims, err := w.claim(ctx, &c)
		switch {
		case ctx.Err() != nil:
			w.releaseUnstarted(ctx, &c, claims)
			return
		case err != nil:
			w.failed("claim", fmt.Errorf("claim: %w", err))
			failures++
			_ = backoff.Sleep(ctx, retries.Jittered(failures))
			continue
		}
		failures = 0
		n := min(c.req.Max, len(claims))
		held := w.renew(ctx, claims[:n], sentAt)
		if ctx.Err() != nil {
			w.releaseUnstarted(ctx, &c, claims)
			return
		}
		for _, h := range held {
			w.start(ctx, h, jobs)
		}
		if len(claims) > n { // the broker returned more than was asked for
			w.releaseUnstarted(ctx, &c, claims[n:])
		}
		if len(claims) == 0 && time.Since(sentAt) < c.req.Wait/2 {
			_ = backoff.Sleep(ctx, backoff.Jitter(saturatedWait)) // the broker does not wait
		}
	}
	if c.unsure() {
		w.releaseUnstarted(ctx, &c, nil)
	}
}

// claiming is a claim call, and what is known of it.
type claiming struct {
	req queue.ClaimRequest
	// lost is when the call has ended last without an answer. It may have claimed jobs, and is repeated. Zero: it was answered.
	lost time.Time
}

func (c *claiming) unsure() bool { return !c.lost.IsZero() }

// claim calls the broker. If the call was made before and not answered, what it has claimed comes first. Once that has timed out, it is
// not looked for any more: the jobs of other nodes must not wait for one that does not answer.
func (w *Worker) claim(ctx context.Context, c *claiming) (claims []queue.Claimed, err error) {
	if c.unsure() {
		claims, err = w.svc.Claim(ctx, w.cfg.Queue, wire.ClaimedBefore(c.req))
	}
	if err == nil && len(claims) == 0 {
		claims, err = w.svc.Claim(ctx, w.cfg.Queue, c.req)
		if queue.TagOf(err) == queue.UnknownOutcome {
			c.lost = time.Now()
		}
	}
	if err == nil || time.Since(c.lost) > w.cfg.Visibility {
		c.lost = time.Time{}
	}
	return claims, err
}

// claimed is a job that was claimed, and when its claim ends by the local clock.
type claimed struct {
	queue.Claimed
	deadline time.Time
}

// renew returns the claims that hold. The visibility timeout counts from before the call, and an earlier call with the same
// request ID may have made the claims. If the next heartbeat could be too late for one of them, for example because the client has
// repeated the call during an outage, renew extends all of them.
func (w *Worker) renew(ctx context.Context, claims []queue.Claimed, sentAt time.Time) []claimed {
	out := make([]claimed, len(claims))
	late := false
	for i, c := range claims {
		if c.For <= 0 {
			c.For = w.cfg.Visibility
		}
		out[i] = claimed{c, sentAt.Add(c.For)}
		late = late || time.Until(out[i].deadline) < w.cfg.Visibility/3
	}
	if !late {
		return out
	}
	what := make([]queue.Settlement, len(out))
	for i := range out {
		what[i] = w.extension(&out[i].Claimed)
	}
	bounded, cancel := context.WithTimeout(ctx, w.cfg.Visibility/3)
	defer cancel()
	sentAt = time.Now()
	outcomes, err := w.svc.Settle(bounded, w.cfg.Queue, what)
	if err == nil && len(outcomes) != len(what) {
		err = fmt.Errorf("%d outcomes of %d settlements", len(outcomes), len(what))
	}
	if err != nil && ctx.Err() == nil {
		w.failed("heartbeat", fmt.Errorf("heartbeat of %d new claims: %w", len(what), err))
	}
	kept := out[:0]
	for i, c := range out {
		switch {
		case err == nil && outcomes[i].Err == nil:
			c.deadline = sentAt.Add(w.cfg.Visibility)
		case err == nil && !transient(outcomes[i].Err):
			continue // another worker may have it
		}
		if time.Until(c.deadline) > 0 { // or it has ended meanwhile
			kept = append(kept, c)
		}
	}
	return kept
}

// extension returns the heartbeat of a claim.
func (w *Worker) extension(c *queue.Claimed) queue.Settlement {
	return queue.Settlement{Verb: queue.Extend, ID: c.Job.ID, Token: c.Token, Visibility: w.cfg.Visibility}
}

// start starts the run of a claimed job.
func (w *Worker) start(ctx context.Context, c claimed, jobs *sync.WaitGroup) {
	r := newRun(ctx, c)
	w.takePlace(r)
	jobs.Go(func() { w.work(r) })
}

// releaseUnstarted releases the jobs of a cancelled claim call. If its answer was lost, another call returns its jobs;
// otherwise they would have to time out.
func (w *Worker) releaseUnstarted(ctx context.Context, c *claiming, claims []queue.Claimed) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseTimeout)
	defer cancel()
	if c.unsure() {
		var err error
		if claims, err = w.svc.Claim(ctx, w.cfg.Queue, wire.ClaimedBefore(c.req)); err != nil {
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
		w.failed("release", fmt.Errorf("release what was claimed last: %w", err))
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
		what[i] = w.extension(&r.claim)
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	sentAt := time.Now()
	outcomes, err := w.svc.Settle(ctx, w.cfg.Queue, what)
	if err != nil {
		if ctx.Err() == nil || errors.Is(context.Cause(ctx), context.DeadlineExceeded) {
			w.failed("heartbeat", fmt.Errorf("heartbeat of %d jobs: %w", len(runs), err))
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
