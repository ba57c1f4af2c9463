package coordinator

import (
	"context"
	"fmt"
	"runtime/debug"
	"time"

	"github.com/emitd/emitd/internal/backoff"
	"github.com/emitd/emitd/internal/coordinator/lease"
	"github.com/emitd/emitd/node"
)

// WhileLeader calls f while this node leads, once in each of its terms, and at once if it leads
// already. ctx ends when leadership does. f must return then, because the call of the next term
// waits for it, and the term is not given up before. If f returns nil earlier, it is done for this
// term. After an error or a panic f is called again, with growing pauses. If f keeps failing for
// LeaseDuration, the node resigns, because the fault may lie in the node. A call that lasted that
// long restarts the count. The name is for the log.
func (c *Coordinator) WhileLeader(name string, f func(ctx context.Context, t node.Term) error) {
	c.lead.assign(&leaderTask{run: func(r *leaderTerm) { c.work(name, f, r) }})
}

// streamRetries are the pauses before a stream of the store is opened again.
var streamRetries = backoff.Policy{First: 100 * time.Millisecond, Limit: 5 * time.Second}

// work calls f in one term until it is done, and resigns if f keeps failing.
func (c *Coordinator) work(name string, f func(context.Context, node.Term) error, r *leaderTerm) {
	log := c.asyncLog.With("work", name, "term", r.term.Number)
	retries := backoff.Policy{First: c.timing.HeartbeatInterval / 10, Limit: c.timing.HeartbeatInterval}
	var since lease.Instant // the first failure in a row
	for failures := 0; r.ctx.Err() == nil; {
		began := c.clock()
		err := recoverPanic(func() error { return f(r.ctx, r.term) })
		if err == nil || r.ctx.Err() != nil {
			return
		}
		if c.clock().Sub(began) >= c.timing.LeaseDuration {
			failures = 0
		}
		if failures++; failures == 1 {
			since = c.clock()
		}
		if c.clock().Sub(since) >= c.timing.LeaseDuration {
			log.Error("leader-only work keeps failing: resigning", "failures", failures, "error", err)
			c.lead.resign(r, node.PassesFailed, 0)
			return
		}
		pause := retries.Jittered(failures)
		log.Warn("leader-only work failed; it will be repeated", "failures", failures, "pause", pause, "error", err)
		if backoff.Sleep(r.ctx, pause) != nil {
			return
		}
	}
}

// panicError is a panic of user code, as an error.
type panicError struct {
	value any
	stack []byte
}

func (e *panicError) Error() string { return fmt.Sprintf("panic: %v", e.value) }

// recoverPanic calls f and returns a panic of f as an error.
func recoverPanic(f func() error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = &panicError{v, debug.Stack()}
		}
	}()
	return f()
}
