// Package wakeup notifies relays and the application's OnPublished hook of commits. It uses goroutines of
// its own, so that no publisher waits for either.
package wakeup

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/emitd/emitd/outbox"
	"github.com/emitd/emitd/outbox/internal/backlog"
)

// buffer is how many commits the hook may lag behind. Their messages are bounded, too.
const buffer = 1024

// Config says what a Notifier calls after commits.
type Config struct {
	// WakeRelays wakes relays, once for all commits since its last call. If it is nil, nothing is woken. Its
	// context ends when Close has finished or given up.
	WakeRelays func(context.Context)
	// Pause is the shortest time between the end of one WakeRelays and the next.
	Pause time.Duration
	// OnPublished is the application's hook. It gets the commits in their order; nil means no hook.
	OnPublished func([]outbox.Message)
	Logger      *slog.Logger
}

// Notifier notifies of commits. Its goroutines start with the first commit and end with Close.
type Notifier struct {
	cfg     Config
	signal  chan struct{} // holds a value if there was a commit since the last wake-up
	pending chan []outbox.Message
	bytes   backlog.Bytes // of the messages in pending and in the hook
	done    chan struct{} // closed when no more commits come
	ctx     context.Context
	stop    context.CancelFunc
	start   sync.Once
	end     sync.Once
	wg      sync.WaitGroup
}

// New returns a Notifier, which the caller must close.
func New(cfg Config) *Notifier {
	h := &Notifier{cfg: cfg, signal: make(chan struct{}, 1), pending: make(chan []outbox.Message, buffer), done: make(chan struct{})}
	h.ctx, h.stop = context.WithCancel(context.Background())
	return h
}

// Committed reports that messages were committed. A nil slice wakes relays without calling the hook.
// Committed never blocks.
func (h *Notifier) Committed(messages []outbox.Message) {
	h.start.Do(func() {
		if h.cfg.WakeRelays != nil {
			h.wg.Go(h.wakeRelays)
		}
		if h.cfg.OnPublished != nil {
			h.wg.Go(h.callHook)
		}
	})
	select {
	case h.signal <- struct{}{}:
	default:
	}
	if h.cfg.OnPublished == nil || messages == nil {
		return
	}
	if !h.put(messages) {
		h.cfg.Logger.Warn("outbox hook is too slow; a commit was not passed to it", "hook", "OnPublished", "messages", len(messages))
	}
}

// put adds a commit to the buffer. It returns false if there is no room.
func (h *Notifier) put(messages []outbox.Message) bool {
	n := size(messages)
	if !h.bytes.Take(n) {
		return false
	}
	select {
	case h.pending <- messages:
		return true
	default:
		h.bytes.Free(n)
		return false
	}
}

// size returns about how many bytes messages take.
func size(messages []outbox.Message) (n int64) {
	for i := range messages {
		m := &messages[i]
		n += backlog.Size(m.Payload, m.Headers, m.Key, m.TraceState)
	}
	return n
}

// wakeRelays wakes relays at the first commit, and then once for all commits of a pause.
func (h *Notifier) wakeRelays() {
	for {
		select {
		case <-h.signal:
		case <-h.done:
			return
		}
		h.cfg.WakeRelays(h.ctx)
		if h.cfg.Pause <= 0 {
			continue
		}
		t := time.NewTimer(h.cfg.Pause)
		select {
		case <-t.C:
		case <-h.done:
			t.Stop()
			return
		}
	}
}

// callHook calls the hook, in the order of the commits. After Close it first empties the buffer.
func (h *Notifier) callHook() {
	for {
		select {
		case m := <-h.pending:
			h.call(m)
		case <-h.done:
			for {
				select {
				case m := <-h.pending:
					h.call(m)
				default:
					return
				}
			}
		}
	}
}

func (h *Notifier) call(messages []outbox.Message) {
	defer func() {
		h.bytes.Free(size(messages))
		if p := recover(); p != nil {
			h.cfg.Logger.Error("outbox hook panicked", "hook", "OnPublished", "panic", p)
		}
	}()
	h.cfg.OnPublished(messages)
}

// Close waits until the buffered commits are reported, or ctx ends. It may be called more than once.
func (h *Notifier) Close(ctx context.Context) error {
	h.start.Do(func() {}) // from now on nothing starts
	h.end.Do(func() { close(h.done) })
	ended := make(chan struct{})
	go func() { h.wg.Wait(); close(ended) }()
	defer h.stop()
	select {
	case <-ended:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
