// Package inflight bounds the memory that the calls of a process hold while they are answered.
//
// All calls of a process share a [Budget]. Each [Call] takes bytes from it before it holds them: the body as it is
// read and decoded, and the payloads that are loaded for its answer. A call gives everything back when it ends. The
// first [FreeBytes] bytes of a call need only its place among the calls, so that large calls cannot keep small ones out.
//
// The call travels in the context, because the code that is about to hold many bytes is far from the code that
// knows the connection: see [NewContext] and [FromContext].
package inflight

import (
	"context"
	"sync"
	"sync/atomic"
)

const (
	// FreeBytes is how many bytes of a call are not taken from the budget.
	FreeBytes = 16 << 10
	// step is how many bytes a call takes at a time, so that reading a body does not take each piece separately.
	step = 64 << 10
)

// Budget is what all calls together may hold. It is safe for concurrent use.
type Budget struct {
	bytes, calls         int64
	heldBytes, heldCalls atomic.Int64
}

// New makes a budget of that many bytes and that many simultaneous calls.
func New(bytes int64, calls int) *Budget {
	return &Budget{bytes: bytes, calls: int64(calls)}
}

// Begin starts a call. It returns false if there are too many already. End the call when it has been answered.
func (b *Budget) Begin() (*Call, bool) {
	if !acquire(&b.heldCalls, 1, b.calls) {
		return nil, false
	}
	return &Call{budget: b}, true
}

// Held returns how many bytes and calls are held now.
func (b *Budget) Held() (bytes, calls int64) { return b.heldBytes.Load(), b.heldCalls.Load() }

// acquire adds n, unless the sum would exceed limit.
func acquire(held *atomic.Int64, n, limit int64) bool {
	for {
		now := held.Load()
		if n > limit-now {
			return false
		}
		if held.CompareAndSwap(now, now+n) {
			return true
		}
	}
}

// Call is one call that is being answered. It is safe for concurrent use. A nil *Call has no bound.
type Call struct {
	budget *Budget

	mu         sync.Mutex
	used, held int64
	ended      bool
}

// Budget returns the budget of the call, nil for a nil call.
func (c *Call) Budget() *Budget {
	if c == nil {
		return nil
	}
	return c.budget
}

// Take reserves n more bytes that the call is about to hold. If the budget has fewer left, it takes nothing and
// returns false.
func (c *Call) Take(n int64) bool {
	if c == nil || n <= 0 {
		return true
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if missing := c.used + n - FreeBytes - c.held; missing > 0 && !c.ended {
		more := (missing + step - 1) / step * step
		if !acquire(&c.budget.heldBytes, more, c.budget.bytes) {
			if more = missing; !acquire(&c.budget.heldBytes, more, c.budget.bytes) {
				return false
			}
		}
		c.held += more
	}
	c.used += n
	return true
}

// End gives everything back. Only its first call has an effect.
func (c *Call) End() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.ended {
		return
	}
	c.ended = true
	c.budget.heldBytes.Add(-c.held)
	c.budget.heldCalls.Add(-1)
	c.held = 0
}

type key struct{}

// NewContext returns a context that carries the call.
func NewContext(ctx context.Context, c *Call) context.Context {
	return context.WithValue(ctx, key{}, c)
}

// FromContext returns the call that a context carries, or nil.
func FromContext(ctx context.Context) *Call {
	c, _ := ctx.Value(key{}).(*Call)
	return c
}
