package coordinator

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"sync"
	"time"

	"github.com/emitd/emitd/internal/coordinator/lease"
	"github.com/emitd/emitd/internal/coordinator/member"
	"github.com/emitd/emitd/node"
)

// ErrNotLeading reports that this node does not lead, or no longer does. The cause of every ended
// leadership context is this error, by errors.Is.
var ErrNotLeading = errors.New("this node does not lead")

// LostError is the cause with which the context of a leadership ends.
type LostError struct {
	Term   node.Term
	Reason node.LossReason
}

// Error names the term and the reason.
func (e *LostError) Error() string {
	return fmt.Sprintf("leadership of term %d ended: %s", e.Term.Ordinal, e.Reason)
}

// Is makes errors.Is(err, ErrNotLeading) true.
func (e *LostError) Is(target error) bool { return target == ErrNotLeading }

// Transition is a change of this node's leadership, or its state at the beginning of a
// subscription.
type Transition struct {
	// Leading is set if this node leads from here on.
	Leading bool
	// Term is the term that began or ended; zero before this node has ever led.
	Term node.Term
	// Reason is why the term ended; empty while leading and before the first term.
	Reason node.LossReason
}

// leadership is what the user of this node sees of its terms: one context, and one order of
// transitions.
//
// The way of a term: the effect Elected calls begin, which publishes the context and starts the
// tasks: the OnLeaderElected hooks (observe.go) and the functions given to WhileLeader (work.go).
// Each published view extends the validity (extend). One of three ends the term: the effect Lost
// (end), the watchdog if the loop hangs (watch), or a caller of Leadership who finds the validity
// over (current). The shell then waits for the tasks to return and sends LeaderIdle. A member that
// gives its term up resigns only after that.
//
// Rules: the context is cancelled before anything is published. Transitions are published under the
// lock that changes the state, so their order is total. Nothing here waits.
type leadership struct {
	clock         func() lease.Instant
	watchdogDelay time.Duration // how long after the loop should have acted the watchdog does
	post          func(member.Input)
	notify        func(r *leaderTerm, t Transition) // informs hooks, log and metrics; must not block
	newEntered    func() []chan struct{}            // see observers.newEntered

	mu      sync.Mutex
	leading *leaderTerm     // the current term; nil while not leading
	newest  *leaderTerm     // the term that began last
	ended   context.Context // the cancelled context that Leadership returns while not leading
	last    Transition
	tasks   []*leaderTask
	subs    map[*queue[Transition]]struct{}
	closed  bool
}

// leaderTerm is one term of this node.
type leaderTerm struct {
	term   node.Term
	ctx    context.Context
	cancel context.CancelCauseFunc
	// trust is until when this node may act as leader; written under leadership.mu.
	trust    lease.Instant
	watchdog *time.Timer
	work     sync.WaitGroup  // tasks that are running; only added to while this is the current term
	entered  []chan struct{} // by position of the Hooks value: closed once OnLeaderElected was called
}

// newLeadership returns the leadership of a node that does not lead yet.
func newLeadership(clock func() lease.Instant, late time.Duration) *leadership {
	ctx, cancel := context.WithCancelCause(context.Background())
	cancel(ErrNotLeading)
	return &leadership{clock: clock, watchdogDelay: late, ended: ctx, subs: map[*queue[Transition]]struct{}{}}
}

// begin publishes leadership. base only supplies values: its end does not end leadership.
func (l *leadership) begin(base context.Context, t node.Term, trust lease.Instant) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.leading != nil {
		l.endLocked(l.leading, node.Replaced) // publish at most one term, even if the loop did not end the last one
	}
	r := &leaderTerm{term: t, trust: trust, entered: l.newEntered()}
	r.ctx, r.cancel = context.WithCancelCause(base)
	r.watchdog = time.AfterFunc(max(trust.Sub(l.clock()), 0)+l.watchdogDelay, func() { l.watch(r) })
	l.leading, l.newest = r, r
	for _, d := range l.tasks {
		d.begin(r)
	}
	l.publish(r, Transition{Leading: true, Term: t})
}

// extend moves the end of the current term's validity.
func (l *leadership) extend(trust lease.Instant) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if r := l.leading; r != nil && r.trust != trust {
		r.trust = trust
		r.watchdog.Reset(max(trust.Sub(l.clock()), 0) + l.watchdogDelay)
	}
}

// end ends a term, unless the watchdog already has: it cancels first and publishes
// then. It returns the term in both cases, or nil if there was none.
func (l *leadership) end(term int64, why node.LossReason) *leaderTerm {
	l.mu.Lock()
	defer l.mu.Unlock()
	r := l.newest
	if r == nil || r.term.Number != term {
		return nil
	}
	if l.leading == r {
		l.endLocked(r, why)
	}
	return r
}

// endLocked ends the term: cancel, then publish. The caller holds l.mu.
func (l *leadership) endLocked(r *leaderTerm, why node.LossReason) {
	r.cancel(&LostError{Term: r.term, Reason: why})
	r.watchdog.Stop()
	l.leading, l.ended = nil, r.ctx
	l.publish(r, Transition{Term: r.term, Reason: why})
}

