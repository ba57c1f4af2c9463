package plan

import (
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"reflect"
	"runtime"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/node"
)

// cluster draws a cluster in any condition: mixed versions, all states, rows of daemons that are
// gone, unknown holders.
func cluster(t *rapid.T) Input {
	adverts := []*daemon.Advert{nil}
	for v := range rapid.IntRange(1, 4).Draw(t, "versions") {
		adverts = append(adverts, drawAdvert(t, v))
	}
	in := Input{Now: epoch, RetireAfter: rapid.SampledFrom([]time.Duration{0, time.Minute, time.Hour}).Draw(t, "retire")}
	for i := range rapid.IntRange(0, 12).Draw(t, "nodes") {
		in.Nodes = append(in.Nodes, drawNode(t, i, adverts))
	}
	seen := map[daemon.Unit]bool{}
	for range rapid.IntRange(0, 30).Draw(t, "rows") {
		r := drawRecord(t, len(in.Nodes))
		if !seen[r.Unit] {
			seen[r.Unit] = true
			in.Units = append(in.Units, r)
		}
	}
	return in
}

func drawAdvert(t *rapid.T, version int) *daemon.Advert {
	a := &daemon.Advert{Kinds: []daemon.Kind{"shared"}}
	for _, id := range []daemon.ID{"a", "b", "c", "d"} {
		if !rapid.Bool().Draw(t, "has") {
			continue
		}
		s := daemon.Spec{
			ID:        id,
			Instances: rapid.SampledFrom([]int{0, 1, 2, 5, daemon.Keyed, -2}).Draw(t, "instances"),
			Weight:    rapid.SampledFrom([]int{0, 0, 1, 2, 7, -3}).Draw(t, "weight"),
			Spread:    rapid.SampledFrom([]string{"", "rack"}).Draw(t, "spread"),
			Requires:  rapid.SampledFrom([]map[string]string{nil, nil, nil, {"gpu": "a"}, {"gpu": ""}, {"zone": "1", "gpu": "a"}}).Draw(t, "requires"),
		}
		if rapid.Bool().Draw(t, "shared kind") {
			s.Kind = "shared"
		}
		a.Specs = append(a.Specs, s)
		if rapid.IntRange(0, 3).Draw(t, "runs it") > 0 {
			a.Kinds = append(a.Kinds, s.WithDefaults().Kind)
		}
	}
	a.Traits.Version = fmt.Sprint(version)
	return a
}

func drawNode(t *rapid.T, i int, adverts []*daemon.Advert) Node {
	n := live(fmt.Sprintf("n%d", i), rapid.SampledFrom(adverts).Draw(t, "advert"))
	if rapid.IntRange(0, 2).Draw(t, "condition") == 0 {
		n.State = rapid.SampledFrom([]node.State{node.Late, node.Draining, node.Deaf, node.Removed, "odd"}).Draw(t, "state")
		n.Member.NoDaemons = rapid.Bool().Draw(t, "no daemons")
		n.Member.State = rapid.SampledFrom([]node.State{node.Live, node.Live, node.Removed}).Draw(t, "row state")
	}
	n.Member.Capacity = rapid.SampledFrom([]int{0, 1, 1, 2, 10}).Draw(t, "capacity")
	n.Member.MaxWeight = rapid.SampledFrom([]int{0, 0, 0, 1, 3, 8}).Draw(t, "max weight")
	n.Member.RegisteredAt = epoch.Add(-time.Duration(rapid.IntRange(0, 3).Draw(t, "age")) * time.Minute)
	n.Member.Labels = map[string]string{}
	for _, label := range []string{"zone", "rack", "gpu"} {
		if v := rapid.SampledFrom([]string{"none", "", "a", "1"}).Draw(t, label); v != "none" {
			n.Member.Labels[label] = v
		}
	}
	return n
}

