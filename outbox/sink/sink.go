// Package sink is what the sinks of the outbox share: how the rows of a delivery are spread over calls
// without losing the order of a key, how failures are classified, and which headers travel with a
// message. The sinks themselves are the packages below.
//
// # What every sink in this tree promises
//
//  1. A row is reported as taken only after the receiver has confirmed, in the terms of its protocol,
//     that it has stored the row durably.
//  2. Rows of one key are sent in the order of the delivery. A row is sent only after the one before it
//     was confirmed, or in a way in which the receiver cannot take it unless it has taken that one: both
//     in one batch that is stored as a whole, or on the condition that the other is the newest. When a
//     row of a key is not taken, no later row of the key is taken in that delivery; those are reported
//     with [outbox.ErrSkipped]. Rows of other keys, and rows without a key, are not held up.
//  3. Every attempt of a message carries the same ID, in the receiver's own field for it if there is one.
//     So receivers can drop repetitions.
//  4. Deliver returns when its context ends, even if the receiver does not answer. Rows in flight are
//     reported as not taken, although the receiver may have them, and are delivered again.
//  5. Errors are of the kinds of package outbox and say what happened. They never contain credentials or
//     payloads.
//
// # What a failure means
//
//	the receiver refused this message, and will again     outbox.ErrPermanent
//	the destination that the message names does not exist   outbox.ErrMissing
//	nothing can be delivered: unreachable, refused, login   outbox.ErrSinkDown
//	a newer relay owns the shards                           outbox.ErrFenced, with its epoch a *outbox.FencedError
//	the receiver named a time                               *outbox.RetryAfterError, around any of these
//	an earlier row of the key was not taken                 outbox.ErrSkipped
//	no answer within the sink's own time limit              that of a call that hangs, see [outbox.Config]
//	anything else                                           worth another attempt of that key
//
// After ErrSinkDown and ErrFenced no further call is made. The remaining rows get the same error, because
// it holds for them too.
//
// # What is not promised
//
// Exactly-once delivery, except where a sink says so. A crash after the receiver's confirmation and
// before the cursor is advanced repeats messages. Sinks keep no state between deliveries on which order
// depends.
package sink

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/emitd/emitd/outbox"
	"github.com/emitd/emitd/outbox/internal/progress"
)

// Plan says how the rows of a delivery are spread over calls. With the zero value each call has one row,
// and one call is made at a time.
type Plan struct {
	Parallel int // calls in flight at once; default 1
	Rows     int // most rows in a call; default 1
	Bytes    int // most bytes in a call, 0: no limit. A call always has at least one row.
	// Size returns the bytes of a row for the limit Bytes.
	Size func(i int) int
	// Atomic says that the receiver takes or refuses a call as a whole, and keeps its order. Then a call may
	// have several rows of one key, and send returns nil or one error. A call that fails with ErrPermanent
	// is repeated row by row, so that only the bad rows fail.
	Atomic bool
	// Ordered says that the receiver takes the rows of a call in order, and takes no row behind one of the same
	// key that it has not taken. Then a call may have several rows of one key.
	Ordered bool
	// Target returns the destination of a row. Rows of different targets never share a call. Default: one
	// target.
	Target func(i int) string
	// OrderKey returns what keeps rows in order; default the key. Rows with an empty one have no order.
	OrderKey func(i int) string
	// StartCaller and EndCaller bound the goroutines that make the calls of several deliveries together. StartCaller reports
	// whether a delivery may have another one; for its first it must return true. EndCaller says that one has ended. Default:
	// each delivery has up to Parallel.
	StartCaller func(first bool) bool
	EndCaller   func()
}

// Send sends rows, given by their indexes in the delivery. It returns nil if all were taken, an error for
// each, or a slice of one error for all.
type Send func(ctx context.Context, rows []int) []error

// Each is [Run] for receivers that take one row per call.
func Each(ctx context.Context, rows []outbox.Row, parallel int, send func(ctx context.Context, i int) error) []error {
	return Run(ctx, rows, Plan{Parallel: parallel}, func(ctx context.Context, r []int) []error {
		if err := send(ctx, r[0]); err != nil {
			return []error{err}
		}
		return nil
	})
}

