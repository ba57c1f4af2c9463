package broker

import (
	"slices"

	"github.com/emitd/emitd/queue/internal/ledger"
)

// claims holds what calls of workers leave behind in a shard: long polls that wait for jobs, and the
// request IDs of durable claims that are not durable yet. The shard's goroutine owns it, except
// withdrawn.
type claims struct {
	waiting   []*claimCall
	pruneAt   int                 // with so many waiting, those that were answered elsewhere are removed
	withdrawn mailbox[*claimCall] // long polls whose callers have stopped waiting
	requests  map[string]*batch   // the batch of each request's claims
	settled   *ledger.Job         // the job of the settlement that is being decided; nil until the first
}

// leastPruned is how many long polls wait at least when those that were answered elsewhere are removed.
const leastPruned = 64

// wait adds a long poll. A shard without jobs offers none to its polls, and would never see that others have answered
// them.
func (w *claims) wait(c *claimCall) {
	if len(w.waiting) >= max(w.pruneAt, leastPruned) {
		w.waiting = slices.DeleteFunc(w.waiting, func(p *claimCall) bool { return p.taken.Load() })
		w.pruneAt = 2 * len(w.waiting)
	}
	w.waiting = append(w.waiting, c)
}

// withdraw takes a long poll back whose caller has stopped waiting. Any goroutine may call it.
func (w *claims) withdraw(c *claimCall) {
	w.withdrawn.put(c) // if withdrawn is full, serve notices by c.taken
}

// removeWithdrawn removes the long polls that were withdrawn.
func (w *claims) removeWithdrawn() {
	for c, ok := w.withdrawn.get(); ok; c, ok = w.withdrawn.get() {
		w.waiting = slices.DeleteFunc(w.waiting, func(p *claimCall) bool { return p == c })
	}
}

// serve offers jobs to the long polls in the order in which they came, as long as more reports that
// there are any. claim reports whether the poll needs nothing more.
func (w *claims) serve(more func() bool, claim func(*claimCall) bool) {
	kept := w.waiting[:0]
	for i, c := range w.waiting {
		if !more() {
			kept = append(kept, w.waiting[i:]...)
			break
		}
		if !c.taken.Load() && !claim(c) {
			kept = append(kept, c)
		}
	}
	clear(w.waiting[len(kept):])
	w.waiting = kept
}

// releaseWaiting takes all long polls.
func (w *claims) releaseWaiting(release func(*call)) {
	for _, c := range w.waiting {
		release(&c.call)
	}
	w.waiting = nil
}

// begin notes that the claims of a request are in this batch.
func (w *claims) begin(request string, b *batch) {
	if request == "" {
		return
	}
	if w.requests == nil {
		w.requests = map[string]*batch{}
	}
	w.requests[request] = b
	b.requests = append(b.requests, request)
}

// batchOf returns the batch with the claims of a request; nil if there is none that is not durable yet.
func (w *claims) batchOf(request string) *batch { return w.requests[request] }

// applied forgets the requests of a batch that is durable: the ledger has their claims.
func (w *claims) applied(b *batch) {
	for _, id := range b.requests {
		delete(w.requests, id)
	}
}

// job returns room for the job of the settlement that is being decided. It is valid until the next call.
func (w *claims) job() *ledger.Job {
	if w.settled == nil {
		w.settled = new(ledger.Job)
	}
	return w.settled
}
