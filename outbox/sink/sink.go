// Package sink is what the sinks of the outbox share: how the rows of a delivery are spread over
// calls without losing the order of a key, how failures are told apart, and what travels along with
// a message. The sinks themselves are the packages below.
//
// # What every sink of this tree promises
//
//  1. A row is reported as taken only after the receiver has confirmed that it has it durably, in
//     the words of its protocol.
//  2. Rows of one key are given to the receiver in the order of the delivery, and a row only after
//     the one before it was confirmed (or together with it, where the receiver takes a call as a
//     whole). When a row of a key is not taken, no later row of the key is published in that
//     delivery: those are reported with [outbox.ErrSkipped]. Rows of other keys, and rows of no key, are
//     not held up.
//  3. Every attempt of a message carries the same id, in the receiver's own field for it where there
//     is one, so that receivers can drop repetitions.
//  4. Deliver returns when its context ends, also if the receiver says nothing. What was under way
//     is reported as not taken, though the receiver may have it: it is delivered again.
//  5. Errors are of the kinds of package outbox and say what happened. They never contain
//     credentials, nor payloads.
//
// # What a failure means
//
//	the receiver refused this message, and will again     outbox.ErrPermanent
//	nothing can be delivered: unreachable, refused, login   outbox.ErrSinkDown
//	a newer relay owns the shards                           outbox.ErrFenced, with its epoch a *outbox.FencedError
//	the receiver named a time                               *outbox.RetryAfterError, around any of these
//	an earlier row of the key was not taken                 outbox.ErrSkipped
//	anything else                                           worth another attempt of that key
//
// After ErrSinkDown and ErrFenced no further call is begun: the rows that are left get the same
// error, because it is true of them too.
//
// # What is not promised
//
// Exactly once, except where a sink says so. A crash between the receiver's confirmation and the
// advance of the cursor repeats messages. Sinks keep nothing between deliveries that order depends
// on.
package sink

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/emitd/emitd/outbox"
)

// Plan says how the rows of a delivery are spread over calls. The zero value is one row a call, one
// call at a time.
type Plan struct {
	Parallel int // calls at once; default 1
	Rows     int // most rows in a call; default 1
	Bytes    int // most bytes in a call, 0: any. A call has at least one row.
	// Size returns the bytes of a row as Bytes counts them.
	Size func(i int) int
	// Whole says that the receiver takes a call as a whole or not at all, in order. Then a call may
	// have several rows of one key, and send returns nil or one error. A call that is refused as
	// permanent is repeated row by row, so that only the rows that are to blame are refused.
	Whole bool
	// Target returns where a row goes; rows of different targets share no call. Default: one target.
	Target func(i int) string
	// Lane returns what keeps rows in order; default the key. Rows of an empty lane have no order.
	Lane func(i int) string
}

// Send publishes rows, given by their places in the delivery, and returns nil when all were taken,
// an error for each, or a slice of one error for all.
type Send func(ctx context.Context, rows []int) []error

// Each is [Run] for receivers that take one row a call.
func Each(ctx context.Context, rows []outbox.Row, parallel int, send func(ctx context.Context, i int) error) []error {
	return Run(ctx, rows, Plan{Parallel: parallel}, func(ctx context.Context, r []int) []error {
		return []error{send(ctx, r[0])}
	})
}

// Run publishes rows by a plan, with the promises of this package, and returns what
// [outbox.Sink.Deliver] has to. It returns when its context has ended even if send does not; calls
// that are still under way then go on for as long as they like, and are not waited for.
func Run(ctx context.Context, rows []outbox.Row, p Plan, send Send) []error {
	if len(rows) == 0 {
		return nil
	}
	r := newRun(ctx, rows, p, send)
	r.mu.Lock()
	r.startLocked()
	r.mu.Unlock()
	select {
	case <-r.done:
	case <-ctx.Done():
	}
	return r.result()
}

// lane is a queue of rows that are published one after the other.
type lane struct {
	rows []int // not yet published
}

// run is one delivery under way.
type run struct {
	ctx  context.Context
	rows []outbox.Row
	plan Plan
	send Send
	done chan struct{}

	mu      sync.Mutex
	ready   []*lane // that have rows and none under way, first come first served
	calls   int     // under way
	settled []bool
	errs    []error
	failed  bool  // some errs are set
	stop    error // holds for all rows that are left
	idle    bool  // done is closed
	over    bool  // the result was taken: what comes now is too late
}

func newRun(ctx context.Context, rows []outbox.Row, p Plan, send Send) *run {
	p.Parallel, p.Rows = max(p.Parallel, 1), max(p.Rows, 1)
	if p.Lane == nil {
		p.Lane = func(i int) string { return rows[i].Key }
	}
	r := &run{
		ctx: ctx, rows: rows, plan: p, send: send,
		done: make(chan struct{}), settled: make([]bool, len(rows)), errs: make([]error, len(rows)),
	}
	lanes := map[string]*lane{}
	for i := range rows {
		name := p.Lane(i)
		l, known := lanes[name]
		if !known || name == "" {
			l = &lane{}
			lanes[name] = l
			r.ready = append(r.ready, l)
		}
		l.rows = append(l.rows, i)
	}
	return r
}

