package plan

import (
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/node"
)

// heldBy returns active units of one daemon, in the given numbers per node.
func heldBy(t testing.TB, id string, counts map[string]int) []daemon.Record {
	var out []daemon.Record
	for i := 1; i <= 20; i++ {
		name := fmt.Sprintf("n%d", i)
		for range counts[name] {
			out = append(out, row(t, fmt.Sprintf("%s/%d", id, len(out)), daemon.Active, name))
		}
	}
	return out
}

// uneven is a settled cluster with one daemon.
func uneven(t testing.TB, spec daemon.Spec, nodes int, counts map[string]int) Input {
	in := Input{Now: epoch, SettleWindow: window, MaxMoves: 100, Nodes: livesOf(nodes, advert(spec))}
	in.Units = heldBy(t, string(spec.ID), counts)
	return in
}

func TestRebalanceHeal(t *testing.T) {
	t.Parallel()
	in := uneven(t, daemon.Spec{ID: "a", Instances: 60}, 10, map[string]int{"n1": 60})
	p := Make(in)
	if len(p.Decisions) != 54 || p.Balanced {
		t.Fatalf("%d moves, even: %v", len(p.Decisions), p.Balanced)
	}
	for _, d := range p.Decisions {
		if d.Step != daemon.Revoke || d.Reason.Rule != Rebalancing || d.Generation != 7 || d.State != daemon.Active {
			t.Fatalf("decision %+v", d)
		}
	}
	done := settle(t, in)
	for name, n := range countUnits(done.Units) {
		if n != 6 {
			t.Errorf("%s has %d units", name, n)
		}
	}
	if p := Make(done); !p.Balanced || len(p.Decisions) > 0 {
		t.Errorf("even: %v, decisions %v", p.Balanced, reported(p))
	}
}

func countUnits(units []daemon.Record) map[string]int {
	out := map[string]int{}
	for _, r := range units {
		if !r.State.IsFree() {
			out[r.Holder.Name]++
		}
	}
	return out
}

// A round has at most MaxMoves moves, and the next one waits until no unit is on its way.
func TestRebalanceRounds(t *testing.T) {
	t.Parallel()
	in := uneven(t, daemon.Spec{ID: "a", Instances: 60}, 10, map[string]int{"n1": 60})
	in.MaxMoves = 7
	p := Make(in)
	if len(p.Decisions) != 7 {
		t.Fatalf("%d moves", len(p.Decisions))
	}
	in.Units[0].State = daemon.Revoking
	if p := Make(in); len(p.Decisions) != 0 || p.Balanced {
		t.Errorf("while a unit drains: even %v, %v", p.Balanced, reported(p))
	}
	in.MaxMoves, in.Units[0].State = 0, daemon.Active
	if p := Make(in); len(p.Decisions) != 0 || p.Balanced {
		t.Errorf("without moves: even %v, %v", p.Balanced, reported(p))
	}
}

// Nothing moves while the membership is not settled, and the plan says when to look again.
func TestRebalanceWaitsForSettledMembership(t *testing.T) {
	t.Parallel()
	spec := daemon.Spec{ID: "a", Instances: 4}
	a := advert(spec)
	for _, c := range []struct {
		name  string
		again time.Duration // from now; 0 = at an event
		node  Node
	}{
		{"a join", 4 * time.Second, live("n9", a).born(time.Second)},
		{"a stop", 4 * time.Second, live("n9", a).gone(time.Second, "shutdown")},
		{"a death", 2 * time.Second, live("n9", a).gone(3*time.Second, "no heartbeat for 6s")},
		{"a death judged just now", 0, live("n9", a).being(node.Removed)},
		{"a late node", 0, live("n9", a).being(node.Late)},
	} {
		in := uneven(t, spec, 2, map[string]int{"n1": 4})
		in.Nodes = append(in.Nodes, c.node)
		p := Make(in)
		if len(p.Decisions) > 0 || p.Balanced {
			t.Errorf("%s: even %v, %v", c.name, p.Balanced, reported(p))
		}
		want := time.Time{}
		if c.again > 0 {
			want = epoch.Add(c.again)
		}
		if !p.DueAt.Equal(want) {
			t.Errorf("%s: look again at %v, want %v", c.name, p.DueAt, want)
		}
	}
	in := uneven(t, spec, 2, map[string]int{"n1": 4})
	in.Nodes[0] = in.Nodes[0].born(10 * time.Second)
	in.Nodes[1].Member.Version = "v2"
	if p := Make(in); len(p.Decisions) > 0 || !p.DueAt.Equal(epoch.Add(mixedWindows*window-10*time.Second)) {
		t.Errorf("mixed versions: look again at %v, %v", p.DueAt, reported(p))
	}
	in.Nodes[0] = in.Nodes[0].born(mixedWindows * window)
	if p := Make(in); len(p.Decisions) != 2 {
		t.Errorf("mixed versions for long: %v", reported(p))
	}
}

