package outbox

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/emitd/emitd/outbox/internal/backlog"
)

// hookBuffer is how many events a hook may lag behind. Their rows are bounded, too.
const hookBuffer = 1024

// hooks calls the user's hooks, each on its own goroutine.
type hooks struct {
	h           Hooks
	log         *slog.Logger
	dropped     func(hook string)
	onDelivered *hookQueue
	fail        *hookQueue
	died        *hookQueue
}

func newHooks(h Hooks, log *slog.Logger, missed func(string)) *hooks {
	return &hooks{h: h, log: log, dropped: missed, onDelivered: &hookQueue{}, fail: &hookQueue{}, died: &hookQueue{}}
}

func (h *hooks) delivered(subscription string, rows []Row) {
	if h.h.OnDelivered != nil {
		rows = slices.Clone(rows) // they share an array with other rows of their page, which need not be kept
		h.put(h.onDelivered, "OnDelivered", rowBytes(rows...), func() { h.h.OnDelivered(subscription, rows) })
	}
}

func (h *hooks) failed(subscription string, row Row, err error) {
	if h.h.OnFailed != nil {
		h.put(h.fail, "OnFailed", rowBytes(row), func() { h.h.OnFailed(subscription, row, err) })
	}
}

func (h *hooks) dead(subscription string, row Row, cause string) {
	if h.h.OnDeadLettered != nil {
		h.put(h.died, "OnDeadLettered", rowBytes(row), func() { h.h.OnDeadLettered(subscription, row, cause) })
	}
}

// rowBytes returns about how many bytes rows take.
func rowBytes(rows ...Row) (n int64) {
	for i := range rows {
		m := &rows[i].Message
		n += backlog.Size(m.Payload, m.Headers, m.Key, m.TraceState)
	}
	return n
}

func (h *hooks) put(l *hookQueue, hook string, bytes int64, call func()) {
	if !l.put(bytes, func() {
		defer func() {
			if p := recover(); p != nil {
				h.log.Error("outbox hook panicked", "hook", hook, "panic", p)
			}
		}()
		call()
	}) {
		h.dropped(hook)
	}
}

func (h *hooks) close(ctx context.Context) error {
	for _, l := range []*hookQueue{h.onDelivered, h.fail, h.died} {
		if err := l.close(ctx); err != nil {
			return err
		}
	}
	return nil
}

// hookQueue runs calls in order on one goroutine, which starts with the first call.
type hookQueue struct {
	mu     sync.Mutex
	calls  chan func()
	bytes  backlog.Bytes // of the rows of calls that have not run
	ended  chan struct{}
	closed atomic.Bool
}

// put adds a call with rows of a number of bytes. It returns false if there is no room.
func (l *hookQueue) put(bytes int64, call func()) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed.Load() {
		return false
	}
	if l.calls == nil {
		l.calls, l.ended = make(chan func(), hookBuffer), make(chan struct{})
		go func() {
			defer close(l.ended)
			for call := range l.calls {
				call()
			}
		}()
	}
	if !l.bytes.Take(bytes) {
		return false
	}
	select {
	case l.calls <- func() { defer l.bytes.Free(bytes); call() }:
		return true
	default:
		l.bytes.Free(bytes)
		return false
	}
}

// close waits until the calls that were put have run, or ctx ends.
func (l *hookQueue) close(ctx context.Context) error {
	l.mu.Lock()
	if l.calls != nil && !l.closed.Load() {
		close(l.calls)
	}
	l.closed.Store(true)
	ended := l.ended
	l.mu.Unlock()
	if ended == nil {
		return nil
	}
	select {
	case <-ended:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
