package memory_test

import (
	"fmt"
	"testing"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/storage"
	"github.com/emitd/emitd/storage/memory"
	"github.com/emitd/emitd/storage/storagetest"
)

// BenchmarkStore runs the benchmarks that all backends share.
func BenchmarkStore(b *testing.B) {
	storagetest.Bench(b, storagetest.Factory{
		Open:  func(testing.TB) storagetest.Backend { return backend(nil) },
		Lacks: storagetest.Clock | storagetest.FrozenClock,
	})
}

// BenchmarkSimulator measures the simulator's most frequent calls, in its size: five nodes with 20
// units each. The budget is 3 µs for a heartbeat and 5 µs for a snapshot.
func BenchmarkSimulator(b *testing.B) {
	s := memory.Open(memory.Config{})
	l := join(b, s, 0)
	term := l.lead(b)
	nodes := []*process{l}
	for i := range 4 {
		nodes = append(nodes, join(b, s, i+1))
	}
	c := storage.Commit{Term: term.Ref()}
	for i := range 100 {
		u := daemon.Unit{Daemon: "acme:reports", Index: i}
		c.Changes = append(c.Changes, storage.Change{Unit: u},
			storage.Change{Unit: u, Step: daemon.Assign, State: daemon.Unassigned, To: nodes[i%5].id})
	}
	if _, err := s.Commit(b.Context(), c); err != nil {
		b.Fatal(err)
	}
	b.Run("heartbeat", func(b *testing.B) {
		b.ReportAllocs()
		for i := range b.N {
			nodes[i%5].beat(b, func(h *storage.Heartbeat) { h.EventsAfter = 5 })
		}
	})
	b.Run("snapshot", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := s.Snapshot(b.Context()); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("clone", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			s.Clone()
		}
	})
}

// BenchmarkGrowth shows that a change of a unit costs the same in a large cluster, except for the
// logarithm of the search.
func BenchmarkGrowth(b *testing.B) {
	for _, units := range []int{100, 10_000} {
		b.Run(fmt.Sprint(units), func(b *testing.B) {
			s := memory.Open(memory.Config{})
			p := join(b, s, 0)
			term := p.lead(b)
			for i := 0; i < units; i += 100 {
				c := storage.Commit{Term: term.Ref()}
				for j := range 100 {
					c.Changes = append(c.Changes, storage.Change{Unit: daemon.Unit{Daemon: "acme:reports", Index: i + j}})
				}
				if _, err := s.Commit(b.Context(), c); err != nil {
					b.Fatal(err)
				}
			}
			u := daemon.Unit{Daemon: "acme:reports", Index: units / 2}
			state, generation := daemon.Unassigned, int64(0)
			for b.Loop() {
				for _, step := range []daemon.Step{daemon.Assign, daemon.Expire} {
					out, err := s.Commit(b.Context(), storage.Commit{Term: term.Ref(), Changes: []storage.Change{
						{Unit: u, Step: step, State: state, Generation: generation, To: p.id},
					}})
					if err != nil || !out[0].Applied {
						b.Fatal(err, out)
					}
					state, generation = out[0].Record.State, out[0].Record.Generation
				}
			}
		})
	}
}
