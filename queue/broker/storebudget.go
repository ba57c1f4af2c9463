package broker

import (
	"errors"
	"sync/atomic"
	"time"

	"github.com/emitd/emitd/queue"
	"github.com/emitd/emitd/storage/blob"
)

// storeBudget remembers that the budget of requests to the object store is used up (blob.ErrBudget). That can last for
// hours, so calls that would write are refused at once instead of waiting. Its methods may be called from any
// goroutine.
type storeBudget struct {
	end  atomic.Pointer[budgetEnd]
	wake chan<- struct{} // gets a token after a request was refused; nil: nobody waits for that
}

// budgetEnd is an error of the store's budget, and when the store may be asked again.
type budgetEnd struct {
	err   error
	until time.Time
}

// unknownBudget is how long a budget counts as used up if the store does not say.
const unknownBudget = time.Minute

// failed records the error of a failed request, if it says that the budget is used up.
func (b *storeBudget) failed(err error) {
	if !errors.Is(err, blob.ErrBudget) {
		return
	}
	wait := blob.RetryAfter(err)
	if wait <= 0 {
		wait = unknownBudget
	}
	b.end.Store(&budgetEnd{err, time.Now().Add(wait)})
	signal(b.wake)
}

// left returns for how long nothing can be written; not positive if the budget is not used up.
func (b *storeBudget) left() time.Duration {
	if end := b.end.Load(); end != nil {
		return time.Until(end.until)
	}
	return 0
}

// refusal returns the refusal of a call that would write, or nil while the budget is not used up.
func (b *storeBudget) refusal() *queue.Error {
	left, end := b.left(), b.end.Load()
	if left <= 0 {
		return nil
	}
	e := queue.Refuse(queue.Unavailable, "nothing can be written for %v: %w", left.Round(time.Second), end.err).
		WithHint("raise the budget of writes to the object store (objects.writes_per_day), or wait")
	e.RetryAfter = left
	return e
}

// refuseWaiting answers the calls whose records cannot be written while the budget is used up. The records stay in the
// journal, which writes them later, so the outcome of these calls is unknown. Nothing more is decided for them.
func (g *commits) refuseWaiting() {
	why := g.budget.refusal()
	if why == nil {
		return
	}
	late := queue.Refuse(queue.UnknownOutcome, "the call may take effect later: %w", why).WithHint("%s", why.Hint)
	for _, b := range append(g.inFlight[:len(g.inFlight):len(g.inFlight)], g.gathering) {
		if b == nil {
			continue
		}
		for _, w := range b.waiters {
			w.call.refuse(late)
		}
		for _, c := range b.parked {
			if c.wrote || c.claimAnswer() { // otherwise another shard has answered it
				c.refuse(late)
			}
		}
	}
}