func drawRecord(t *rapid.T, nodes int) daemon.Record {
	r := daemon.Record{
		Unit:  daemon.Unit{Daemon: rapid.SampledFrom([]daemon.ID{"a", "b", "c", "d", "gone"}).Draw(t, "daemon"), Index: rapid.IntRange(0, 6).Draw(t, "index")},
		State: rapid.SampledFrom([]daemon.State{daemon.Unassigned, daemon.Deleted, daemon.Deleted, daemon.Assigning, daemon.Active, daemon.Revoking, "paused"}).Draw(t, "state"),
		Since: epoch.Add(-time.Duration(rapid.IntRange(0, 90).Draw(t, "since")) * time.Minute),
	}
	if rapid.IntRange(0, 3).Draw(t, "keyed") == 0 {
		r.Unit.Key, r.Unit.Index = fmt.Sprintf("k%d", r.Unit.Index), 0
	}
	r.Generation = int64(rapid.IntRange(0, 9).Draw(t, "generation"))
	r.Retired = rapid.IntRange(0, 5).Draw(t, "retired") == 0
	draw := func(label string) node.Incarnation {
		return node.Incarnation(fmt.Sprintf("i-n%d", rapid.IntRange(0, max(nodes, 1)).Draw(t, label)))
	}
	r.Holder.Incarnation = draw("holder")
	r.Holder.Name = string(r.Holder.Incarnation[2:])
	r.Reason = rapid.SampledFrom([]string{"", "drained"}).Draw(t, "reason")
	for range rapid.SampledFrom([]int{0, 0, 0, 1, 2, 3}).Draw(t, "embargoes") {
		until := rapid.SampledFrom([]time.Time{{}, epoch, epoch.Add(time.Second), epoch.Add(time.Hour), epoch.Add(-time.Second)}).Draw(t, "until")
		r.Embargoes = append(r.Embargoes, daemon.Embargo{Incarnation: draw("embargoed"), Until: until, Length: time.Minute})
	}
	return r
}

// TestASettledPassCostsLittle measures a pass that a leader repeats all the time. Memory is a
// constant per unit, however the units are divided among daemons.
//
// It is not parallel, because it counts the allocations of the whole process.
func TestASettledPassCostsLittle(t *testing.T) {
	for _, s := range shapes {
		in := settle(t, s.cold(100, 10_000))
		if n := testing.AllocsPerRun(3, func() { Make(in) }); n > 20 {
			t.Errorf("%s: a pass without a change allocates %.0f times, want a few", s.name, n)
		}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		Make(in)
		runtime.ReadMemStats(&after)
		if bytes := (after.TotalAlloc - before.TotalAlloc) / 10_000; bytes > 160 {
			t.Errorf("%s: a pass without a change takes %d bytes a unit, want at most 160", s.name, bytes)
		}
	}
}

func equalPlans(t *rapid.T, got, want Plan) {
	t.Helper()
	gotSpecs, wantSpecs := slices.Collect(got.Specs.All()), slices.Collect(want.Specs.All())
	if !reflect.DeepEqual(gotSpecs, wantSpecs) {
		t.Fatalf("specs %v, want %v", gotSpecs, wantSpecs)
	}
	for _, spec := range wantSpecs {
		if one, ok := got.Specs.Of(spec.ID); !ok || !reflect.DeepEqual(one, spec) {
			t.Fatalf("spec of %s is %v %v, want %v", spec.ID, one, ok, spec)
		}
	}
	if _, ok := got.Specs.Of("nobody's"); ok {
		t.Fatal("a daemon that nobody advertises has a spec")
	}
	g, w := reported(got), reported(want)
	for i := range min(len(g), len(w)) {
		if g[i] != w[i] {
			t.Fatalf("line %d of the plan says\n%s\nwant\n%s", i, g[i], w[i])
		}
	}
	if len(g) != len(w) {
		t.Fatalf("plan says %d things, want %d", len(g), len(w))
	}
	for i := range got.Decisions {
		if !reflect.DeepEqual(got.Decisions[i], want.Decisions[i]) {
			t.Fatalf("decision %+v\nwant %+v", got.Decisions[i], want.Decisions[i])
		}
	}
	for i := range got.Unplaced {
		if !reflect.DeepEqual(got.Unplaced[i], want.Unplaced[i]) {
			t.Fatalf("unplaced %+v, want %+v", got.Unplaced[i], want.Unplaced[i])
		}
	}
}

