package memory_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/node"
	"github.com/emitd/emitd/storage"
	"github.com/emitd/emitd/storage/memory"
)

// process is a node of the tests of this package.
type process struct {
	s   *memory.Store
	id  node.Identity
	seq uint64
}

// join registers the n-th process.
func join(t testing.TB, s *memory.Store, n int) *process {
	t.Helper()
	p := &process{s: s, id: node.Identity{
		Name: fmt.Sprint("node-", n), ID: node.ID(fmt.Sprintf("0198c5a2-0001-7000-8000-%012x", n)),
		Incarnation: node.Incarnation(fmt.Sprintf("0198c5a2-0002-7000-8000-%012x", n)),
	}}
	p.beat(t, func(h *storage.Heartbeat) {
		h.Advert = &daemon.Advert{Traits: node.Traits{Capacity: 1, Labels: map[string]string{"zone": "a"}}, Kinds: []daemon.Kind{"acme:reports"}}
	})
	return p
}

// beat sends a heartbeat that must be accepted.
func (p *process) beat(t testing.TB, edits ...func(*storage.Heartbeat)) *storage.Reply {
	t.Helper()
	p.seq++
	h := storage.Heartbeat{Node: p.id, Seq: p.seq, ConfirmedSeq: p.seq - 1, TTL: time.Minute, EventsAfter: -1, TermRequest: storage.TermRequest{Lease: time.Minute}}
	for _, e := range edits {
		e(&h)
	}
	r, err := p.s.Heartbeat(t.Context(), h)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// lead makes the process the leader of a vacant term.
func (p *process) lead(t testing.TB) node.Term {
	t.Helper()
	r := p.beat(t, func(h *storage.Heartbeat) { h.TermRequest.Campaign = true })
	if r.Verdict != storage.Elect {
		t.Fatalf("verdict %v, want an election", r.Verdict)
	}
	return r.Term
}

// change commits one change that must be applied.
func (p *process) change(t testing.TB, term node.Term, c storage.Change) daemon.Record {
	t.Helper()
	out, err := p.s.Commit(t.Context(), storage.Commit{Term: term.Ref(), Changes: []storage.Change{c}})
	if err != nil {
		t.Fatal(err)
	}
	if !out[0].Applied {
		t.Fatalf("%q of %s was skipped: %+v", c.Step, c.Unit, out[0].Record)
	}
	return out[0].Record
}