// watch is the watchdog. It ends a term whose validity is over, if the loop, which should have
// done that, has not. The loop is informed by a Resign input.
func (l *leadership) watch(r *leaderTerm) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.leading != r {
		return
	}
	if left := r.trust.Sub(l.clock()); left > 0 {
		r.watchdog.Reset(left + l.watchdogDelay)
		return
	}
	l.overdue(r)
}

// overdue ends a term whose validity is over, and informs the loop. The caller holds l.mu.
func (l *leadership) overdue(r *leaderTerm) {
	l.endLocked(r, node.ValidityEnded)
	l.post(member.Resign{Reason: node.ValidityEnded})
}

// current returns the current leadership. It reads the clock itself, so neither a loop that hangs
// nor a late timer can make it return true after the validity has ended.
func (l *leadership) current() (node.Term, context.Context, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	r := l.leading
	if r != nil && l.clock() >= r.trust {
		l.overdue(r)
		r = nil
	}
	if r == nil {
		return node.Term{}, l.ended, false
	}
	return r.term, r.ctx, true
}

// resign asks the loop to give up the term, if that is still the current one.
func (l *leadership) resign(r *leaderTerm, why node.LossReason, cooldown time.Duration) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.leading == nil || (r != nil && l.leading != r) {
		return false
	}
	l.post(member.Resign{Reason: why, Cooldown: cooldown})
	return true
}

// publish informs everybody. The lock is held, so the order is that of the changes.
func (l *leadership) publish(r *leaderTerm, t Transition) {
	l.last = t
	for q := range l.subs {
		q.push(t)
	}
	l.notify(r, t)
}

// close ends the current term, if any, and closes the subscriptions.
func (l *leadership) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.leading != nil {
		l.endLocked(l.leading, node.Shutdown)
	}
	l.closed = true
	for q := range l.subs {
		q.close()
	}
}

// subscribe returns a queue that begins with the current state.
func (l *leadership) subscribe() *queue[Transition] {
	l.mu.Lock()
	defer l.mu.Unlock()
	q := newQueue[Transition]()
	q.push(l.last)
	if l.closed {
		q.close()
	}
	l.subs[q] = struct{}{}
	return q
}

// unsubscribe closes the queue.
func (l *leadership) unsubscribe(q *queue[Transition]) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.subs, q)
	q.close()
}

// assign adds a task. If this node leads, the task begins at once.
func (l *leadership) assign(d *leaderTask) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.tasks = append(l.tasks, d)
	if l.leading != nil {
		d.begin(l.leading)
	}
}

// leaderTask is leader-only work. It is called once in each term, and never for two terms at once.
type leaderTask struct {
	run  func(r *leaderTerm)
	last chan struct{} // closed when the newest call has returned; guarded by leadership.mu
}

// begin calls the task for a term, once its call for the previous term has returned.
func (d *leaderTask) begin(r *leaderTerm) {
	before, done := d.last, make(chan struct{})
	d.last = done
	r.work.Add(1)
	go func() {
		defer r.work.Done()
		defer close(done)
		if before != nil {
			<-before
		}
		d.run(r)
	}()
}

// Leadership returns the term that this node leads and a context that ends when it no longer does.
// If it does not lead, ok is false, the term is zero, and the context is already cancelled with the
// reason as its cause; it is never nil. Leadership reads the clock itself.
//
// A leader that acts on something outside of the store should send the term's number along, so that
// the receiver can refuse lower ones. The context alone is not enough: in a paused process no
// context ends.
func (c *Coordinator) Leadership() (t node.Term, ctx context.Context, ok bool) {
	return c.lead.current()
}

// Resign gives up leadership and returns when it has ended in this process: the contexts are
// cancelled and the hooks queued. The term becomes free once leader-only work has returned, or, if
// that takes longer than LeaderStopTimeout, when the lease runs out. This node campaigns again once
// another node has led, or after the longer of cooldown and about two heartbeat intervals. If this
// node does not lead, the error is [ErrNotLeading].
func (c *Coordinator) Resign(ctx context.Context, cooldown time.Duration) error {
	_, leading, ok := c.lead.current()
	if !ok || !c.lead.resign(nil, node.Resigned, cooldown) {
		return fmt.Errorf("resign: %w", ErrNotLeading)
	}
	select {
	case <-leading.Done():
		return nil
	case <-ctx.Done():
		return fmt.Errorf("resign: %w", context.Cause(ctx))
	}
}

// Subscribe returns this node's transitions from now on: first the current state, then every change
// in order. A slow reader delays nobody and misses nothing. The sequence ends when ctx does, or
// after the last transition once Run has returned. It can be ranged over once.
func (c *Coordinator) Subscribe(ctx context.Context) iter.Seq[Transition] {
	q := c.lead.subscribe()
	forget := context.AfterFunc(ctx, func() { c.lead.unsubscribe(q) })
	return func(yield func(Transition) bool) {
		defer c.lead.unsubscribe(q)
		defer forget()
		for ctx.Err() == nil {
			if t, ok := q.pop(); ok {
				if !yield(t) {
					return
				}
				continue
			}
			if q.done() {
				return
			}
			select {
			case <-q.ready:
			case <-ctx.Done():
			}
		}
	}
}
