package worker

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/emitd/emitd/internal/backoff"
	"github.com/emitd/emitd/queue"
)

const (
	reporters   = 4       // calls in flight at a time
	reportBytes = 4 << 20 // bytes of results and causes in one call
)

// reporter sends settlements in batches: those that come while calls are in flight go with the next
// call. So many short jobs need few calls, and a single job waits for nothing.
type reporter struct {
	svc   queue.Consumer
	queue string
	ctx   context.Context // context of all calls: cancelled by end
	end   context.CancelFunc

	mu      sync.Mutex
	waiting []*report
	sending int
	senders sync.WaitGroup
}

// report is one settlement that is being sent.
type report struct {
	what queue.Settlement
	out  queue.Outcome
	err  error
	done chan struct{}
}

func newReporter(svc queue.Consumer, name string) *reporter {
	r := &reporter{svc: svc, queue: name}
	r.ctx, r.end = context.WithCancel(context.Background())
	return r
}

// settle sends one settlement and waits for its outcome.
func (r *reporter) settle(s queue.Settlement) (queue.Outcome, error) {
	mine := &report{what: s, done: make(chan struct{})}
	r.mu.Lock()
	r.waiting = append(r.waiting, mine)
	if r.sending < reporters {
		r.sending++
		r.senders.Go(r.send)
	}
	r.mu.Unlock()
	<-mine.done
	return mine.out, mine.err
}

// send sends batches until no report waits.
func (r *reporter) send() {
	for batch := r.nextBatch(); len(batch) > 0; batch = r.nextBatch() {
		r.call(batch)
	}
}

// nextBatch removes and returns the next batch. If no report waits, the sender is done.
func (r *reporter) nextBatch() []*report {
	r.mu.Lock()
	defer r.mu.Unlock()
	n, size := 0, 0
	for n < len(r.waiting) && n < queue.MaxCall {
		size += len(r.waiting[n].what.Result) + len(r.waiting[n].what.Cause)
		if n > 0 && size > reportBytes {
			break
		}
		n++
	}
	batch := r.waiting[:n:n]
	r.waiting = r.waiting[n:]
	if n == 0 {
		r.sending--
		r.waiting = nil
	}
	return batch
}

// call sends a batch and sets the outcome of each report. If the batch is refused, each report is
// sent alone, so that an invalid one does not affect the others.
func (r *reporter) call(batch []*report) {
	what := make([]queue.Settlement, len(batch))
	for i, b := range batch {
		what[i] = b.what
	}
	outcomes, err := r.svc.Settle(r.ctx, r.queue, what)
	if err == nil && len(outcomes) != len(batch) {
		err = fmt.Errorf("%d outcomes of %d settlements", len(outcomes), len(batch))
	}
	if err != nil && !transient(err) && len(batch) > 1 {
		for i := range batch {
			r.call(batch[i : i+1])
		}
		return
	}
	for i, b := range batch {
		if err == nil {
			b.out = outcomes[i]
		}
		b.err = err
		close(b.done)
	}
}

// sleep waits for d, or until the reporter ends.
func (r *reporter) sleep(d time.Duration) error { return backoff.Sleep(r.ctx, d) }

// close cancels the calls in flight and waits for their goroutines.
func (r *reporter) close() {
	r.end()
	r.senders.Wait()
}