// startLocked begins as many calls as may be, and notices the end.
func (r *run) startLocked() {
	for r.calls < r.plan.Parallel && r.moreLocked() {
		rows, lanes := r.nextLocked()
		r.calls++
		go r.work(rows, lanes)
	}
	if r.calls == 0 && !r.idle {
		r.idle = true
		close(r.done)
	}
}

func (r *run) moreLocked() bool { return len(r.ready) > 0 && r.stop == nil && r.ctx.Err() == nil }

// work makes one call after the other, as long as there are any: clients have deep stacks, which grow
// once for each goroutine.
func (r *run) work(rows []int, lanes []*lane) {
	for more := true; more; {
		errs := r.carry(rows)
		r.mu.Lock()
		r.settledLocked(rows, lanes, errs)
		if more = r.moreLocked(); more {
			rows, lanes = r.nextLocked()
		} else {
			r.calls--
		}
		r.startLocked()
		r.mu.Unlock()
	}
}

// nextLocked takes rows for one call: from each lane its first one, or as many as follow where the
// receiver keeps their order.
func (r *run) nextLocked() (rows []int, lanes []*lane) {
	c := call{plan: &r.plan}
	var passed []*lane // they have no place in this call
	next := 0
	for ; next < len(r.ready) && !c.full; next++ {
		l := r.ready[next]
		if !c.add(l.rows[0]) {
			passed = append(passed, l)
			continue
		}
		l.rows = l.rows[1:]
		for r.plan.Whole && !c.full && len(l.rows) > 0 && c.add(l.rows[0]) {
			l.rows = l.rows[1:]
		}
		lanes = append(lanes, l)
	}
	next -= copy(r.ready[next-len(passed):next], passed)
	r.ready = r.ready[next:]
	return c.rows, lanes
}

// call is one that is being put together.
type call struct {
	plan  *Plan
	rows  []int
	bytes int
	full  bool
}

// add takes a row into the call, or reports that it has no place.
func (c *call) add(i int) bool {
	if len(c.rows) > 0 && c.plan.Target != nil && c.plan.Target(i) != c.plan.Target(c.rows[0]) {
		return false
	}
	size := 0
	if c.plan.Bytes > 0 {
		size = c.plan.Size(i)
	}
	if len(c.rows) > 0 && c.bytes+size > c.plan.Bytes && c.plan.Bytes > 0 {
		c.full = true // nearly: nobody looks for a smaller one
		return false
	}
	c.rows, c.bytes = append(c.rows, i), c.bytes+size
	c.full = len(c.rows) == c.plan.Rows
	return true
}

// carry publishes rows.
func (r *run) carry(rows []int) []error {
	errs := r.send(r.ctx, rows)
	if r.plan.Whole && len(rows) > 1 && len(errs) > 0 && errors.Is(errs[0], outbox.ErrPermanent) {
		errs = r.oneByOne(rows)
	}
	return errs
}

// settledLocked notes what became of rows and gives their lanes back.
func (r *run) settledLocked(rows []int, lanes []*lane, errs []error) {
	var failed map[string]bool
	for n, i := range rows {
		err := at(errs, n)
		r.settleLocked(i, err)
		if err == nil {
			continue
		}
		if failed == nil {
			failed = map[string]bool{}
		}
		failed[r.plan.Lane(i)] = true
	}
	for _, l := range lanes {
		if len(l.rows) == 0 {
			continue
		}
		if failed[r.plan.Lane(l.rows[0])] {
			for _, i := range l.rows {
				r.settleLocked(i, outbox.ErrSkipped)
			}
			continue
		}
		r.ready = append(r.ready, l)
	}
}

// oneByOne finds out which rows of a refused call are to blame.
func (r *run) oneByOne(rows []int) []error {
	errs := make([]error, len(rows))
	failed := map[string]bool{}
	for n, i := range rows {
		name := r.plan.Lane(i)
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

// settleLocked notes what became of a row.
func (r *run) settleLocked(i int, err error) {
	if r.over || r.settled[i] {
		return
	}
	r.settled[i], r.errs[i] = true, err
	if err == nil {
		return
	}
	r.failed = true
	if r.stop == nil && halts(err) {
		r.stop = err
	}
}

// halts reports whether no other row can do better.
func halts(err error) bool {
	return errors.Is(err, outbox.ErrSinkDown) || errors.Is(err, outbox.ErrFenced)
}

// result is what became of the rows. Calls that are still under way cannot change it any more.
func (r *run) result() []error {
	r.mu.Lock()
	defer r.mu.Unlock()
	rest := r.stop
	if rest == nil {
		rest = fmt.Errorf("not confirmed: %w", context.Cause(r.ctx))
	}
	for i := range r.rows {
		if !r.settled[i] {
			r.settleLocked(i, rest)
		} else if r.stop != nil && errors.Is(r.errs[i], outbox.ErrSkipped) {
			r.errs[i] = r.stop
		}
	}
	r.over = true
	if !r.failed {
		return nil
	}
	return r.errs
}

// at returns the error of a row from what a Send returned.
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
