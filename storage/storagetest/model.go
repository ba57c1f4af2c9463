package storagetest

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/node"
	"github.com/emitd/emitd/storage"
	"github.com/emitd/emitd/storage/memory"
)

// runModel makes random calls to the backend and the reference model side by side. After each call,
// the answers, the whole cluster, the history and the waiting commands must be the same.
//
// A call is drawn in words ("process 2 campaigns, having seen the present term"). Each side turns
// it into numbers, using its own rows. With a frozen clock both sides count the same time and must
// have the same numbers. Without one, numbers are compared by their order and times not at all, and
// only durations are drawn that make no difference to any clock.
func runModel(t *testing.T, f Factory) {
	runs, played, failed := cmp.Or(f.Runs, math.MaxInt), 0, false
	rapid.Check(t, func(rt *rapid.T) {
		if played++; played > runs && !failed {
			return
		}
		defer func() { failed = failed || rt.Failed() }()
		scope := &scope{TB: t}
		defer scope.close()
		m := newModel(scope, f)
		m.begin(rt)
		rt.Repeat(m.actions())
		m.do(rt, "the whole history is read again", func(s *side) string { return s.history(0) })
	})
}

// scope runs cleanups at the end of one sequence instead of at the end of the test.
type scope struct {
	testing.TB
	cleanups []func()
}

// Cleanup registers f.
func (s *scope) Cleanup(f func()) { s.cleanups = append(s.cleanups, f) }

func (s *scope) close() {
	for i := len(s.cleanups) - 1; i >= 0; i-- {
		s.cleanups[i]()
	}
}

// model is the pair of stores with the processes that use them.
type model struct {
	exact     bool // both clocks stand still and agree
	lacks     Hooks
	real, ref *side
	processes []node.Identity
	units     []daemon.Unit
	now       time.Time // the reference's clock, if exact
	words     []string  // what was done, for the report of a failure
}

// side is one of the stores with its latest answers.
type side struct {
	store   storage.Store
	advance func(time.Duration)
	snap    *daemon.Snapshot
	text    *writer
	locks   map[string]storage.Lock // last holding granted, by name
}

func newModel(t testing.TB, f Factory) *model {
	w := open(t, f)
	m := &model{exact: w.offers()&FrozenClock != 0, lacks: f.Lacks}
	m.real = &side{store: w.Store, advance: w.Advance, text: newWriter(m.exact), locks: map[string]storage.Lock{}}
	if m.exact {
		// A whole second, so that no backend rounds differently from another.
		w.Advance(time.Second - time.Duration(w.snapshot().Now.Nanosecond()))
		m.now = w.snapshot().Now
	}
	clock := time.Now
	if m.exact {
		clock = func() time.Time { return m.now }
	}
	m.ref = &side{
		store:   memory.Open(memory.Config{Now: clock, StoreID: w.snapshot().StoreID}),
		advance: func(d time.Duration) { m.now = m.now.Add(d) },
		text:    newWriter(m.exact), locks: map[string]storage.Lock{},
	}
	for i := range 6 { // three members, two processes each
		m.processes = append(m.processes, node.Identity{
			Name: fmt.Sprintf("node-%d", i/2), ID: node.ID(uuid(1, i/2)), Incarnation: node.Incarnation(uuid(2, i)),
		})
	}
	m.units = []daemon.Unit{{Daemon: "acme:a"}, {Daemon: "acme:a", Index: 1}, {Daemon: "acme:a", Index: 10}, {Daemon: "acme:b"}}
	if m.lacks&Keys == 0 {
		m.units = append(m.units, daemon.Unit{Daemon: "acme:b", Key: "k"}, daemon.Unit{Daemon: "acme:b", Key: "two words"})
	}
	return m
}

// begin makes a cluster in which something can happen.
func (m *model) begin(rt *rapid.T) {
	for i := range 3 {
		claim := storage.TermRequest{Lease: long, Campaign: i == 0}
		m.do(rt, fmt.Sprintf("process %d joins", 2*i), func(s *side) string {
			return s.beat(storage.Heartbeat{Node: m.processes[2*i], Seq: 1, Advert: &adverts[0], TTL: long, TermRequest: claim, EventsAfter: 0})
		})
	}
	m.do(rt, "the leader declares", func(s *side) string {
		c := storage.Commit{Term: s.snap.Term.Ref()}
		for _, u := range m.units[:3] {
			c.Changes = append(c.Changes, storage.Change{Unit: u})
		}
		return s.commit(c)
	})
}

// do makes one call on both sides and compares the results.
func (m *model) do(rt *rapid.T, words string, call func(s *side) string) {
	m.words = append(m.words, words)
	var results [2]string
	for i, s := range []*side{m.real, m.ref} {
		if s.snap == nil {
			s.snap = &daemon.Snapshot{}
		}
		answer := call(s)
		after, err := s.snapshot()
		if err != nil {
			rt.Fatalf("%s\nreading the store after the last: %v", m.story(), err)
		}
		results[i] = "answer: " + answer + "\n" + after
	}
	if results[0] != results[1] {
		rt.Fatalf("%s\nafter the last, the backend and the model differ:\n%s", m.story(), diff(results[0], results[1]))
	}
}

func (m *model) story() string { return strings.Join(m.words, "\n") }

// diff shows the lines in which two texts differ.
func diff(got, want string) string {
	g, w := strings.Split(got, "\n"), strings.Split(want, "\n")
	var out strings.Builder
	for i := range max(len(g), len(w)) {
		var a, b string
		if i < len(g) {
			a = g[i]
		}
		if i < len(w) {
			b = w[i]
		}
		if a != b {
			fmt.Fprintf(&out, "  backend: %s\n  model:   %s\n", a, b)
		}
	}
	return out.String()
}

// snapshot reads the cluster and the new part of the history.
func (s *side) snapshot() (string, error) {
	snap, err := s.store.Snapshot(context.Background())
	if err != nil {
		return "", err
	}
	newEvents := s.history(s.snap.Head)
	s.snap = snap
	return s.text.snapshot(snap) + newEvents, nil
}

// history reads and writes the events after a number.
func (s *side) history(after int64) string {
	page, err := s.store.Events(context.Background(), after, 1<<20)
	if err != nil {
		return s.text.err(err)
	}
	return s.text.page(page)
}

// row returns what the side's store holds of a process.
func (s *side) row(who node.Identity) node.Member {
	for _, m := range s.snap.Nodes {
		if m.Incarnation == who.Incarnation {
			return m
		}
	}
	return node.Member{}
}

// unit returns what the side's store holds of a unit.
func (s *side) unit(u daemon.Unit) daemon.Record {
	for _, r := range s.snap.Units {
		if r.Unit == u {
			return r
		}
	}
	return daemon.Record{}
}

// highest returns the highest generation that the side's store shows.
func (s *side) highest() int64 {
	var n int64
	for _, r := range s.snap.Units {
		n = max(n, r.Generation)
	}
	return n
}
