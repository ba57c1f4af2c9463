package object_test

import (
	"context"
	"errors"
	"testing"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/internal/storage/mem"
	"github.com/emitd/emitd/storage"
	"github.com/emitd/emitd/storage/blob"
	"github.com/emitd/emitd/storage/object"
)

// copyOf reads the cluster object.
func copyOf(t testing.TB, b blob.Bucket) []byte {
	t.Helper()
	o, err := b.Read(context.Background(), object.ClusterKey)
	if err != nil {
		t.Fatal(err)
	}
	return o.Data
}

// putBack writes an older content of the cluster object, as an operator would.
func putBack(t testing.TB, b blob.Bucket, data []byte) {
	t.Helper()
	if err := b.Delete(context.Background(), object.ClusterKey); err != nil {
		t.Fatal(err)
	}
	if _, err := b.Create(context.Background(), object.ClusterKey, data); err != nil {
		t.Fatal(err)
	}
}

// TestRestored: when the bucket goes back, all processes learn that it is another store, even one
// that reads it only after others have gone on.
func TestRestored(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		story string
		first func(a, b *process) // who sees it first, and what they do
	}{
		{"the leader looks first", func(a, _ *process) { a.beat() }},
		{"a follower looks first", func(_, b *process) { b.beat() }},
		{"it is asked for its state first", func(a, _ *process) { a.snapshot() }},
	} {
		t.Run(tt.story, func(t *testing.T) {
			t.Parallel()
			store := mem.New(mem.Config{})
			a, b := start(t, store, 0).lead(), start(t, store, 1)
			id := b.beat().StoreID
			old := copyOf(t, store)
			r := a.give(unit, b)
			for range 5 {
				a.beat()
				b.beat()
			}
			highest := r.Generation
			putBack(t, store, old)
			tt.first(a, b)
			ra := a.beat(func(h *storage.Heartbeat) { h.HighestGeneration = highest })
			rb := b.beat(func(h *storage.Heartbeat) { h.HighestGeneration = highest })
			if ra.StoreID == id || ra.StoreID != rb.StoreID {
				t.Errorf("store id %q, %q, was %q", ra.StoreID, rb.StoreID, id)
			}
			if ra.StoreSince.IsZero() || !ra.StoreSince.Equal(rb.StoreSince) {
				t.Errorf("another store since %v, %v", ra.StoreSince, rb.StoreSince)
			}
			if len(rb.Units) != 0 {
				t.Errorf("the lost history has %d units", len(rb.Units))
			}
			if again := a.give(unit, b); again.Generation <= highest {
				t.Errorf("generation %d after %d", again.Generation, highest)
			}
			if c := start(t, store, 2).beat(); c.StoreID != ra.StoreID || !c.StoreSince.Equal(ra.StoreSince) {
				t.Errorf("a newcomer is told of %q since %v", c.StoreID, c.StoreSince)
			}
		})
	}
}

// TestRestoredAndGoneOn: a process saw the lost history and slept while a new history passed its
// number. It recognises the new one by the nonces.
func TestRestoredAndGoneOn(t *testing.T) {
	t.Parallel()
	store := mem.New(mem.Config{})
	a, b := start(t, store, 0).lead(), start(t, store, 1)
	old := copyOf(t, store)
	a.give(unit, b)
	id := a.beat().StoreID
	putBack(t, store, old)
	c := start(t, store, 2) // has seen nothing of the lost history
	for range 10 {
		if _, err := c.report(t.Context(), daemon.Record{Unit: unit}, daemon.Confirm); err != nil {
			t.Fatal(err)
		}
	}
	if r := c.beat(); r.StoreID != id {
		t.Fatal("somebody has noticed already")
	}
	if r := a.beat(); r.StoreID == id {
		t.Error("it took the new history for a continuation of the lost one")
	}
	if r := c.beat(); r.StoreID == id || r.StoreSince.IsZero() {
		t.Errorf("the others were not told: %q since %v", r.StoreID, r.StoreSince)
	}
}

// TestEmptied: a bucket whose cluster object is gone starts anew, as another store with higher
// numbers.
func TestEmptied(t *testing.T) {
	t.Parallel()
	store := mem.New(mem.Config{})
	a, b := start(t, store, 0).lead(), start(t, store, 1)
	before := b.beat()
	if err := store.Delete(t.Context(), object.ClusterKey); err != nil {
		t.Fatal(err)
	}
	for _, p := range []*process{a, b} {
		if _, err := p.try(t.Context()); !errors.Is(err, storage.ErrNotRegistered) {
			t.Fatalf("got %v", err)
		}
	}
	advertise := func(h *storage.Heartbeat) { h.Advert = &daemon.Advert{} }
	high := func(h *storage.Heartbeat) { h.HighestTerm = before.Term.Number }
	ra, rb := a.beat(advertise, high), b.beat(advertise, high, stand)
	if ra.StoreID == before.StoreID || ra.StoreID != rb.StoreID {
		t.Errorf("store id %q, %q, was %q", ra.StoreID, rb.StoreID, before.StoreID)
	}
	if ra.StoreSince.IsZero() {
		t.Error("nobody is told that it is another store")
	}
	if rb.Term.Number <= before.Term.Number {
		t.Errorf("term %d after %d", rb.Term.Number, before.Term.Number)
	}
}

