package postgres_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/emitd/emitd/coordinator/lock"
	"github.com/emitd/emitd/internal/pgtest"
	"github.com/emitd/emitd/storage"
	"github.com/emitd/emitd/storage/postgres"
)

// Tests named locks on a server whose clock is really set, with processes whose own clocks the test
// sets. If the clock goes forward, no process gets the lock of a living holder. If it goes back, a
// dead holder keeps its lock for one TTL.
func TestLocksOverStepsOfTheServersClock(t *testing.T) {
	t.Parallel()
	server, err := pgtest.Start(pgtest.Config{FakeTime: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = server.Close() })
	cfg := postgres.Config{URL: server.URL("postgres"), QueryTimeout: waitTimeout}
	if _, err := postgres.Migrate(context.Background(), cfg, postgres.Version); err != nil {
		t.Fatal(err)
	}
	store := open(t, cfg)
	var local atomic.Int64 // the time that the clocks of both processes show
	locks := func() *lock.Locks {
		l, err := lock.New(store, lock.Config{TTL: 15 * time.Second, Renew: -1, Clock: func() time.Duration { return time.Duration(local.Load()) }})
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	step := func(offset time.Duration) {
		t.Helper()
		if err := server.StepClock(offset); err != nil {
			t.Fatal(err)
		}
	}
	holder, other := locks(), locks()
	held, err := holder.TryAcquire(t.Context(), "lock")
	if err != nil {
		t.Fatal(err)
	}
	for _, offset := range []time.Duration{15 * time.Second, 24 * time.Hour, -24 * time.Hour, time.Hour} {
		step(offset)
		if _, err := other.TryAcquire(t.Context(), "lock"); !errors.Is(err, storage.ErrLocked) {
			t.Fatalf("clock at %v: got %v, want %v", offset, err, storage.ErrLocked)
		}
		if err := held.Extend(t.Context()); err != nil {
			t.Fatalf("clock at %v: %v", offset, err)
		}
	}
	step(0) // corrected, and the holder never renews again
	if _, err := other.TryAcquire(t.Context(), "lock"); !errors.Is(err, storage.ErrLocked) {
		t.Fatalf("got %v, want %v", err, storage.ErrLocked)
	}
	after := locks()
	local.Add(int64(15 * time.Second))
	if _, err := after.TryAcquire(t.Context(), "lock"); !errors.Is(err, storage.ErrLocked) {
		t.Fatalf("a process that has just begun got %v, want %v", err, storage.ErrLocked)
	}
	next, err := other.TryAcquire(t.Context(), "lock")
	if err != nil {
		t.Fatal(err)
	}
	if next.Number() <= held.Number() {
		t.Errorf("number %d after %d", next.Number(), held.Number())
	}
	if err := held.Release(t.Context()); !errors.Is(err, storage.ErrLockLost) {
		t.Errorf("got %v, want %v", err, storage.ErrLockLost)
	}
	if err := next.Release(t.Context()); err != nil {
		t.Error(err)
	}
}
