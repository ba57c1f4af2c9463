package daemon

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// ErrStale says that a run of a higher generation owns the unit and that the effect was refused.
// Compare with errors.Is; [StaleError] has the numbers.
var ErrStale = errors.New("stale generation")

// ErrRelease gives the unit back, when Run returns it. The leader assigns it to another node, and
// this node gets an embargo for it for a while. It does not count as a failure.
var ErrRelease = errors.New("release the unit")

// StaleError is an ErrStale with the generation that was refused and the one that the fence holds.
type StaleError struct {
	Fence          Fence // refused
	HeldGeneration int64 // the generation that the fence holds
}

// Error names both generations.
func (e *StaleError) Error() string {
	return fmt.Sprintf("fence %s refused: generation %d owns the unit", e.Fence, e.HeldGeneration)
}

// Is makes errors.Is(err, ErrStale) true.
func (e *StaleError) Is(target error) bool { return target == ErrStale }

// Agent is the user's code that does the work of a daemon.
//
// Run is called once per run of a unit, on a goroutine of its own, after the fence was stamped.
// What Run reads was therefore written by runs that can no longer write. Run should return nil soon
// after a.Draining() is closed: it finishes the work in flight. It must return soon after ctx is
// cancelled, because its ownership has ended and it must stop at once. If Run returns earlier, the
// unit keeps its assignment. After nil it is started again after the shortest back-off, after an
// error or panic with growing back-off; [ErrRelease] gives the unit back. One agent value serves
// all units of its daemon on the node, concurrently.
type Agent interface {
	Run(ctx context.Context, a *Assignment) error
}

// AgentFunc makes a function an Agent.
type AgentFunc func(ctx context.Context, a *Assignment) error

// Run calls f.
func (f AgentFunc) Run(ctx context.Context, a *Assignment) error { return f(ctx, a) }

// Each makes an Agent of a step. It calls the step again and again until the assignment drains, the
// context ends or the step fails. A step should be bounded, because a drain waits for the current
// one.
func Each(step func(ctx context.Context, a *Assignment) error) Agent {
	return AgentFunc(func(ctx context.Context, a *Assignment) error {
		for {
			select {
			case <-a.Draining():
				return nil
			case <-ctx.Done():
				return ctx.Err()
			default:
			}
			if err := step(ctx, a); err != nil {
				return err
			}
		}
	})
}

// Assignment is the handle of one run. Its fields never change. Its methods may be called from any
// goroutine.
type Assignment struct {
	Unit       Unit
	Index      int    // of the unit: 0 … Instances-1
	Key        string // of the unit, if its daemon is keyed
	Generation int64  // the fencing token of this run
	Term       int64  // of the leader that assigned the unit
	Node       string

	draining chan struct{}
	drain    sync.Once
	ready    chan struct{}
	readied  sync.Once
	progress atomic.Int64
	stale    func(held int64)
}

// NewAssignment makes the handle of a run. It is for internal/coordinator/supervisor and for tests of agents.
// Refused, which may be nil, is called with the generation that a fence held when it refused this
// run.
func NewAssignment(f Fence, term int64, nodeName string, refused func(held int64)) *Assignment {
	return &Assignment{
		Unit: f.Unit, Index: f.Unit.Index, Key: f.Unit.Key, Generation: f.Generation, Term: term, Node: nodeName,
		draining: make(chan struct{}), ready: make(chan struct{}), stale: refused,
	}
}

// Fence returns the fence of this run: its unit and generation.
func (a *Assignment) Fence() Fence { return Fence{Unit: a.Unit, Generation: a.Generation} }

// Draining returns a channel that is closed when the run should finish the work in flight and
// return.
func (a *Assignment) Draining() <-chan struct{} { return a.draining }

// BeginDrain closes Draining. It is for internal/coordinator/supervisor and for tests of agents.
func (a *Assignment) BeginDrain() { a.drain.Do(func() { close(a.draining) }) }

// Ready declares the run ready. It matters only when Spec.WaitReady is set.
func (a *Assignment) Ready() { a.readied.Do(func() { close(a.ready) }) }

// ReadyDone returns a channel that Ready closes. It is for internal/coordinator/supervisor.
func (a *Assignment) ReadyDone() <-chan struct{} { return a.ready }

// Progress adds n to the run's progress. With Spec.StallTimeout, a run that does not call it for
// that long has failed.
func (a *Assignment) Progress(n int) { a.progress.Add(int64(max(n, 0)) + 1) }

// Progressed returns a number that changes with every call of Progress. It is for
// internal/coordinator/supervisor.
func (a *Assignment) Progressed() int64 { return a.progress.Load() }

// ReportRefused reports to the node that a resource outside the store refused this run's fence, and which
// generation that resource holds. Generations issued from now on are then higher.
func (a *Assignment) ReportRefused(held int64) {
	if a.stale != nil {
		a.stale(held)
	}
}

type trustKey struct{}

// WithValidity returns a context that carries the validity of a run's assignment. The function remaining
// returns how much of it is left. It is for internal/coordinator/supervisor.
func WithValidity(ctx context.Context, remaining func() time.Duration) context.Context {
	return context.WithValue(ctx, trustKey{}, remaining)
}

// Validity returns how long the run to which ctx belongs may still act on its assignment (its
// validity), and whether ctx belongs to a run. Stores bound fenced transactions by it.
func Validity(ctx context.Context) (time.Duration, bool) {
	f, ok := ctx.Value(trustKey{}).(func() time.Duration)
	if !ok {
		return 0, false
	}
	return max(f(), 0), true
}
