package lock

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/emitd/emitd/internal/backoff"
	"github.com/emitd/emitd/storage"
)

// Held is one holding of a lock. Its methods may be called from any goroutine. It has two
// goroutines: one watches the validity, the other renews. Both end with Release or when the lock is
// lost.
type Held struct {
	locks *Locks
	row   storage.Lock
	ctx   context.Context
	end   context.CancelCauseFunc
	loops sync.WaitGroup

	releasing sync.Mutex // held during the call for it
	released  bool       // the store no longer has the holding

	mu         sync.Mutex
	validUntil time.Duration // end of the validity, by the local clock
	extended   chan struct{} // closed when validUntil changes
}

// newHeld returns a holding that is valid until validUntil, and starts its goroutines.
func newHeld(ctx context.Context, l *Locks, row storage.Lock, validUntil time.Duration) *Held {
	h := &Held{locks: l, row: row, validUntil: validUntil, extended: make(chan struct{})}
	h.ctx, h.end = context.WithCancelCause(context.WithoutCancel(ctx))
	h.loops.Go(h.watch)
	if l.cfg.Renew > 0 {
		h.loops.Go(h.renew)
	}
	return h
}

// Name returns the lock's name.
func (h *Held) Name() string { return h.row.Name }

// Number returns the fencing token: it is higher than that of every earlier holding of the name.
func (h *Held) Number() int64 { return h.row.Number }

// Context returns a context that ends when the lock is no longer held, with the reason as its
// cause. It carries the values of the context given to Acquire, but does not end with it.
func (h *Held) Context() context.Context { return h.ctx }

// Extend renews the holding now. If the context has ended, it fails with its cause. After any other
// error it is unknown whether the store renewed the holding, and its validity is unchanged.
func (h *Held) Extend(ctx context.Context) error {
	if err := h.extend(ctx); err != nil {
		return fmt.Errorf("extend lock %q: %w", h.row.Name, err)
	}
	return nil
}

// extend renews the holding. It ends the holding if the store no longer has it.
func (h *Held) extend(ctx context.Context) error {
	cfg := h.locks.cfg
	if h.ctx.Err() != nil {
		return context.Cause(h.ctx)
	}
	ctx, cancel := context.WithTimeout(ctx, cfg.QueryTimeout)
	defer cancel()
	began := cfg.Clock()
	switch _, err := h.locks.store.Extend(ctx, h.row, cfg.TTL); {
	case errors.Is(err, storage.ErrLockLost):
		h.end(err)
		return err
	case err != nil:
		return err
	}
	// If two calls cross, the one that began later counts. Each was written after its beginning,
	// and others wait for a TTL after the last write.
	h.mu.Lock()
	defer h.mu.Unlock()
	if until := began + cfg.validity(); until > h.validUntil {
		h.validUntil = until
		close(h.extended)
		h.extended = make(chan struct{})
	}
	if h.ctx.Err() != nil {
		return context.Cause(h.ctx) // too late: what was lost stays lost
	}
	return nil
}

// Release ends the holding and frees the lock. It ends the context first, then both goroutines, and
// then calls the store. So nothing of this holding happens after another process has the lock.
// After an error the lock may stay taken until its TTL is over, and another call tries again to
// free it; storage.ErrLockLost reports that it was no longer held. Releasing again is harmless.
func (h *Held) Release(ctx context.Context) error {
	h.end(ErrReleased)
	h.loops.Wait()
	h.releasing.Lock()
	defer h.releasing.Unlock()
	if h.released {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, h.locks.cfg.QueryTimeout)
	defer cancel()
	err := h.locks.store.Release(ctx, h.row)
	h.released = err == nil || errors.Is(err, storage.ErrLockLost)
	if err != nil {
		return fmt.Errorf("release lock %q: %w", h.row.Name, err)
	}
	return nil
}

// watch ends the holding when its validity is over. It waits for no call, so a call that hangs
// cannot delay it. It reads the clock at least every ClockCheckInterval, because a timer does not run while the
// machine is suspended.
func (h *Held) watch() {
	for {
		left, moved := h.left()
		if left <= 0 {
			h.end(ErrNotRenewed)
			return
		}
		timer := time.NewTimer(min(left, h.locks.cfg.ClockCheckInterval))
		select {
		case <-timer.C:
		case <-moved:
		case <-h.ctx.Done():
			timer.Stop()
			return
		}
		timer.Stop()
	}
}

// left returns how long the validity lasts, and a channel that is closed when it is extended.
func (h *Held) left() (time.Duration, <-chan struct{}) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.validUntil - h.locks.cfg.Clock(), h.extended
}

// renew extends the holding every Renew, and sooner after a failure, until the holding has ended.
func (h *Held) renew() {
	cfg := h.locks.cfg
	pause, failures := cfg.Renew, 0
	for backoff.Sleep(h.ctx, pause-rand.N(pause/10+1)) == nil {
		err := h.extend(h.ctx)
		switch {
		case h.ctx.Err() != nil:
			return
		case err == nil:
			pause, failures = cfg.Renew, 0
			continue
		case failures == 0:
			cfg.Logger.WarnContext(h.ctx, "cannot renew a lock; trying again", "lock", h.row.Name, "number", h.row.Number, "error", err)
		}
		failures++
		pause = min(h.locks.retries.After(failures), cfg.Renew)
	}
}