// A deaf node may stay so for ever. Its units leave first; then the loads of the other nodes become even.
func TestRebalanceBesideADeafNode(t *testing.T) {
	t.Parallel()
	spec := daemon.Spec{ID: "a", Instances: 5}
	in := uneven(t, spec, 2, map[string]int{"n1": 4, "n9": 1})
	in.Nodes = append(in.Nodes, live("n9", advert(spec)).being(node.Deaf))
	wantReported(t, Make(in), "a/4: revoke (node deaf n9)")
	in.Units[4].State = daemon.Revoking
	wantReported(t, Make(in))
	in.Units = in.Units[:4]
	in.Units = append(in.Units, row(t, "a/4", daemon.Active, "n2"))
	wantReported(t, Make(in), "a/3: revoke (rebalancing from n1 (load 4.0) to n2 (2.0 with it))")
}

// What stays: units of daemons that do not want to move, that fail, that are not active, or that failed on the only
// node that could take them.
func TestRebalanceLeavesAlone(t *testing.T) {
	t.Parallel()
	spec := daemon.Spec{ID: "a", Instances: 4}
	still := spec
	still.NoRebalance = true
	if p := Make(uneven(t, still, 2, map[string]int{"n1": 4})); len(p.Decisions) > 0 || !p.Balanced {
		t.Errorf("NoRebalance: even %v, %v", p.Balanced, reported(p))
	}
	for name, change := range map[string]func(*daemon.Record){
		"failing":   func(r *daemon.Record) { r.Failures = 1 },
		"assigning": func(r *daemon.Record) { r.State = daemon.Assigning },
		"failed on the other": func(r *daemon.Record) {
			r.Embargoes = []daemon.Embargo{{Incarnation: "i-n2", Until: epoch.Add(-time.Hour), Length: time.Minute}}
		},
	} {
		in := uneven(t, spec, 2, map[string]int{"n1": 4})
		for i := range in.Units {
			change(&in.Units[i])
		}
		if p := Make(in); len(p.Decisions) > 0 {
			t.Errorf("%s: %v", name, reported(p))
		}
	}
	in := uneven(t, daemon.Spec{ID: "a", Instances: 4, Requires: map[string]string{"zone": "b"}}, 2, map[string]int{"n1": 4})
	if p := Make(in); len(p.Decisions) > 0 {
		t.Errorf("without the label: %v", reported(p))
	}
}

// No node loses all units of a daemon while it keeps several of another.
func TestRebalanceMixesDaemons(t *testing.T) {
	t.Parallel()
	in := Input{Now: epoch, MaxMoves: 100, Nodes: livesOf(2, advert(daemon.Spec{ID: "a", Instances: 6}, daemon.Spec{ID: "b", Instances: 6}))}
	in.Units = append(heldBy(t, "a", map[string]int{"n1": 6}), heldBy(t, "b", map[string]int{"n1": 6})...)
	moved := map[daemon.ID]int{}
	for _, d := range Make(in).Decisions {
		moved[d.Unit.Daemon]++
	}
	if moved["a"] != 3 || moved["b"] != 3 {
		t.Errorf("moved %v", moved)
	}
}

