package sqlite

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/internal/channel"
)

// reportWaitAfter is how long a stamp waits for the write lock before the wait is written as an event.
const reportWaitAfter = time.Second

// maxStamps bounds the stamps in one transaction, and with them how long others wait for the write lock.
const maxStamps = 200

// stamps are the fence stamps of this process that are not written yet. A process in which a thousand runs begin
// writes them in a few transactions: whichever caller gets the session that writes takes the others' stamps along.
type stamps struct {
	mu      sync.Mutex
	waiting []*stampRequest
}

// stampRequest is a stamp that waits for a transaction, its caller's own or another one's.
type stampRequest struct {
	fence daemon.Fence
	done  chan struct{} // closed once it is written or refused; then err says which
	err   error
}

// StampFence implements [storage.Store]. It waits for every transaction that writes, including those
// that hold the fence. Stamping the generation that is already there costs no write. The fence may be
// raised even for a caller that gives up.
func (s *Store) StampFence(ctx context.Context, f daemon.Fence) error {
	r := &stampRequest{fence: f, done: make(chan struct{})}
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	began := time.Now()
	err := s.stampTogether(ctx, r)
	s.timings.record(ctx, "stamp", began, err)
	if err != nil {
		return fmt.Errorf("stamp %s: %w", f, err)
	}
	return nil
}

// stampTogether waits until the request was written by another caller, or writes it together with those that wait. A
// transaction that fails leaves the others' requests waiting: each caller learns only of failures of its own.
func (s *Store) stampTogether(ctx context.Context, r *stampRequest) (err error) {
	if err := ctx.Err(); err != nil {
		return err
	}
	s.stamps.add(r)
	defer s.stamps.remove(r)
	var batch []*stampRequest
	select {
	case <-r.done:
		return r.err
	case c := <-s.writer:
		defer func() { s.writer <- c }() // only when the batch is not waiting any more
		if channel.IsClosed(r.done) {
			return r.err
		}
		c, err = s.writeOn(ctx, c, func(st *step) error {
			batch = s.stamps.next(r)
			for _, r := range batch {
				r.err = st.raiseFence(r.fence)
			}
			return nil
		})
		if err != nil {
			return err
		}
		s.stamps.written(batch)
		return r.err
	case <-ctx.Done():
		return s.lockError(ctx.Err())
	}
}

// raiseFence raises a fence, unless the generation or a higher one is there.
func (st *step) raiseFence(f daemon.Fence) error {
	if st.Fence(f.Unit) >= f.Generation {
		return st.checkFence(f)
	}
	st.exec(`INSERT OR REPLACE INTO ~fence (daemon, idx, generation, stamped_at) VALUES (?, ?, ?, ?)`,
		append(columnsOf(f.Unit), f.Generation, nanos(st.now))...)
	if st.waited > reportWaitAfter {
		st.Emit(daemon.Event{
			Kind: daemon.FenceWaiting, Daemon: f.Unit.Daemon, Unit: f.Unit, Generation: f.Generation,
			Reason: fmt.Sprintf("waited %v for the write lock of the file", st.waited.Round(time.Millisecond)),
		}, st.now)
	}
	return nil
}

func (q *stamps) add(r *stampRequest) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.waiting = append(q.waiting, r)
}

// remove forgets a request whose caller does not wait any more.
func (q *stamps) remove(r *stampRequest) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.waiting = slices.DeleteFunc(q.waiting, func(o *stampRequest) bool { return o == r })
}

// next returns a caller's own request and those that have waited longest. They go on waiting until they are written.
func (q *stamps) next(own *stampRequest) []*stampRequest {
	q.mu.Lock()
	defer q.mu.Unlock()
	batch := []*stampRequest{own}
	for _, r := range q.waiting {
		if r != own && len(batch) < maxStamps {
			batch = append(batch, r)
		}
	}
	return batch
}

// written lets the callers of a batch go on.
func (q *stamps) written(batch []*stampRequest) {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.waiting = slices.DeleteFunc(q.waiting, func(r *stampRequest) bool { return slices.Contains(batch, r) })
	for _, r := range batch {
		close(r.done)
	}
}