// Run sends rows by a plan, with the promises of this package, and returns the result of
// [outbox.Sink.Deliver]. It returns when its context has ended even if send does not. Calls that are
// still in flight then continue, and nothing waits for them.
func Run(ctx context.Context, rows []outbox.Row, p Plan, send Send) []error {
	if len(rows) == 0 {
		return nil
	}
	r := newRun(ctx, rows, p, send)
	r.ctx = progress.WithReport(ctx, r.taken)
	r.mu.Lock()
	r.startLocked()
	r.mu.Unlock()
	select {
	case <-r.done:
	case <-ctx.Done():
	}
	return r.result()
}

// taken records that the receiver has taken a row whose call goes on.
func (r *run) taken(i int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.recordLocked(i, nil)
}

// rowQueue is a queue of rows that are sent one after the other.
type rowQueue struct {
	rows []int // not yet sent
}

// run is one delivery in progress.
type run struct {
	ctx  context.Context
	rows []outbox.Row
	plan Plan
	send Send
	done chan struct{}

	mu          sync.Mutex
	ready       []*rowQueue // queues that have rows and none in flight, in order of arrival
	calls       int         // in flight
	hasResult   []bool
	errs        []error
	failed      bool  // at least one row has failed
	restErr     error // the error of all rows that are left
	idle        bool  // done is closed
	resultTaken bool  // the result was returned: later results are ignored
}

func newRun(ctx context.Context, rows []outbox.Row, p Plan, send Send) *run {
	p.Parallel, p.Rows = max(p.Parallel, 1), max(p.Rows, 1)
	if p.OrderKey == nil {
		p.OrderKey = func(i int) string { return rows[i].Key }
	}
	r := &run{
		ctx: ctx, rows: rows, plan: p, send: send,
		done: make(chan struct{}), hasResult: make([]bool, len(rows)), errs: make([]error, len(rows)),
	}
	queues := map[string]*rowQueue{}
	for i := range rows {
		name := p.OrderKey(i)
		l, known := queues[name]
		if !known || name == "" {
			l = &rowQueue{}
			queues[name] = l
			r.ready = append(r.ready, l)
		}
		l.rows = append(l.rows, i)
	}
	return r
}

// startLocked starts as many calls as the plan allows, and closes done when nothing is left.
func (r *run) startLocked() {
	for r.calls < r.plan.Parallel && r.moreLocked() && r.mayStartLocked() {
		rows, queues := r.nextLocked()
		r.calls++
		go r.work(rows, queues)
	}
	if r.calls == 0 && !r.idle {
		r.idle = true
		close(r.done)
	}
}

func (r *run) mayStartLocked() bool {
	return r.plan.StartCaller == nil || r.plan.StartCaller(r.calls == 0)
}

func (r *run) moreLocked() bool { return len(r.ready) > 0 && r.restErr == nil && r.ctx.Err() == nil }

// work makes one call after the other until there are none. It reuses one goroutine, because clients need
// deep stacks, which grow once per goroutine.
func (r *run) work(rows []int, queues []*rowQueue) {
	for more := true; more; {
		errs := r.sendRows(rows)
		r.mu.Lock()
		r.callDoneLocked(rows, queues, errs)
		if more = r.moreLocked(); more {
			rows, queues = r.nextLocked()
		} else {
			r.calls--
			if r.plan.EndCaller != nil {
				r.plan.EndCaller()
			}
		}
		r.startLocked()
		r.mu.Unlock()
	}
}

// nextLocked takes rows for one call: the first row of each order key, or several if the receiver keeps their
// order.
func (r *run) nextLocked() (rows []int, queues []*rowQueue) {
	c := call{plan: &r.plan}
	var passed []*rowQueue // queues whose first row does not fit this call
	next := 0
	for ; next < len(r.ready) && !c.full; next++ {
		l := r.ready[next]
		if !c.add(l.rows[0]) {
			passed = append(passed, l)
			continue
		}
		l.rows = l.rows[1:]
		for (r.plan.Atomic || r.plan.Ordered) && !c.full && len(l.rows) > 0 && c.add(l.rows[0]) {
			l.rows = l.rows[1:]
		}
		queues = append(queues, l)
	}
	next -= copy(r.ready[next-len(passed):next], passed)
	r.ready = r.ready[next:]
	return c.rows, queues
}

