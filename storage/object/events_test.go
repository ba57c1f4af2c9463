package object_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/internal/storage/mem"
	"github.com/emitd/emitd/node"
	"github.com/emitd/emitd/storage"
	"github.com/emitd/emitd/storage/blob"
	"github.com/emitd/emitd/storage/object"
)

// emitEvents makes the leader emit n events about a node, some dozens in each step.
func (p *process) emitEvents(of *process, n int) {
	p.t.Helper()
	guard := storage.NodeVersion{Incarnation: of.id.Incarnation}
	c := storage.Commit{Term: p.term.Ref(), Nodes: []storage.NodeChange{{Guard: guard, State: node.Live}}}
	for i := range n {
		c.Nodes = append(c.Nodes, storage.NodeChange{Guard: guard, State: []node.State{node.Late, node.Deaf}[i%2]})
		if i%50 < 49 && i < n-1 {
			continue
		}
		if _, err := p.s.Commit(context.Background(), c); err != nil {
			p.t.Fatal(err)
		}
		c.Nodes = nil
	}
}

// segments lists the keys of the segments.
func segments(t testing.TB, b blob.Bucket) []string {
	t.Helper()
	page, err := b.List(context.Background(), "ev/", "", 0)
	if err != nil {
		t.Fatal(err)
	}
	var keys []string
	for _, e := range page.Entries {
		keys = append(keys, e.Key)
	}
	return keys
}

