package plan

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/node"
)

// A shape is a cluster of 1,000 nodes and 10,000 units.
type shape struct {
	name    string
	daemons int
	unlike  bool   // the nodes have different capacities
	spread  string // label to spread by: "host" makes each node a class
	weight  func(i int) int
}

var shapes = []shape{
	{name: "100daemons", daemons: 100},
	{name: "10000daemons", daemons: 10_000},
	{name: "1daemon", daemons: 1},
	{name: "weights", daemons: 1000, weight: func(i int) int { return 1 + i%17 }},
	{name: "unlike", daemons: 100, unlike: true},
	{name: "byhost", daemons: 100, spread: "host"},
	{name: "byhost10000daemons", daemons: 10_000, spread: "host"},
}

// cold returns the shape with all units declared and free.
func (s shape) cold(nodes, units int) Input {
	specs := make([]daemon.Spec, s.daemons)
	for i := range specs {
		specs[i] = daemon.Spec{ID: daemon.ID(fmt.Sprintf("acme:daemon-%05d", i)), Instances: max(units/s.daemons, 1), Spread: s.spread}
		if s.weight != nil {
			specs[i].Weight = s.weight(i)
		}
	}
	shared := advert(specs...)
	in := Input{Now: epoch, RetireAfter: time.Hour}
	for i := range nodes {
		n := live(fmt.Sprintf("node-%04d", i), shared).labelled("zone", fmt.Sprintf("zone-%d", i%3), "host", fmt.Sprint(i))
		n.Member.Incarnation = node.Incarnation(fmt.Sprintf("0197c3a2-7b1e-7c31-9f00-%012d", i))
		if s.unlike {
			n.Member.Capacity = 10_000 + i
		}
		in.Nodes = append(in.Nodes, n)
	}
	for _, spec := range specs {
		for _, u := range spec.Units() {
			in.Units = append(in.Units, daemon.Record{Unit: u, State: daemon.Unassigned, Since: epoch})
		}
	}
	return in
}

// run measures plans of an input and checks the number of decisions.
func run(b *testing.B, in Input, decisions int) {
	b.Helper()
	b.ReportAllocs()
	for b.Loop() {
		if p := Make(in); len(p.Decisions) != decisions {
			b.Fatalf("%d decisions, want %d", len(p.Decisions), decisions)
		}
	}
}

// BenchmarkFull plans all units from an empty cluster.
func BenchmarkFull(b *testing.B) {
	for _, s := range shapes {
		b.Run(s.name, func(b *testing.B) { run(b, s.cold(1000, 10_000), 10_000) })
	}
}

// BenchmarkNoChange plans a cluster in which nothing changes.
func BenchmarkNoChange(b *testing.B) {
	for _, s := range shapes {
		in := settle(b, s.cold(1000, 10_000))
		b.Run(s.name, func(b *testing.B) { run(b, in, 0) })
	}
}

// BenchmarkOneNodeLost places the units of one lost node.
func BenchmarkOneNodeLost(b *testing.B) {
	in := settle(b, shapes[0].cold(1000, 10_000))
	in.Nodes[17].State = node.Removed
	lost := 0
	for i := range in.Units {
		if r := &in.Units[i]; r.Holder == in.Nodes[17].Member.Identity {
			r.State = daemon.Deleted
			lost++
		}
	}
	run(b, in, lost)
}

// BenchmarkSize shows that time and memory grow linearly with the cluster.
func BenchmarkSize(b *testing.B) {
	for _, n := range []int{100, 1000, 10_000} {
		b.Run(fmt.Sprintf("%dnodes", n), func(b *testing.B) { run(b, shape{daemons: n / 10}.cold(n, 10*n), 10*n) })
	}
}

// BenchmarkLarge plans 1,000 nodes with 100,000 units: all of them new, nothing changed, and one node lost. It is promised
// that a leader plans the first within a second, and the last within 50 ms.
func BenchmarkLarge(b *testing.B) {
	const units = 100_000
	s := shapes[0]
	cold := s.cold(1000, units)
	in := settle(b, cold)
	lost := in
	lost.Nodes, lost.Units = slices.Clone(in.Nodes), slices.Clone(in.Units)
	lost.Nodes[17].State = node.Removed
	n := 0
	for i := range lost.Units {
		if r := &lost.Units[i]; r.Holder == lost.Nodes[17].Member.Identity {
			r.State = daemon.Deleted
			n++
		}
	}
	b.Run("full", func(b *testing.B) { run(b, cold, units) })
	b.Run("nochange", func(b *testing.B) { run(b, in, 0) })
	b.Run("onenodelost", func(b *testing.B) { run(b, lost, n) })
}

// BenchmarkExplain explains one unit among all.
func BenchmarkExplain(b *testing.B) {
	in := shapes[0].cold(1000, 10_000)
	b.ReportAllocs()
	for b.Loop() {
		Explain(in, in.Units[5000].Unit)
	}
}

// BenchmarkRebalance plans a round of 100 moves: half of the nodes are new and empty. Even is the same plan once there is
// nothing left to move.
func BenchmarkRebalance(b *testing.B) {
	for _, s := range shapes {
		in := settle(b, s.cold(500, 10_000))
		in.Nodes = s.cold(1000, 10_000).Nodes
		in.MaxMoves = 100
		b.Run(s.name, func(b *testing.B) { run(b, in, 100) })
		even := settle(b, s.cold(1000, 10_000))
		for even.MaxMoves = 100; ; even.Units = carryOut(even.Units, Make(even).Decisions) {
			if len(Make(even).Decisions) == 0 {
				break
			}
		}
		b.Run(s.name+"/even", func(b *testing.B) { run(b, even, 0) })
	}
}