func TestMakeEqualsSlowTwin(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		in := cluster(t)
		equalPlans(t, Make(in), slow(in))
	})
}

// TestMakeEqualsSlowTwinWhenLarge covers what small clusters do not: deep trees, many rounds of the
// hash order, more than eight names, alternating requirements, daemons whose nodes are few beside all.
func TestMakeEqualsSlowTwinWhenLarge(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var specs []daemon.Spec
		for i := range rapid.IntRange(1, 20).Draw(t, "daemons") {
			specs = append(specs, daemon.Spec{
				ID:        daemon.ID(fmt.Sprintf("d%d", i)),
				Instances: rapid.IntRange(1, 8).Draw(t, "instances"),
				Weight:    rapid.SampledFrom([]int{1, 1, 1, 3}).Draw(t, "weight"),
				Requires:  rapid.SampledFrom([]map[string]string{nil, nil, {"zone": "1"}, {"zone": "2"}}).Draw(t, "requires"),
				Spread:    rapid.SampledFrom([]string{"zone", "zone", "host"}).Draw(t, "spread"),
			})
		}
		a := advert(specs...)
		in := Input{Now: epoch}
		for i := range rapid.IntRange(1, 80).Draw(t, "nodes") {
			n := live(fmt.Sprintf("n%02d", i), a).labelled("zone", fmt.Sprint(i%3), "host", fmt.Sprint(i))
			n.State = rapid.SampledFrom([]node.State{node.Live, node.Live, node.Live, node.Late}).Draw(t, "state")
			n.Member.MaxWeight = rapid.SampledFrom([]int{0, 0, 2, 5}).Draw(t, "max weight")
			in.Nodes = append(in.Nodes, n)
		}
		for _, s := range a.Specs {
			for _, u := range s.Units() {
				r := daemon.Record{Unit: u, State: daemon.Unassigned}
				if i := rapid.IntRange(0, 80).Draw(t, "holder"); i < len(in.Nodes) {
					r.State, r.Generation, r.Holder = daemon.Active, 1, in.Nodes[i].Member.Identity
				}
				in.Units = append(in.Units, r)
			}
		}
		equalPlans(t, Make(in), slow(in))
	})
}

func TestMakeDoesNotDependOnOrder(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		in := cluster(t)
		want := Make(in)
		r := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 1))
		in.Nodes, in.Units = slices.Clone(in.Nodes), slices.Clone(in.Units)
		r.Shuffle(len(in.Nodes), func(i, j int) { in.Nodes[i], in.Nodes[j] = in.Nodes[j], in.Nodes[i] })
		r.Shuffle(len(in.Units), func(i, j int) { in.Units[i], in.Units[j] = in.Units[j], in.Units[i] })
		if got := Make(in); !reflect.DeepEqual(got, want) {
			t.Fatalf("shuffled input\n%q\nelse\n%q", reported(got), reported(want))
		}
	})
}

func TestMakeWritesNothing(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		in := cluster(t)
		before, err := json.Marshal(in)
		if err != nil {
			t.Fatal(err)
		}
		p := Make(in)
		for i := range p.Decisions { // what it returns must share no memory that the leader writes either
			p.Decisions[i].To.Name = "other"
		}
		for _, r := range in.Units {
			Explain(in, r.Unit)
		}
		if after, _ := json.Marshal(in); string(after) != string(before) {
			t.Fatalf("input was changed\nfrom %s\nto   %s", before, after)
		}
	})
}

