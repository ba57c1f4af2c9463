package lock_test

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/emitd/emitd/coordinator/lock"
	"github.com/emitd/emitd/storage"
	"github.com/emitd/emitd/storage/memory"
)

// stepping is a store's clock that can be set.
type stepping struct{ offset atomic.Int64 }

func (s *stepping) now() time.Time           { return time.Now().Add(time.Duration(s.offset.Load())) }
func (s *stepping) set(offset time.Duration) { s.offset.Store(int64(offset)) }

// stepStory runs a test with a store whose clock can be set.
func stepStory(t *testing.T, run func(w *world, clock *stepping)) {
	t.Helper()
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		clock := &stepping{}
		run(&world{T: t, store: memory.Open(memory.Config{Now: clock.now}), begin: time.Now()}, clock)
	})
}

// A lock whose holder renews has one holder, however far the store's clock is set forward or back.
func TestStepForwardGivesNoLockAway(t *testing.T) {
	stepStory(t, func(w *world, clock *stepping) {
		h := w.acquire(w.process(&line{}, lock.Config{}))
		other := w.process(&line{}, lock.Config{})
		for _, step := range []time.Duration{ttl, 365 * 24 * time.Hour, -time.Hour, 0, time.Hour} {
			clock.set(step)
			for range 60 {
				_, err := other.TryAcquire(w.Context(), "lock")
				w.refused(err, storage.ErrLocked)
				w.ok(h.Context().Err())
				pass(time.Second)
			}
		}
		w.ok(h.Release(w.Context()))
	})
}

// A holder that renewed while the store's clock was ahead, and then died, keeps the lock for a TTL,
// and not until the corrected clock has caught up.
func TestStepBackKeepsNoLock(t *testing.T) {
	stepStory(t, func(w *world, clock *stepping) {
		clock.set(24 * time.Hour)
		wire := &line{}
		dead := w.acquire(w.process(wire, lock.Config{}))
		wire.set(down, down)
		clock.set(0)
		other := w.process(&line{}, lock.Config{})
		h := w.acquire(other)
		w.within("the next holding", w.clock(), ttl, ttl+2*time.Second)
		if dead.Context().Err() == nil {
			w.Error("two contexts are alive")
		}
		w.ok(h.Release(w.Context()))
		_ = dead.Release(w.Context())
	})
}

// A process that asks now and then gets the lock of a dead holder with the first call at least a
// TTL after another: the Locks value remembers what earlier calls observed.
func TestTryAcquireRemembers(t *testing.T) {
	stepStory(t, func(w *world, _ *stepping) {
		dead := w.acquire(w.process(&line{}, lock.Config{Renew: -1}))
		pass(time.Hour)
		other := w.process(&line{}, lock.Config{TTL: 10 * time.Second}) // the TTL of the holder counts
		_, err := other.TryAcquire(w.Context(), "lock")
		w.refused(err, storage.ErrLocked)
		pass(ttl - time.Millisecond)
		_, err = other.TryAcquire(w.Context(), "lock")
		w.refused(err, storage.ErrLocked)
		pass(time.Millisecond)
		h, err := other.TryAcquire(w.Context(), "lock")
		w.ok(err)
		w.ok(h.Release(w.Context()))
		w.refused(dead.Release(w.Context()), storage.ErrLockLost)
	})
}

// A holding that changes at the last moment before its TTL is not taken.
func TestRenewalAtTheLastMoment(t *testing.T) {
	stepStory(t, func(w *world, _ *stepping) {
		held, err := w.store.Acquire(w.Context(), "lock", "holder", ttl, storage.Lock{})
		w.ok(err)
		wire := &line{}
		other := w.process(wire, lock.Config{})
		_, err = other.TryAcquire(w.Context(), "lock")
		w.refused(err, storage.ErrLocked)
		pass(ttl)
		_, err = w.store.Extend(w.Context(), held, ttl)
		w.ok(err)
		_, err = other.TryAcquire(w.Context(), "lock")
		w.refused(err, storage.ErrLocked)
		pass(ttl - time.Millisecond)
		_, err = other.TryAcquire(w.Context(), "lock")
		w.refused(err, storage.ErrLocked)
	})
}
