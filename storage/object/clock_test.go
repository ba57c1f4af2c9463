package object_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/storage"
	"github.com/emitd/emitd/storage/blob/mem"
)

// TestLocksWithoutAClock: who wants a lock must itself have seen it unchanged for its whole time,
// whatever the stamps say.
func TestLocksWithoutAClock(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		bucket := mem.New(mem.Config{})
		a, b := start(t, bucket, 0), start(t, bucket, 1)
		held, err := a.s.Acquire(t.Context(), "lock", "a", time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		refused := func(left time.Duration) {
			t.Helper()
			l, err := b.s.Acquire(t.Context(), "lock", "b", time.Minute)
			if !errors.Is(err, storage.ErrLocked) || l.Owner != "a" {
				t.Fatalf("got %+v, %v", l, err)
			}
			if got := l.ExpiresAt.Sub(l.Now); got != left {
				t.Errorf("told to wait %v, want %v", got, left)
			}
		}
		<-time.After(2 * time.Minute)
		refused(time.Minute) // a's clock may be slow
		<-time.After(59 * time.Second)
		refused(time.Second)
		if held, err = a.s.Extend(t.Context(), held, time.Minute); err != nil {
			t.Fatal(err)
		}
		<-time.After(time.Second)
		refused(59 * time.Second) // it has moved
		<-time.After(time.Minute)
		got, err := b.s.Acquire(t.Context(), "lock", "b", time.Minute)
		if err != nil || got.Number <= held.Number {
			t.Fatalf("got %+v, %v", got, err)
		}
		if _, err := a.s.Extend(t.Context(), held, time.Minute); !errors.Is(err, storage.ErrLockLost) {
			t.Errorf("got %v", err)
		}
	})
}

// TestIDWithoutAClock: the ID of a process that ended without a word is free once the next one has
// seen it silent for a registration's life.
func TestIDWithoutAClock(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		bucket := mem.New(mem.Config{})
		first, second := start(t, bucket, 0), start(t, bucket, 1)
		second.id.ID, second.id.Incarnation = first.id.ID, "another"
		advertise := func(h *storage.Heartbeat) { h.Advert = &daemon.Advert{} }
		inUse := func() {
			t.Helper()
			if _, err := second.try(t.Context(), advertise); !errors.Is(err, storage.ErrIDInUse) {
				t.Fatalf("got %v", err)
			}
		}
		<-time.After(time.Hour)
		inUse()
		<-time.After(59 * time.Second)
		first.beat() // it lives
		inUse()
		<-time.After(59 * time.Second)
		inUse()
		<-time.After(time.Second)
		second.beat(advertise)
	})
}