// TestDecisionsAreAllowed checks each decision alone for what must hold in any plan.
func TestDecisionsAreAllowed(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		in := cluster(t)
		p := Make(in)
		rows := map[daemon.Unit]daemon.Record{}
		for _, r := range in.Units {
			rows[r.Unit] = r
		}
		last := daemon.Unit{}
		for i, d := range p.Decisions {
			if i > 0 && last.Compare(d.Unit) >= 0 {
				t.Fatalf("%v after %v: not sorted, or twice", d.Unit, last)
			}
			last = d.Unit
			r, exists := rows[d.Unit]
			if r.Generation != d.Generation || r.State != d.State {
				t.Fatalf("%v is guarded by (%d, %q), the row has (%d, %q)", d.Unit, d.Generation, d.State, r.Generation, r.State)
			}
			if d.Step != "" {
				if _, ok := daemon.Next(r.State, d.Step); !exists || !ok {
					t.Fatalf("%v: %s from %q", d.Unit, d.Step, r.State)
				}
			}
			if d.Step == daemon.Assign {
				i := slices.IndexFunc(in.Nodes, func(n Node) bool { return n.Member.Identity == d.To })
				if i < 0 || in.Nodes[i].Member.State == node.Removed || slowFilter(in, in.Nodes[i], d.Spec, r) != "" {
					t.Fatalf("%v goes to %v, which is not eligible", d.Unit, d.To)
				}
			}
			if _, err := json.Marshal(d.Reason); err != nil {
				t.Fatal(err)
			}
		}
		checkLimits(t, in, p)
	})
}

// checkLimits checks that no node is given more than its limit allows.
func checkLimits(t *rapid.T, in Input, p Plan) {
	t.Helper()
	weight := func(u daemon.Unit) int {
		spec, _ := p.Specs.Of(u.Daemon)
		return max(spec.Weight, 1)
	}
	for _, n := range in.Nodes {
		held, given := 0, false
		for _, r := range in.Units {
			if r.State.Known() && r.HeldBy(n.Member.Incarnation) {
				held += weight(r.Unit)
			}
		}
		for _, d := range p.Decisions {
			if d.Step == daemon.Assign && d.To == n.Member.Identity {
				held, given = held+weight(d.Unit), true
			}
		}
		if limit := n.Member.MaxWeight; given && limit > 0 && held > limit {
			t.Fatalf("%s holds %d with what it is given, at most %d", n.Member.Name, held, limit)
		}
	}
}

// TestFreeUnitsAreAccountedFor checks that no unit is forgotten. Each row that is free and not
// retired leads to a decision, or is listed with the reason.
func TestFreeUnitsAreAccountedFor(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		in := cluster(t)
		p := Make(in)
		listed := map[daemon.Unit]int{}
		for _, d := range p.Decisions {
			listed[d.Unit]++
		}
		for _, u := range p.Unplaced {
			listed[u.Unit]++
		}
		for _, u := range p.Unknown {
			listed[u.Unit]++
		}
		for _, r := range in.Units {
			if n := listed[r.Unit]; n > 1 || n == 0 && (r.State.IsFree() && !r.Retired || !r.State.Known()) {
				t.Fatalf("%v (%s) is mentioned %d times", r.Unit, r.State, n)
			}
		}
	})
}

func TestPlansComeToAnEnd(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		in := cluster(t)
		for range 6 {
			p := Make(in)
			if len(p.Decisions) == 0 {
				return
			}
			in.Units = carryOut(in.Units, p.Decisions)
		}
		t.Fatalf("still deciding: %q", reported(Make(in)))
	})
}

