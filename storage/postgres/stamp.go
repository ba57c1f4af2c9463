package postgres

import (
	"context"
	"slices"
	"sync"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/internal/pgerror"
)

// stamps batches fence stamps that are requested at the same time. A process in which a thousand
// runs begin then sends only a few calls.
type stamps struct {
	mu      sync.Mutex
	waiting []*stampRequest
	sending bool
}

// stampRequest is a stamp that waits for its batch.
type stampRequest struct {
	ctx   context.Context // of the caller that waits
	fence daemon.Fence
	held  int64
	err   error
	done  chan struct{}
}

// stampInput is one element of the input of stamps.sql, stamps_rows.sql and stamps_held.sql.
type stampInput struct {
	Ord        int    `json:"ord"`
	Daemon     string `json:"daemon"`
	Index      int    `json:"index"`
	Generation int64  `json:"generation"`
}

// maxStamps bounds the stamps in one call.
const maxStamps = 200

// stampBatched raises the fence in one call with others, unless a transaction holds the fence. It
// returns the generation that the fence holds then. A lower one than requested says that raising it
// would have had to wait. The fence may be raised even for a caller that gives up.
func (s *Store) stampBatched(ctx context.Context, f daemon.Fence) (held int64, err error) {
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	w := &stampRequest{ctx: ctx, fence: f, done: make(chan struct{})}
	if !s.queueStamp(w) {
		return 0, errClosed
	}
	select {
	case <-w.done:
		return w.held, w.err
	case <-ctx.Done():
		return 0, ctx.Err()
	}
}

// queueStamp adds a stamp to the next batch. It reports false once the store is closed.
func (s *Store) queueStamp(w *stampRequest) bool {
	q := &s.stamps
	q.mu.Lock()
	defer q.mu.Unlock()
	if s.calls.Err() != nil {
		return false
	}
	q.waiting = append(q.waiting, w)
	if !q.sending {
		q.sending = true
		s.own.Go(s.sendStamps)
	}
	return true
}

// end waits for a queueStamp that is under way. The store's calls have ended before, so every later
// queueStamp refuses. No batch can therefore begin after end has returned.
func (q *stamps) end() {
	q.mu.Lock()
	defer q.mu.Unlock()
}

// next takes the next batch: stamps whose callers still wait.
func (q *stamps) next() []*stampRequest {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.waiting = slices.DeleteFunc(q.waiting, func(w *stampRequest) bool { return w.ctx.Err() != nil })
	n := min(len(q.waiting), maxStamps)
	batch := slices.Clone(q.waiting[:n])
	q.waiting = slices.Delete(q.waiting, 0, n)
	q.sending = n > 0
	return batch
}

// sendStamps sends batches, one call after the other, until no stamp waits.
func (s *Store) sendStamps() {
	for batch := s.stamps.next(); len(batch) > 0; batch = s.stamps.next() {
		s.sendBatch(batch)
	}
}

// sendBatch raises those fences of a batch that no transaction holds. It is one transaction and
// waits for no lock longer than briefWait.
func (s *Store) sendBatch(batch []*stampRequest) {
	input := make([]stampInput, len(batch))
	for i, w := range batch {
		name, index := columns(w.fence.Unit)
		input[i] = stampInput{i, name, index, w.fence.Generation}
	}
	text := encode(input)
	err := s.callWithin(s.calls, "stamps", writing, briefWait, func(m *message) {
		m.do("stamps_rows", text)
		m.do("stamps", text)
		m.query(func(c *composite) error {
			ord, held := c.int(), c.int()
			if ord < 0 || ord >= int64(len(batch)) {
				return errRow
			}
			batch[ord].held = held
			return nil
		}, "stamps_held", text)
	})
	for _, w := range batch {
		if pgerror.Code(err) != codeLockTimeout { // otherwise each caller tries its own stamp
			w.err = err
		}
		close(w.done)
	}
}
