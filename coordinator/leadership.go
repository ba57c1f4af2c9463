package coordinator

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"sync"
	"time"

	"github.com/emitd/emitd/coordinator/lease"
	"github.com/emitd/emitd/coordinator/member"
	"github.com/emitd/emitd/node"
)

// ErrNotLeading says that this node does not lead (any more). It is what every cause of an ended
// leadership context is, by errors.Is.
var ErrNotLeading = errors.New("this node does not lead")

// LostError is the cause with which a leadership's context ends.
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

// Transition is a change of this node's own leadership, or where it stands.
type Transition struct {
	// Leading says whether this node leads from here on.
	Leading bool
	// Term is the one that began or ended; zero before this node has ever led.
	Term node.Term
	// Reason says why it ended; empty while leading and before the first term.
	Reason node.LossReason
}

// leadership is what this node's users see of its reigns: one context, one order of transitions.
//
// Rules: the context is cancelled before anything else is told; transitions are published under
// the same lock that changes the state, so their order is total; nothing here waits.
type leadership struct {
	clock func() lease.Instant
	late  time.Duration // the watchdog comes so long after the loop should have
	post  func(member.Input)
	told  func(r *reign, t Transition) // hooks, log and metrics; must not block
	gates func() []chan struct{}       // of a new reign

	mu     sync.Mutex
	reign  *reign          // nil while not leading
	newest *reign          // the last one begun
	none   context.Context // cancelled; what Leadership returns then
	last   Transition
	duties []*duty
	subs   map[*queue[Transition]]struct{}
	closed bool
}

// reign is one term of this node.
type reign struct {
	term   node.Term
	ctx    context.Context
	cancel context.CancelCauseFunc
	// trust is until when this node may act as leader; written under leadership.mu.
	trust    lease.Instant
	watchdog *time.Timer
	work     sync.WaitGroup  // duties under way; only added to while this is the reign
	entered  []chan struct{} // by position of the Hooks value: OnLeaderElected was called
}

func newLeadership(clock func() lease.Instant, late time.Duration) *leadership {
	ctx, cancel := context.WithCancelCause(context.Background())
	cancel(ErrNotLeading)
	return &leadership{clock: clock, late: late, none: ctx, subs: map[*queue[Transition]]struct{}{}}
}

// begin publishes leadership. base carries values only; its end is not leadership's end.
func (l *leadership) begin(base context.Context, t node.Term, trust lease.Instant) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.reign != nil {
		l.endLocked(l.reign, node.Replaced) // at most one is published, whatever the loop forgot
	}
	r := &reign{term: t, trust: trust, entered: l.gates()}
	r.ctx, r.cancel = context.WithCancelCause(base)
	r.watchdog = time.AfterFunc(max(trust.Sub(l.clock()), 0)+l.late, func() { l.watch(r) })
	l.reign, l.newest = r, r
	for _, d := range l.duties {
		d.begin(r)
	}
	l.publish(r, Transition{Leading: true, Term: t})
}

// extend moves the trust deadline of the present reign.
func (l *leadership) extend(trust lease.Instant) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if r := l.reign; r != nil && r.trust != trust {
		r.trust = trust
		r.watchdog.Reset(max(trust.Sub(l.clock()), 0) + l.late)
	}
}

// end ends the reign of the term, unless the watchdog has: cancel first, then tell. It returns
// the reign either way, or nil if there was none.
func (l *leadership) end(term int64, why node.LossReason) *reign {
	l.mu.Lock()
	defer l.mu.Unlock()
	r := l.newest
	if r == nil || r.term.Number != term {
		return nil
	}
	if l.reign == r {
		l.endLocked(r, why)
	}
	return r
}

func (l *leadership) endLocked(r *reign, why node.LossReason) {
	r.cancel(&LostError{Term: r.term, Reason: why})
	r.watchdog.Stop()
	l.reign, l.none = nil, r.ctx
	l.publish(r, Transition{Term: r.term, Reason: why})
}

// watch is the watchdog: it ends a reign whose trust is over although the loop, whose business
// it is, has not. The loop learns of it as a wish to resign.
func (l *leadership) watch(r *reign) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.reign != r {
		return
	}
	if left := r.trust.Sub(l.clock()); left > 0 {
		r.watchdog.Reset(left + l.late)
		return
	}
	l.overdue(r)
}

func (l *leadership) overdue(r *reign) {
	l.endLocked(r, node.TrustLost)
	l.post(member.Resign{Reason: node.TrustLost})
}

// current returns the present leadership by its own look at the clock: no stuck loop and no
// late timer makes it say yes after the trust deadline.
func (l *leadership) current() (node.Term, context.Context, bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	r := l.reign
	if r != nil && l.clock() >= r.trust {
		l.overdue(r)
		r = nil
	}
	if r == nil {
		return node.Term{}, l.none, false
	}
	return r.term, r.ctx, true
}

// resign asks the loop to give up the reign, if it still is the present one.
func (l *leadership) resign(r *reign, why node.LossReason, cooldown time.Duration) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.reign == nil || (r != nil && l.reign != r) {
		return false
	}
	l.post(member.Resign{Reason: why, Cooldown: cooldown})
	return true
}

// publish tells everybody. The lock is held, so the order is that of the changes.
func (l *leadership) publish(r *reign, t Transition) {
	l.last = t
	for q := range l.subs {
		q.push(t)
	}
	l.told(r, t)
}

// close ends what is left and lets subscribers finish.
func (l *leadership) close() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.reign != nil {
		l.endLocked(l.reign, node.Shutdown)
	}
	l.closed = true
	for q := range l.subs {
		q.close()
	}
}

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

func (l *leadership) unsubscribe(q *queue[Transition]) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.subs, q)
	q.close()
}

// assign adds a duty; if this node leads, it begins at once.
func (l *leadership) assign(d *duty) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.duties = append(l.duties, d)
	if l.reign != nil {
		d.begin(l.reign)
	}
}

// duty is leader-only work: called once in each term, never in two terms at once.
type duty struct {
	run  func(r *reign)
	last chan struct{} // closed when the newest call has returned; guarded by leadership.mu
}

func (d *duty) begin(r *reign) {
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

// Leadership returns the term this node leads and a context that ends when it no longer does.
// When it does not lead, ok is false, the term is zero and the context is already cancelled, its
// cause being why; it is never nil. Leadership looks at the clock itself.
//
// A leader that acts on something outside of the store should carry the term's number along, so
// that the other side can refuse a lower one: no context ends inside a paused process.
func (c *Coordinator) Leadership() (t node.Term, ctx context.Context, ok bool) {
	return c.lead.current()
}

// Resign gives up leadership and returns when it has ended here: contexts cancelled, hooks told.
// The term becomes free once leader-only work has returned (within LeaderStopTimeout; otherwise
// the lease runs out). This node stands again when another has led, or after cooldown, or after
// two heartbeats if that is longer. Not leading is [ErrNotLeading].
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

// Subscribe returns this node's transitions from now on: first where it stands, then every
// change in order. A slow reader delays nobody and misses nothing. The sequence ends when ctx
// does, or after the last transition once Run has returned. It can be ranged over once.
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
