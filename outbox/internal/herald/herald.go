// Package herald tells relays and the application's hook of commits, from goroutines of its own: no
// publisher waits for either.
package herald

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/emitd/emitd/outbox"
)

// buffer is how many commits the hook may be behind.
const buffer = 1024

// Config says what is told, and to whom.
type Config struct {
	// Ring wakes relays, once for all commits since it was called last; nil wakes nobody. Its context
	// ends when nobody waits for it any more.
	Ring func(context.Context)
	// Pause is the least time between the end of one Ring and the next.
	Pause time.Duration
	// OnPublished is the application's hook, which hears of the commits in their order; nil is none.
	OnPublished func([]outbox.Message)
	Logger      *slog.Logger
}

// Herald tells of commits. Its goroutines begin with the first one and end with Close.
type Herald struct {
	cfg    Config
	signal chan struct{} // a commit since the last ring
	told   chan []outbox.Message
	done   chan struct{} // no more commits
	ctx    context.Context
	stop   context.CancelFunc
	start  sync.Once
	end    sync.Once
	wg     sync.WaitGroup
}

// New makes a herald, which the caller closes.
func New(cfg Config) *Herald {
	h := &Herald{cfg: cfg, signal: make(chan struct{}, 1), told: make(chan []outbox.Message, buffer), done: make(chan struct{})}
	h.ctx, h.stop = context.WithCancel(context.Background())
	return h
}

// Committed says that messages are there; nil says so without naming them. It never waits.
func (h *Herald) Committed(messages []outbox.Message) {
	h.start.Do(func() {
		if h.cfg.Ring != nil {
			h.wg.Go(h.ring)
		}
		if h.cfg.OnPublished != nil {
			h.wg.Go(h.tell)
		}
	})
	select {
	case h.signal <- struct{}{}:
	default:
	}
	if h.cfg.OnPublished == nil || messages == nil {
		return
	}
	select {
	case h.told <- messages:
	default:
		h.cfg.Logger.Warn("outbox hook is too slow; it missed a commit", "hook", "OnPublished", "messages", len(messages))
	}
}

// ring wakes relays at once, and then once for all commits of a pause.
func (h *Herald) ring() {
	for {
		select {
		case <-h.signal:
		case <-h.done:
			return
		}
		h.cfg.Ring(h.ctx)
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

// tell calls the hook, in the order in which it was told.
func (h *Herald) tell() {
	for {
		select {
		case m := <-h.told:
			h.call(m)
		case <-h.done:
			for {
				select {
				case m := <-h.told:
					h.call(m)
				default:
					return
				}
			}
		}
	}
}

func (h *Herald) call(messages []outbox.Message) {
	defer func() {
		if p := recover(); p != nil {
			h.cfg.Logger.Error("outbox hook panicked", "hook", "OnPublished", "panic", p)
		}
	}()
	h.cfg.OnPublished(messages)
}

// Close waits until what was told is told, or ctx ends. It may be called more than once.
func (h *Herald) Close(ctx context.Context) error {
	h.start.Do(func() {}) // nothing starts any more
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
