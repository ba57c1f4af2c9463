package object_test

import (
	"errors"
	"slices"
	"testing"
	"testing/synctest"

	"github.com/emitd/emitd/internal/storage/mem"
	"github.com/emitd/emitd/storage"
	"github.com/emitd/emitd/storage/blob"
)

// TestDamagedPulse: while the heartbeats of a node cannot be read, nobody is elected and nothing is planned, because the node
// may live. The next heartbeat of the node replaces the damaged object, and forgets nothing that the node has said.
func TestDamagedPulse(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := mem.New(mem.Config{})
		leader, p := start(t, store, 0).lead(), start(t, store, 1)
		p.beat()
		p.beat(func(h *storage.Heartbeat) { h.HighestGeneration = 77 })
		key := "in/n/" + string(p.id.Incarnation)
		o, err := store.Read(t.Context(), key)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := store.Replace(t.Context(), key, o.Data[:len(o.Data)/2], o.Version); err != nil {
			t.Fatal(err)
		}
		if _, err := leader.s.Snapshot(t.Context()); !errors.Is(err, blob.ErrCorrupt) {
			t.Fatalf("got %v", err)
		}
		late := p.seq
		p.beat()
		if row := leader.row(p); row.Seq != p.seq || row.HighestGeneration != 77 {
			t.Errorf("the row has heartbeat %d and generation %d, want %d and 77", row.Seq, row.HighestGeneration, p.seq)
		}
		if _, err := p.try(t.Context(), func(h *storage.Heartbeat) { h.Seq = late }); !errors.Is(err, storage.ErrStaleSeq) {
			t.Errorf("a late heartbeat: got %v", err)
		}
		if got := start(t, store, 2).row(p).Seq; got != late+1 {
			t.Errorf("a newcomer finds heartbeat %d, want %d", got, late+1)
		}
	})
}

// TestTornPulse: a process whose connection cuts its own heartbeats in half replaces them, too, and nobody finds them gone meanwhile.
func TestTornPulse(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := mem.New(mem.Config{})
		leader, p := start(t, store, 0).lead(), start(t, store, 1)
		p.beat()
		key, torn := "in/n/"+string(p.id.Incarnation), mem.Fault{Kind: mem.TornRead}
		store.Inject(mem.Replace, key, mem.Fault{Kind: mem.LostReply})            // so that it must read the object
		store.Inject(mem.ReadNewer, key, slices.Repeat([]mem.Fault{torn}, 12)...) // nine for this heartbeat, three for the next
		if _, err := p.try(t.Context()); !errors.Is(err, storage.ErrUnavailable) {
			t.Fatalf("got %v", err)
		}
		p.beat()
		if row := leader.row(p); row.Seq != p.seq {
			t.Errorf("the row has heartbeat %d, want %d", row.Seq, p.seq)
		}
		if n := store.Stats()[mem.Delete].Calls; n != 0 {
			t.Errorf("%d deletions", n)
		}
	})
}