// With equal weights and capacities, the moves are the fewest that even the loads, and the outcome is within one unit.
func TestRebalanceFewestMoves(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		n := rapid.IntRange(1, 8).Draw(rt, "nodes")
		counts := map[string]int{}
		total := 0
		for i := range n {
			units := rapid.IntRange(0, 12).Draw(rt, "units")
			counts[fmt.Sprintf("n%d", i+1)] = units
			total += units
		}
		in := uneven(t, daemon.Spec{ID: "a", Instances: max(total, 1)}, n, counts)
		fewest, roomy := 0, total%n // so many nodes may keep one more
		for _, units := range counts {
			surplus := units - total/n
			if surplus > 0 && roomy > 0 {
				surplus, roomy = surplus-1, roomy-1
			}
			fewest += max(surplus, 0)
		}
		moves := 0
		for _, d := range Make(in).Decisions {
			if d.Step == daemon.Revoke {
				moves++
			}
		}
		if total > 0 && moves != fewest {
			rt.Fatalf("%d moves from %v, want %d", moves, counts, fewest)
		}
		low, high := total, 0
		held := countUnits(settle(t, in).Units)
		for i := range n {
			units := held[fmt.Sprintf("n%d", i+1)]
			low, high = min(low, units), max(high, units)
		}
		if high-low > 1 {
			rt.Fatalf("from %v to %v", counts, held)
		}
	})
}

// Whatever weights, capacities and labels there are: rounds come to an end, and then no single move would help. What
// the plan says is compared with all moves tried one by one.
func TestRebalanceComesToAnEnd(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(rt *rapid.T) {
		var specs []daemon.Spec
		for i := range rapid.IntRange(1, 5).Draw(rt, "daemons") {
			s := daemon.Spec{ID: daemon.ID(fmt.Sprintf("d%d", i)), Instances: rapid.IntRange(1, 8).Draw(rt, "instances")}
			s.Weight = rapid.IntRange(1, 5).Draw(rt, "weight")
			s.NoRebalance = rapid.IntRange(0, 4).Draw(rt, "stays") == 0
			if rapid.Bool().Draw(rt, "picky") {
				s.Requires = map[string]string{"zone": "a"}
			}
			specs = append(specs, s)
		}
		in := Input{Now: epoch, MaxMoves: rapid.IntRange(1, 20).Draw(rt, "moves"), Nodes: livesOf(rapid.IntRange(1, 6).Draw(rt, "nodes"), advert(specs...))}
		for i := range in.Nodes {
			in.Nodes[i].Member.Capacity = rapid.IntRange(1, 3).Draw(rt, "capacity")
			if rapid.Bool().Draw(rt, "zone") {
				in.Nodes[i] = in.Nodes[i].labelled("zone", "a")
			}
		}
		for _, s := range specs {
			for _, u := range s.Units() {
				n := rapid.SampledFrom(in.Nodes).Draw(rt, "holder")
				in.Units = append(in.Units, daemon.Record{Unit: u, State: daemon.Active, Generation: 1, Holder: n.Member.Identity})
			}
		}
		for rounds := 0; ; rounds++ {
			p := Make(in)
			if len(p.Decisions) == 0 {
				break
			}
			if len(p.Decisions) > in.MaxMoves && p.Decisions[0].Step == daemon.Revoke || rounds > 500 {
				rt.Fatalf("round %d: %v", rounds, reported(p))
			}
			in.Units = carryOut(in.Units, p.Decisions)
		}
		wantNoMoveHelps(rt, in, specs)
	})
}

func wantNoMoveHelps(rt *rapid.T, in Input, specs []daemon.Spec) {
	byID := map[daemon.ID]daemon.Spec{}
	for _, s := range specs {
		byID[s.ID] = s
	}
	held, capacity := map[node.Incarnation]int{}, map[node.Incarnation]int{}
	for _, n := range in.Nodes {
		capacity[n.Member.Incarnation] = n.Member.Capacity
	}
	for _, r := range in.Units {
		if !r.State.IsFree() {
			held[r.Holder.Incarnation] += byID[r.Unit.Daemon].Weight
		}
	}
	for _, r := range in.Units {
		s, from := byID[r.Unit.Daemon], r.Holder.Incarnation
		if s.NoRebalance || r.State.IsFree() {
			continue
		}
		for _, n := range in.Nodes {
			to := n.Member.Incarnation
			if to == from || s.Requires != nil && n.Member.Labels["zone"] != "a" {
				continue
			}
			if (held[to]+s.Weight)*capacity[from] < held[from]*capacity[to] {
				rt.Fatalf("%s could move from %s (%d/%d) to %s (%d/%d)", r.Unit, from, held[from], capacity[from], to, held[to], capacity[to])
			}
		}
	}
}