// call is a call that is being assembled.
type call struct {
	plan  *Plan
	rows  []int
	bytes int
	full  bool
}

// add adds a row to the call, or reports that it does not fit.
func (c *call) add(i int) bool {
	if len(c.rows) > 0 && c.plan.Target != nil && c.plan.Target(i) != c.plan.Target(c.rows[0]) {
		return false
	}
	size := 0
	if c.plan.Bytes > 0 {
		size = c.plan.Size(i)
	}
	if len(c.rows) > 0 && c.bytes+size > c.plan.Bytes && c.plan.Bytes > 0 {
		c.full = true // nearly full: a smaller row is not searched for
		return false
	}
	c.rows, c.bytes = append(c.rows, i), c.bytes+size
	c.full = len(c.rows) == c.plan.Rows
	return true
}

// sendRows sends rows in one call, or one by one after a permanent refusal of a whole call.
func (r *run) sendRows(rows []int) []error {
	errs := r.send(r.ctx, rows)
	if r.plan.Atomic && len(rows) > 1 && len(errs) > 0 && errors.Is(errs[0], outbox.ErrPermanent) {
		errs = r.oneByOne(rows)
	}
	return errs
}

// callDoneLocked records the results of rows and makes their queues ready again.
func (r *run) callDoneLocked(rows []int, queues []*rowQueue, errs []error) {
	var failed map[string]bool
	for n, i := range rows {
		err := at(errs, n)
		r.recordLocked(i, err)
		if err == nil {
			progress.Report(r.ctx)
			continue
		}
		if failed == nil {
			failed = map[string]bool{}
		}
		failed[r.plan.OrderKey(i)] = true
	}
	for _, l := range queues {
		if len(l.rows) == 0 {
			continue
		}
		if failed[r.plan.OrderKey(l.rows[0])] {
			for _, i := range l.rows {
				r.recordLocked(i, outbox.ErrSkipped)
			}
			continue
		}
		r.ready = append(r.ready, l)
	}
}

// oneByOne sends the rows of a refused call separately, to find those that the receiver refuses.
func (r *run) oneByOne(rows []int) []error {
	errs := make([]error, len(rows))
	failed := map[string]bool{}
	for n, i := range rows {
		name := r.plan.OrderKey(i)
		if failed[name] && name != "" {
			errs[n] = outbox.ErrSkipped
			continue
		}
		errs[n] = at(r.send(r.ctx, []int{i}), 0)
		if errs[n] == nil {
			continue
		}
		failed[name] = true
		if halts(errs[n]) || r.ctx.Err() != nil {
			for m := n + 1; m < len(rows); m++ {
				errs[m] = errs[n]
			}
			break
		}
	}
	return errs
}

// recordLocked records the result of a row.
func (r *run) recordLocked(i int, err error) {
	if r.resultTaken || r.hasResult[i] {
		return
	}
	r.hasResult[i], r.errs[i] = true, err
	if err == nil {
		return
	}
	r.failed = true
	if r.restErr == nil && halts(err) {
		r.restErr = err
	}
}

// halts reports whether an error holds for all other rows, too.
func halts(err error) bool {
	return errors.Is(err, outbox.ErrSinkDown) || errors.Is(err, outbox.ErrFenced)
}

// result returns the results of the rows. Calls that are still in flight cannot change it any more.
func (r *run) result() []error {
	r.mu.Lock()
	defer r.mu.Unlock()
	rest := r.restErr
	if rest == nil {
		rest = fmt.Errorf("not confirmed: %w", context.Cause(r.ctx))
	}
	for i := range r.rows {
		if !r.hasResult[i] {
			r.recordLocked(i, rest)
		} else if r.restErr != nil && errors.Is(r.errs[i], outbox.ErrSkipped) {
			r.errs[i] = r.restErr
		}
	}
	r.resultTaken = true
	if !r.failed {
		return nil
	}
	return r.errs
}

// at returns the error of row n in the result of a Send.
func at(errs []error, n int) error {
	switch {
	case len(errs) == 0:
		return nil
	case len(errs) == 1:
		return errs[0]
	default:
		return errs[n]
	}
}
