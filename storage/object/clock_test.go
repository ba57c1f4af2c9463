package object_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/internal/storage/mem"
	"github.com/emitd/emitd/storage"
)

// TestIDWithoutAClock: the node ID of a process that ended without leaving is free once the next
// process has seen it silent for a registration TTL.
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
		first.beat() // the first process lives
		inUse()
		<-time.After(59 * time.Second)
		inUse()
		<-time.After(time.Second)
		second.beat(advertise)
	})
}