func TestLoadIsWithinOneUnitOfEven(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var specs []daemon.Spec
		for i := range rapid.IntRange(1, 12).Draw(t, "daemons") {
			specs = append(specs, daemon.Spec{ID: daemon.ID(fmt.Sprintf("d%d", i)), Instances: rapid.IntRange(1, 20).Draw(t, "instances")})
		}
		in := Input{Now: epoch, Nodes: livesOf(rapid.IntRange(1, 12).Draw(t, "nodes"), advert(specs...))}
		for i := range in.Nodes {
			in.Nodes[i] = in.Nodes[i].labelled("zone", fmt.Sprint(rapid.IntRange(0, 3).Draw(t, "zone")))
		}
		in = settle(t, in)
		low, high := math.MaxInt, 0
		for _, n := range in.Nodes {
			held := 0
			for _, r := range in.Units {
				if r.HeldBy(n.Member.Incarnation) {
					held++
				}
			}
			low, high = min(low, held), max(high, held)
		}
		if high-low > 1 {
			t.Fatalf("one node holds %d, another %d: %s", high, low, spread(in.Units))
		}
	})
}

// TestHeavyLoadIsBounded: no node has more than the mean and one heaviest unit (Graham: a list
// schedule on equal machines).
func TestHeavyLoadIsBounded(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		var (
			specs           []daemon.Spec
			total, heaviest int
		)
		for i := range rapid.IntRange(1, 25).Draw(t, "daemons") {
			w := rapid.IntRange(1, 50).Draw(t, "weight")
			specs = append(specs, daemon.Spec{ID: daemon.ID(fmt.Sprintf("d%02d", i)), Weight: w})
			total, heaviest = total+w, max(heaviest, w)
		}
		m := rapid.IntRange(1, 8).Draw(t, "nodes")
		in := settle(t, Input{Now: epoch, Nodes: livesOf(m, advert(specs...))})
		load, most := map[string]int{}, 0
		for _, r := range in.Units {
			i := slices.IndexFunc(specs, func(s daemon.Spec) bool { return s.ID == r.Unit.Daemon })
			load[r.Holder.Name] += specs[i].Weight
			most = max(most, load[r.Holder.Name])
		}
		if float64(most) > float64(total)/float64(m)+float64(heaviest) {
			t.Fatalf("most loaded has %d of %d over %d nodes, heaviest unit %d", most, total, m, heaviest)
		}
	})
}

func TestExplainAgreesWithMake(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		in := cluster(t)
		p := Make(in)
		decided := map[daemon.Unit]Decision{}
		for _, d := range p.Decisions {
			decided[d.Unit] = d
		}
		for _, r := range in.Units {
			e := Explain(in, r.Unit)
			d, ok := decided[r.Unit]
			if ok != (e.Decision != nil) || ok && !reflect.DeepEqual(*e.Decision, d) {
				t.Fatalf("explained %+v, decided %+v", e.Decision, d)
			}
			if d.Step == daemon.Assign && (e.Next != d.To || !reflect.DeepEqual(e.Why, d.Reason)) {
				t.Fatalf("%v explained to %v (%v), decided to %v (%v)", r.Unit, e.Next, e.Why, d.To, d.Reason)
			}
			checkRows(t, in, e)
		}
	})
}

// checkRows checks that the table lists the present nodes, and that the chosen node has the lowest
// eligible score.
func checkRows(t *rapid.T, in Input, e Explanation) {
	t.Helper()
	present, eligible := 0, 0
	for _, n := range in.Nodes {
		if n.present() {
			present++
		}
	}
	if len(e.Rows) != present {
		t.Fatalf("%d rows for %d nodes", len(e.Rows), present)
	}
	least, next := math.Inf(1), math.Inf(1)
	for _, r := range e.Rows {
		if r.Verdict == "" {
			t.Fatalf("no verdict on %v", r.Node)
		}
		if r.Eligible {
			eligible++
			least = min(least, r.Score)
		}
		if r.Node == e.Next {
			next = r.Score
		}
	}
	if (e.Next == node.Identity{}) != (eligible == 0) || next != least {
		t.Fatalf("%d eligible, next %v with score %v, least score %v", eligible, e.Next, next, least)
	}
}