// TestRestoredToAHistoryThatWasLeft: the bucket goes back to a history that the processes have left for another one,
// because an operator restored the wrong backup first, or the bucket was empty in between. It is another store again,
// also for a node that starts afterwards.
func TestRestoredToAHistoryThatWasLeft(t *testing.T) {
	t.Parallel()
	advertise := func(h *storage.Heartbeat) { h.Advert = &daemon.Advert{} }
	for _, tt := range []struct {
		story string
		lose  func(t *testing.T, bucket *mem.Bucket, old []byte)
	}{
		{"a backup was restored before", func(t *testing.T, bucket *mem.Bucket, old []byte) { putBack(t, bucket, old) }},
		{"the bucket was emptied before", func(t *testing.T, bucket *mem.Bucket, _ []byte) {
			if err := bucket.Delete(t.Context(), object.ClusterKey); err != nil {
				t.Fatal(err)
			}
		}},
	} {
		t.Run(tt.story, func(t *testing.T) {
			t.Parallel()
			store := mem.New(mem.Config{})
			a, b := start(t, store, 0).lead(), start(t, store, 1)
			old, id := copyOf(t, store), b.beat().StoreID
			a.give(unit, b)
			b.beat()
			tt.lose(t, store, old)
			for _, p := range []*process{a, b} {
				if _, err := p.try(t.Context()); err != nil && !errors.Is(err, storage.ErrNotRegistered) {
					t.Fatal(err)
				}
			}
			between := a.beat(advertise)
			if got := b.beat(advertise).StoreID; got == id || got != between.StoreID {
				t.Fatalf("store id %q and %q, was %q", between.StoreID, got, id)
			}
			putBack(t, store, old)
			ra, rb := a.beat(), b.beat()
			if ra.StoreID != rb.StoreID || ra.StoreID == id || ra.StoreID == between.StoreID {
				t.Errorf("store id %q, %q, was %q and before that %q", ra.StoreID, rb.StoreID, between.StoreID, id)
			}
			if c := start(t, store, 2).beat(); c.StoreID != ra.StoreID || c.StoreSince.IsZero() || !c.StoreSince.Equal(ra.StoreSince) {
				t.Errorf("a newcomer is told of %q since %v, the others of %q since %v", c.StoreID, c.StoreSince, ra.StoreID, ra.StoreSince)
			}
			for range 3 {
				if again := b.beat().StoreID; again != ra.StoreID || a.beat().StoreID != ra.StoreID {
					t.Errorf("the name changes again: %q, was %q", again, ra.StoreID)
				}
			}
		})
	}
}

// TestMovedToACopy: under another name the same content is another store.
func TestMovedToACopy(t *testing.T) {
	t.Parallel()
	store := mem.New(mem.Config{})
	p := start(t, store, 0)
	p.s = open(t, store, object.Config{Name: "s3://one"})
	one := p.beat()
	if again := p.beat(); again.StoreID != one.StoreID || !again.StoreSince.Equal(one.StoreSince) {
		t.Errorf("%q since %v, then %q since %v", one.StoreID, one.StoreSince, again.StoreID, again.StoreSince)
	}
	p.s = open(t, store, object.Config{Name: "s3://two"})
	if two := p.beat(); two.StoreID == one.StoreID || !two.StoreSince.After(one.StoreSince) {
		t.Errorf("%q since %v, then %q since %v", one.StoreID, one.StoreSince, two.StoreID, two.StoreSince)
	}
}

// TestOpen: what Open refuses.
func TestOpen(t *testing.T) {
	t.Parallel()
	t.Run("a bucket that ignores conditions", func(t *testing.T) {
		t.Parallel()
		bucket := mem.New(mem.Config{Faults: func(mem.Call) mem.Fault { return mem.Fault{Kind: mem.ConditionIgnored} }})
		if _, err := object.Open(t.Context(), bucket, object.Config{}); !errors.Is(err, blob.ErrUnfit) {
			t.Errorf("got %v", err)
		}
	})
	t.Run("a bucket without a cluster, to look at", func(t *testing.T) {
		t.Parallel()
		bucket := mem.New(mem.Config{})
		if _, err := object.Open(t.Context(), bucket, object.Config{MustExist: true, NoProbe: true}); !errors.Is(err, blob.ErrNotFound) {
			t.Errorf("got %v", err)
		}
		if keys := bucket.Keys(); len(keys) != 0 {
			t.Errorf("it wrote %v", keys)
		}
	})
	t.Run("a newer format", func(t *testing.T) {
		t.Parallel()
		bucket := mem.New(mem.Config{})
		if _, err := bucket.Create(t.Context(), object.ClusterKey, []byte("emitd cluster 4 00000000\nwhat may come")); err != nil {
			t.Fatal(err)
		}
		_, err := object.Open(t.Context(), bucket, object.Config{NoProbe: true})
		var schema *storage.SchemaError
		if !errors.Is(err, storage.ErrSchema) || !errors.As(err, &schema) || schema.Have != 4 || schema.Want != 3 {
			t.Errorf("got %v", err)
		}
	})
	t.Run("somebody else's object", func(t *testing.T) {
		t.Parallel()
		bucket := mem.New(mem.Config{})
		if _, err := bucket.Create(t.Context(), object.ClusterKey, []byte("hello")); err != nil {
			t.Fatal(err)
		}
		if _, err := object.Open(t.Context(), bucket, object.Config{NoProbe: true}); !errors.Is(err, blob.ErrCorrupt) {
			t.Errorf("got %v", err)
		}
	})
	t.Run("a fresh bucket", func(t *testing.T) {
		t.Parallel()
		bucket := mem.New(mem.Config{})
		s, err := object.Open(t.Context(), bucket, object.Config{})
		if err != nil {
			t.Fatal(err)
		}
		if got := s.Capabilities(); got != (storage.Capabilities{NoWakeUps: true, NoClock: true, Requests: 2}) {
			t.Errorf("capabilities %+v", got)
		}
		if keys := bucket.Keys(); len(keys) != 1 {
			t.Errorf("the bucket holds %v", keys)
		}
	})
}