// TestSpill: the history is complete and in order, however many events there are and whichever
// process writes them. Two readers see the same one.
func TestSpill(t *testing.T) {
	t.Parallel()
	store := mem.New(mem.Config{})
	leader, p := start(t, store, 0).lead(), start(t, store, 1)
	var writers sync.WaitGroup
	for i := range 4 {
		writers.Go(func() {
			s := open(t, store, object.Config{})
			for j := range 3 * object.PerSegment / 4 {
				if _, err := s.Submit(t.Context(), storage.Command{ID: fmt.Sprint(i, j), Kind: daemon.CommandResign, Term: 1}); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	writers.Wait()
	all := leader.history()
	if len(all) != 3*object.PerSegment+3 {
		t.Errorf("%d events", len(all))
	}
	if n := len(segments(t, store)); n < 2 {
		t.Errorf("%d segments", n)
	}
	if got := start(t, store, 2).history(); !reflect.DeepEqual(got[:len(all)], all) {
		t.Error("another reader sees another history")
	}
	r := p.beat(func(h *storage.Heartbeat) { h.EventsAfter = 0 })
	if r.EventsMissing || len(r.Events) != 3 {
		t.Errorf("behind %v, %d membership events", r.EventsMissing, len(r.Events))
	}
	page, err := p.s.Events(t.Context(), 200, 500)
	if err != nil || !reflect.DeepEqual(page.Events, all[200:700]) {
		t.Errorf("a page over the edges of segments: %v", err)
	}
}

// TestSpillInterrupted: events leave the cluster object only after a segment contains them,
// whatever the outcome of the writes.
func TestSpillInterrupted(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		story  string
		op     mem.Op
		prefix string
		fault  mem.Fault
	}{
		{"the segment is refused", mem.Create, "ev/", mem.Fault{Kind: mem.Denied}},
		{"the segment is refused for no reason", mem.Create, "ev/", mem.Fault{Kind: mem.Refused}},
		{"the reply to the segment is lost", mem.Create, "ev/", mem.Fault{Kind: mem.LostReply}},
		{"the cluster is refused after the segment", mem.Replace, object.ClusterKey, mem.Fault{Kind: mem.Denied}},
	} {
		t.Run(tt.story, func(t *testing.T) {
			t.Parallel()
			var mu sync.Mutex
			armed := false
			store := mem.New(mem.Config{Faults: func(c mem.Call) mem.Fault {
				mu.Lock()
				defer mu.Unlock()
				if armed && c.Op == tt.op && strings.HasPrefix(c.Key, tt.prefix) {
					armed = false
					return tt.fault
				}
				return mem.Fault{}
			}})
			leader, p := start(t, store, 0).lead(), start(t, store, 1)
			leader.emitEvents(p, 2*object.PerSegment-4) // the next event completes two batches
			before := leader.history()
			mu.Lock()
			armed = true
			mu.Unlock()
			_, err := leader.s.Submit(t.Context(), storage.Command{ID: "c", Kind: daemon.CommandResign, Term: 1})
			if denied := tt.op == mem.Replace; errors.Is(err, blob.ErrDenied) != denied || err != nil && !denied {
				t.Fatal(err)
			}
			mu.Lock()
			if armed {
				t.Fatal("the fault was not met")
			}
			mu.Unlock()
			if got := start(t, store, 2).history(); len(got) < len(before) || !reflect.DeepEqual(got[:len(before)], before) {
				t.Error("the history is another one")
			}
			leader.emitEvents(p, 2*object.PerSegment)
			if got := leader.history(); !reflect.DeepEqual(got[:len(before)], before) {
				t.Error("the history is another one, later")
			}
		})
	}
}

// TestSpillOfALargeStep: events of a step that has not happened yet do not leave the cluster
// object. Another process may be first, and then the events are different.
func TestSpillOfALargeStep(t *testing.T) {
	t.Parallel()
	store := mem.New(mem.Config{})
	bucket := &tap{Bucket: store}
	leader, p := start(t, store, 0).lead(), start(t, store, 1)
	var changes []storage.Change
	for i := range storage.MaxChanges {
		changes = append(changes, storage.Change{Unit: daemon.Unit{Daemon: "acme:a", Index: i}})
	}
	if _, err := leader.commit(changes...); err != nil {
		t.Fatal(err)
	}
	for i := range changes {
		changes[i].Step, changes[i].State, changes[i].To = daemon.Assign, daemon.Unassigned, p.id
	}
	leader.emitEvents(p, 100)
	leader.s = open(t, bucket, object.Config{})
	leader.snapshot()
	bucket.on(once(mem.Replace, object.ClusterKey, func() {
		if _, err := p.s.Submit(t.Context(), storage.Command{ID: "first", Kind: daemon.CommandResign, Term: 1}); err != nil {
			t.Error(err)
		}
	}), nil)
	if out, err := leader.commit(changes...); err != nil || !out[0].Applied {
		t.Fatal(err)
	}
	leader.emitEvents(p, 10)
	operators, units := 0, map[daemon.Unit]bool{}
	for _, e := range leader.history() {
		if e.Kind == daemon.CommandResign.Event() {
			operators++
		}
		if e.Kind == daemon.AssignmentAssigned {
			units[e.Unit] = true
		}
	}
	if operators != 1 || len(units) != len(changes) || len(segments(t, store)) == 0 {
		t.Errorf("the history has %d commands, want 1, and %d assignments, want %d", operators, len(units), len(changes))
	}
}

// TestSweptSegments: segments that no reader needs are deleted, and so are segments of a writer
// that ended before the cluster named them. Segments that may still be named stay.
func TestSweptSegments(t *testing.T) {
	t.Parallel()
	store := mem.New(mem.Config{})
	leader, p := start(t, store, 0).lead(), start(t, store, 1)
	leader.emitEvents(p, 5*object.PerSegment)
	f := daemon.Fence{Unit: daemon.Unit{Daemon: "emit:sweeper"}, Generation: 3}
	if err := leader.s.StampFence(t.Context(), f); err != nil {
		t.Fatal(err)
	}
	litter := "ev/00000000000000000257-00000000000000aa"
	if _, err := store.Create(t.Context(), litter, []byte("x")); err != nil {
		t.Fatal(err)
	}
	head := leader.snapshot().Head
	first := int64(0) // of the events that are in the cluster object
	for _, key := range segments(t, store) {
		var at int64
		if _, err := fmt.Sscanf(key, "ev/%d-", &at); err == nil {
			first = max(first, at+object.PerSegment)
		}
	}
	pending := fmt.Sprintf("ev/%020d-00000000000000bb", first)
	if _, err := store.Create(t.Context(), pending, []byte("x")); err != nil {
		t.Fatal(err)
	}
	keep := int(head-first) + 1 + object.PerSegment/2
	for removed := -1; removed != 0; {
		var err error
		if removed, err = leader.s.SweepEvents(t.Context(), f, storage.Retention{Age: time.Hour, MaxEvents: keep}, 100); err != nil {
			t.Fatal(err)
		}
	}
	if got := leader.history(); len(got) != keep || got[0].Seq != head-int64(keep)+1 {
		t.Errorf("%d events from %d", len(got), got[0].Seq)
	}
	if got := segments(t, store); len(got) != 2 || got[1] != pending {
		t.Errorf("segments %v", got)
	}
	if r := p.beat(func(h *storage.Heartbeat) { h.EventsAfter = 1 }); !r.EventsMissing {
		t.Error("a reader of swept events is not behind")
	}
	// By age: the first event that is young enough stays, and no segment is read to find that out.
	reads := store.Stats()[mem.Read].Calls
	if n, err := leader.s.SweepEvents(t.Context(), f, storage.Retention{Age: time.Hour, MaxEvents: 1 << 20}, 100); n != 0 || err != nil {
		t.Error(n, err)
	}
	if got := store.Stats()[mem.Read].Calls - reads; got > 1 {
		t.Errorf("%d reads", got)
	}
	if n, err := leader.s.SweepEvents(t.Context(), f, storage.Retention{Age: -time.Hour, MaxEvents: 1 << 20}, 1<<20); n != keep || err != nil {
		t.Error(n, err)
	}
	if got := segments(t, store); len(got) != 0 {
		t.Errorf("segments %v", got)
	}
}

// TestLostSegment: a history with a missing segment is an error, not a shorter history.
func TestLostSegment(t *testing.T) {
	t.Parallel()
	store := mem.New(mem.Config{})
	leader, p := start(t, store, 0).lead(), start(t, store, 1)
	leader.emitEvents(p, 3*object.PerSegment)
	keys := segments(t, store)
	o, err := store.Read(t.Context(), keys[0])
	if err != nil {
		t.Fatal(err)
	}
	if _, err := store.Replace(t.Context(), keys[0], append(bytes.Clone(o.Data), 'x'), o.Version); err != nil {
		t.Fatal(err)
	}
	if _, err := leader.s.Events(t.Context(), 0, 10); !errors.Is(err, blob.ErrCorrupt) {
		t.Errorf("got %v", err)
	}
	if err := store.Delete(t.Context(), keys[0]); err != nil {
		t.Fatal(err)
	}
	if _, err := leader.s.Events(t.Context(), 0, 10); err == nil {
		t.Error("a lost segment is no error")
	}
	if page, err := leader.s.Events(t.Context(), 600, 10); err != nil || len(page.Events) != 10 {
		t.Errorf("what is left cannot be read: %v", err)
	}
	leader.beat() // and nothing else fails
}
