package plan

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/node"
)

func TestColdStartOfTenNodesAndFortyDaemonsGivesFourEach(t *testing.T) {
	t.Parallel()
	var specs []daemon.Spec
	for i := range 40 {
		specs = append(specs, daemon.Spec{ID: daemon.ID(fmt.Sprintf("acme:d%02d", i))})
	}
	in := settle(t, Input{Now: epoch, Nodes: livesOf(10, advert(specs...))})
	want := "n10:4 n1:4 n2:4 n3:4 n4:4 n5:4 n6:4 n7:4 n8:4 n9:4"
	if got := spread(in.Units); got != want {
		t.Errorf("spread %s, want %s", got, want)
	}
}

func TestSixInstancesOverThreeNodesAreTwoEach(t *testing.T) {
	t.Parallel()
	a := advert(daemon.Spec{ID: "acme:ticker", Instances: 6})
	in := settle(t, Input{Now: epoch, Nodes: livesOf(3, a)})
	if got := spread(in.Units); got != "n1:2 n2:2 n3:2" {
		t.Errorf("spread %s", got)
	}
	// One node dies, and the leader frees its two units. They go to the others, one each.
	in.Nodes[1].State = node.Removed
	for i := range in.Units {
		if in.Units[i].Holder.Name == "n2" {
			in.Units[i].State = daemon.Deleted
		}
	}
	in = settle(t, in)
	if got := spread(in.Units); got != "n1:3 n3:3" {
		t.Errorf("after a death: spread %s", got)
	}
	// The node comes back as another process. No running unit is moved.
	in.Nodes = append(in.Nodes, live("n2b", a))
	if p := Make(in); len(p.Decisions) != 0 {
		t.Errorf("a node joined and something moves: %v", reported(p))
	}
}

// TestLifeOfAUnit walks one row through the table of the package comment.
func TestLifeOfAUnit(t *testing.T) {
	t.Parallel()
	one := advert(daemon.Spec{ID: "a"})
	none := advert()
	for _, tt := range []struct {
		story  string
		nodes  []Node
		row    daemon.Record
		retire time.Duration
		want   []string
	}{
		{"free: placed", []Node{live("n1", one)}, row(t, "a/0", daemon.Deleted, ""), 0, []string{"a/0: assign to n1 (only candidate)"}},
		{"never assigned: placed", []Node{live("n1", one)}, row(t, "a/0", daemon.Unassigned, ""), 0, []string{"a/0: assign to n1 (only candidate)"}},
		{"assigning: kept", []Node{live("n1", one)}, row(t, "a/0", daemon.Assigning, "n1"), 0, nil},
		{"active: kept", []Node{live("n1", one)}, row(t, "a/0", daemon.Active, "n1"), 0, nil},
		{"revoking: kept", []Node{live("n1", one)}, row(t, "a/0", daemon.Revoking, "n1"), 0, nil},
		{"held by the dead: not placed, its end is decided elsewhere", []Node{live("n1", one)}, row(t, "a/0", daemon.Active, "n9"), 0, nil},

		{
			"holder draining: asked back",
			[]Node{live("n1", one).being(node.Draining), live("n2", one)},
			row(t, "a/0", daemon.Active, "n1"), 0,
			[]string{"a/0: revoke (node draining n1)"},
		},
		{
			"holder deaf: asked back, even before it acknowledged",
			[]Node{live("n1", one).being(node.Deaf), live("n2", one)},
			row(t, "a/0", daemon.Assigning, "n1"), 0,
			[]string{"a/0: revoke (node deaf n1)"},
		},
		{"holder in a state of a later version: kept", []Node{live("n1", one).being("hibernating")}, row(t, "a/0", daemon.Active, "n1"), 0, nil},
		{"holder late: kept", []Node{live("n1", one).being(node.Late)}, row(t, "a/0", daemon.Active, "n1"), 0, nil},
		{"already asked back: not twice", []Node{live("n1", one).being(node.Draining)}, row(t, "a/0", daemon.Revoking, "n1"), 0, nil},

		{
			"index too high and running: asked back",
			[]Node{live("n1", one)},
			row(t, "a/1", daemon.Active, "n1"), 0,
			[]string{"a/0: declare (declared)", "a/1: revoke (instances reduced to 1)"},
		},
		{
			"index too high and free: retired",
			[]Node{live("n1", one)},
			row(t, "a/1", daemon.Deleted, "n1"), 0,
			[]string{"a/0: declare (declared)", "a/1: retire (instances reduced to 1)"},
		},
		{
			"state of a newer version: left alone",
			[]Node{live("n1", one).being(node.Draining)},
			row(t, "a/0", "hibernating", "n1"), 0,
			[]string{"a/0: unknown state hibernating"},
		},

		{
			"nobody advertises it, free: waits",
			[]Node{live("n1", none)},
			row(t, "a/0", daemon.Deleted, ""), 2 * time.Minute,
			[]string{"a/0: unplaced (no node advertises it)"},
		},
		{
			"nobody advertises it for long: retired",
			[]Node{live("n1", none)},
			row(t, "a/0", daemon.Deleted, ""), time.Minute,
			[]string{"a/0: retire (no node advertises it for 1m0s)"},
		},
		{
			"nobody advertises it, running: revoked",
			[]Node{live("n1", none)},
			row(t, "a/0", daemon.Active, "n1"), time.Second,
			[]string{"a/0: revoke (its node no longer declares it n1)"},
		},
		{"nobody advertises it, running on a node that is late: kept", []Node{live("n1", none).being(node.Late)}, row(t, "a/0", daemon.Active, "n1"), time.Second, nil},
		{
			"a late node advertises it: waits for a candidate, is not retired",
			[]Node{live("n1", one).being(node.Late)},
			row(t, "a/0", daemon.Deleted, ""), time.Second,
			[]string{"a/0: unplaced (no eligible node; 1 late: n1)"},
		},
		{
			"a dead node advertised it",
			[]Node{live("n1", one).being(node.Removed)},
			row(t, "a/0", daemon.Deleted, ""), 0,
			[]string{"a/0: unplaced (no node advertises it)"},
		},
	} {
		t.Run(tt.story, func(t *testing.T) {
			t.Parallel()
			wantReported(t, Make(Input{Now: epoch, RetireAfter: tt.retire, Nodes: tt.nodes, Units: []daemon.Record{tt.row}}), tt.want...)
		})
	}
}

func TestRetiredUnits(t *testing.T) {
	t.Parallel()
	retired := row(t, "a/0", daemon.Deleted, "")
	retired.Retired = true
	in := Input{Now: epoch, RetireAfter: time.Second, Nodes: []Node{live("n1", advert())}, Units: []daemon.Record{retired}}
	wantReported(t, Make(in)) // permanently, and it is not reported

	in.Nodes[0].Advert = advert(daemon.Spec{ID: "a"})
	p := Make(in)
	wantReported(t, p, "a/0: declare (declared again)") // first the row; the unit is placed once the row is there
	if d := p.Decisions[0]; d.Generation != 7 || d.State != daemon.Deleted {
		t.Errorf("guard (%d, %q) is not that of the row", d.Generation, d.State)
	}
	in.Units = carryOut(in.Units, p.Decisions)
	wantReported(t, Make(in), "a/0: assign to n1 (only candidate)")
}

func TestDeclaredUnitsHaveNoRowToGuard(t *testing.T) {
	t.Parallel()
	in := Input{Now: epoch, Nodes: []Node{live("n1", advert(daemon.Spec{ID: "a", Instances: 3}))}, Units: []daemon.Record{row(t, "a/1", daemon.Active, "n1")}}
	full := in
	full.NoRoom = true
	wantReported(t, Make(full))
	p := Make(in)
	wantReported(t, p, "a/0: declare (declared)", "a/2: declare (declared)")
	for _, d := range p.Decisions {
		if d.Generation != 0 || d.State != "" || d.Retired || d.Spec.Instances != 3 {
			t.Errorf("%+v", d)
		}
	}
}

func TestCandidates(t *testing.T) {
	t.Parallel()
	gpu := advert(daemon.Spec{ID: "a", Requires: map[string]string{"gpu": "a100"}})
	free := row(t, "a/0", daemon.Deleted, "")
	silent := live("n5", gpu).labelled("gpu", "a100")
	silent.Member.NoDaemons = true
	other := live("n6", advert(daemon.Spec{ID: "b"})).labelled("gpu", "a100")
	other.Member.RegisteredAt = epoch.Add(-2 * time.Hour)
	in := Input{
		Now: epoch, Units: []daemon.Record{free, row(t, "b/0", daemon.Active, "n6")},
		Nodes: []Node{
			live("n1", gpu).labelled("gpu", "a100").being(node.Late),
			live("n2", gpu).labelled("gpu", "a100").being(node.Draining),
			live("n3", gpu).labelled("gpu", "a100").being("hibernating"),
			live("n4", gpu).labelled("gpu", "a100").being(node.Deaf),
			silent, other,
			live("n7", gpu).labelled("gpu", "h100"),
			live("n8", gpu),
			live("n0", gpu).being(node.Removed),
		},
	}
	wantReported(t, Make(in), "a/0: unplaced (no eligible node; 1 deaf: n4; 1 draining: n2; 1 hibernating: n3; 1 kind: n6; lacks gpu=a100: n7, n8; 1 late: n1; 1 no daemons: n5)")
	in.Nodes = append(in.Nodes, live("n9", gpu).labelled("gpu", "a100"))
	wantReported(t, Make(in), "a/0: assign to n9 (only candidate; 1 deaf: n4; 1 draining: n2; 1 hibernating: n3; 1 kind: n6; lacks gpu=a100: n7, n8; 1 late: n1; 1 no daemons: n5)")
}

// TestARequiredLabelMustBeThere: an empty value is a value, a missing label is not.
func TestARequiredLabelMustBeThere(t *testing.T) {
	t.Parallel()
	a := advert(daemon.Spec{ID: "a", Requires: map[string]string{"spot": ""}})
	in := Input{
		Now: epoch, Nodes: []Node{live("n1", a), live("n2", a).labelled("spot", "yes"), live("n3", a).labelled("spot", "")},
		Units: []daemon.Record{row(t, "a/0", daemon.Unassigned, "")},
	}
	wantReported(t, Make(in), "a/0: assign to n3 (only candidate; lacks spot=: n1, n2)")
}

// TestAKindCoversManyDaemons: a node runs a daemon although it advertises only the kind. The spec
// comes from another node.
func TestAKindCoversManyDaemons(t *testing.T) {
	t.Parallel()
	broker := &daemon.Advert{Kinds: []daemon.Kind{"emit:queue"}}
	declares := &daemon.Advert{Specs: []daemon.Spec{{ID: "emit:queue/mail", Kind: "emit:queue"}}}
	in := Input{
		Now: epoch, Nodes: []Node{live("n1", broker), live("n2", declares)},
		Units: []daemon.Record{row(t, "emit:queue/mail/0", daemon.Unassigned, "")},
	}
	wantReported(t, Make(in), "emit:queue/mail/0: assign to n1 (only candidate; 1 kind: n2)")
}

// TestWhatAUnitLeft: the reason of a placement also says why the unit moved.
func TestWhatAUnitLeft(t *testing.T) {
	t.Parallel()
	a := advert(daemon.Spec{ID: "a"})
	for _, tt := range []struct {
		story  string
		state  daemon.State
		holder string
		reason string
		want   string
	}{
		{"a node that died", daemon.Deleted, "n9", "holder is dead", "a/0: assign to n1 (only candidate; left n9: holder is dead)"},
		{"the same node", daemon.Deleted, "n1", "gave up after 5 failures", "a/0: assign to n1 (only candidate; left n1: gave up after 5 failures)"},
		{"of a long story the beginning", daemon.Deleted, "n9", strings.Repeat("ä", 101) + "\nstack", "a/0: assign to n1 (only candidate; left n9: " + strings.Repeat("ä", 100) + "…)"},
		{"of many lines the first", daemon.Deleted, "n9", "panic\nstack", "a/0: assign to n1 (only candidate; left n9: panic…)"},
		{"nobody said why", daemon.Deleted, "n9", "", "a/0: assign to n1 (only candidate)"},
		{"nobody held it", daemon.Unassigned, "", "declared", "a/0: assign to n1 (only candidate)"},
	} {
		t.Run(tt.story, func(t *testing.T) {
			t.Parallel()
			r := row(t, "a/0", tt.state, tt.holder)
			r.Reason = tt.reason
			wantReported(t, Make(Input{Now: epoch, Nodes: livesOf(1, a), Units: []daemon.Record{r}}), tt.want)
		})
	}
	held := row(t, "a/0", daemon.Active, "n1")
	held.Reason = "least loaded"
	if e := Explain(Input{Now: epoch, Nodes: livesOf(1, a), Units: []daemon.Record{held}}, held.Unit); e.Why.Previous != "" {
		t.Errorf("a unit that runs has left %q", e.Why.Previous)
	}
}

func TestEmbargoes(t *testing.T) {
	t.Parallel()
	a := advert(daemon.Spec{ID: "a"})
	for _, tt := range []struct {
		story string
		until time.Time
		want  string
	}{
		{"for a minute", epoch.Add(time.Minute), "a/0: assign to n2 (only candidate; 1 embargoed: n1)"},
		{"nearly over", epoch.Add(time.Nanosecond), "a/0: assign to n2 (only candidate; 1 embargoed: n1)"},
		{"over", epoch, "a/0: assign to n1 (least loaded (1.0 < 2.0); runner-up n2)"},
		{"further ahead than it is long", epoch.Add(time.Minute + 1), "a/0: assign to n1 (least loaded (1.0 < 2.0); runner-up n2)"},
		{"laid while the clock stood a year ahead", epoch.AddDate(1, 0, 0), "a/0: assign to n1 (least loaded (1.0 < 2.0); runner-up n2)"},
	} {
		t.Run(tt.story, func(t *testing.T) {
			t.Parallel()
			r := row(t, "a/0", daemon.Deleted, "n1")
			r.Embargoes = []daemon.Embargo{
				{Incarnation: "i-n1", Until: tt.until, Length: time.Minute}, {Incarnation: "i-gone", Until: tt.until, Length: time.Minute},
			}
			busy := row(t, "b/0", daemon.Revoking, "n2") // without the embargo, n1 would be better
			wantReported(t, Make(Input{Now: epoch, Nodes: livesOf(2, a), Units: []daemon.Record{r, busy}}), tt.want)
		})
	}
	t.Run("an embargo is for one unit and a new process has none", func(t *testing.T) {
		t.Parallel()
		r := row(t, "a/0", daemon.Deleted, "n1")
		r.Embargoes = []daemon.Embargo{{Incarnation: "i-n1", Until: epoch.Add(time.Minute), Length: time.Hour}}
		two := advert(daemon.Spec{ID: "a", Instances: 2})
		again := live("n1", a)
		again.Member.Incarnation = "i-n1-again"
		p := Make(Input{Now: epoch, Nodes: []Node{live("n1", two)}, Units: []daemon.Record{r, row(t, "a/1", daemon.Deleted, "")}})
		wantReported(t, p, "a/1: assign to n1 (only candidate)", "a/0: unplaced (no eligible node; 1 embargoed: n1)")
		p = Make(Input{Now: epoch, Nodes: []Node{again}, Units: []daemon.Record{r}})
		wantReported(t, p, "a/0: assign to n1 (only candidate)")
	})
}

// TestWhatDecides shows each rule as the deciding one, in their order.
func TestWhatDecides(t *testing.T) {
	t.Parallel()
	heavy := advert(daemon.Spec{ID: "a", Instances: 3}, daemon.Spec{ID: "b", Weight: 3}, daemon.Spec{ID: "c", Instances: 9})
	free := row(t, "a/0", daemon.Deleted, "")
	for _, tt := range []struct {
		story string
		nodes []Node
		rows  []daemon.Record
		want  string
	}{
		{
			"load counts weights, whoever holds them and on the way out too",
			livesOf(3, heavy),
			[]daemon.Record{free, row(t, "b/0", daemon.Revoking, "n1"), row(t, "c/0", daemon.Active, "n2"), row(t, "c/1", daemon.Assigning, "n2"), row(t, "c/2", daemon.Active, "n3")},
			"a/0: assign to n3 (least loaded (2.0 < 3.0); runner-up n2)",
		},
		{
			"load is relative to capacity",
			[]Node{live("n1", heavy).sized(4), live("n2", heavy)},
			[]daemon.Record{free, row(t, "c/0", daemon.Active, "n1"), row(t, "c/1", daemon.Active, "n1")},
			"a/0: assign to n1 (least loaded (0.8 < 1.0); runner-up n2)",
		},
		{
			"a unit counts itself: the small node is empty, the large one better",
			[]Node{live("n1", heavy).sized(10), live("n2", heavy)},
			[]daemon.Record{free, row(t, "c/1", daemon.Active, "n1")},
			"a/0: assign to n1 (least loaded (0.2 < 1.0); runner-up n2)",
		},
		{
			"equal load: fewer units of the daemon",
			livesOf(2, heavy),
			[]daemon.Record{free, row(t, "a/1", daemon.Active, "n1"), row(t, "c/1", daemon.Active, "n2")},
			"a/0: assign to n2 (fewer units of the daemon (0 < 1); runner-up n1)",
		},
		{
			"equal units: the emptier zone, where a late node counts too",
			[]Node{
				live("n1", heavy).labelled("zone", "x"), live("n2", heavy).labelled("zone", "y"),
				live("n3", heavy).labelled("zone", "x").being(node.Late), live("n4", heavy).labelled("zone", "y").being("hibernating"),
			},
			[]daemon.Record{free, row(t, "a/1", daemon.Active, "n3"), row(t, "c/1", daemon.Active, "n4")},
			"a/0: assign to n2 (zone spread (0 < 1); runner-up n1; 1 hibernating: n4; 1 late: n3)",
		},
		{
			"all equal: the hash",
			livesOf(2, heavy),
			[]daemon.Record{free},
			"a/0: assign to n1 (stable hash; runner-up n2)",
		},
	} {
		t.Run(tt.story, func(t *testing.T) {
			t.Parallel()
			have := map[daemon.Unit]bool{}
			for _, r := range tt.rows {
				have[r.Unit] = true
			}
			for _, s := range heavy.Specs { // all other units have no eligible node
				for _, u := range s.Units() {
					if !have[u] {
						tt.rows = append(tt.rows, row(t, u.String(), daemon.Active, "elsewhere"))
					}
				}
			}
			wantReported(t, Make(Input{Now: epoch, Nodes: tt.nodes, Units: tt.rows}), tt.want)
		})
	}
}

func TestHeavyUnitsGoFirst(t *testing.T) {
	t.Parallel()
	// In the order of units, the light ones would fill both nodes evenly and the heavy one would
	// overload one of them.
	a := advert(daemon.Spec{ID: "a", Instances: 4}, daemon.Spec{ID: "z", Weight: 4})
	in := settle(t, Input{Now: epoch, Nodes: livesOf(2, a)})
	var with string
	for _, r := range in.Units {
		if r.Unit.Daemon == "z" {
			with = r.Holder.Name
		}
	}
	for _, r := range in.Units {
		if r.Unit.Daemon == "a" && r.Holder.Name == with {
			t.Errorf("%v shares %s with the heavy unit", r.Unit, with)
		}
	}
}

func TestZonesAreFilledEvenly(t *testing.T) {
	t.Parallel()
	a := advert(daemon.Spec{ID: "a", Instances: 6, Spread: "rack"})
	in := Input{Now: epoch}
	for i := range 12 { // rack 0 has six nodes, 1 and 2 have three
		in.Nodes = append(in.Nodes, live(fmt.Sprintf("n%02d", i), a).labelled("rack", fmt.Sprint(max(0, i/3-1))))
	}
	in = settle(t, in)
	racks := map[string]int{}
	for _, r := range in.Units {
		for _, n := range in.Nodes {
			if r.HeldBy(n.Member.Incarnation) {
				racks[n.Member.Labels["rack"]]++
			}
		}
	}
	if racks["0"] != 2 || racks["1"] != 2 || racks["2"] != 2 {
		t.Errorf("units by rack: %v", racks)
	}
}

// TestEqualsAreChosenEvenly: where only the hash decides, each node and zone gets its share.
func TestEqualsAreChosenEvenly(t *testing.T) {
	t.Parallel()
	zones, nodes := map[string]int{}, map[string]int{}
	for i := range 3000 {
		a := advert(daemon.Spec{ID: daemon.ID(fmt.Sprintf("d%d", i))})
		in := Input{Now: epoch, Units: []daemon.Record{{Unit: daemon.Unit{Daemon: a.Specs[0].ID}, State: daemon.Unassigned}}}
		for j := range 9 {
			in.Nodes = append(in.Nodes, live(fmt.Sprintf("n%d", j), a).labelled("zone", fmt.Sprintf("z%d", j%3)))
		}
		to := Make(in).Decisions[0].To.Name
		nodes[to]++
		zones[fmt.Sprintf("z%d", (to[1]-'0')%3)]++
	}
	for zone, n := range zones {
		if n < 900 || n > 1100 {
			t.Errorf("%s got %d of 3000, want about 1000", zone, n)
		}
	}
	for name, n := range nodes {
		if n < 260 || n > 410 {
			t.Errorf("%s got %d of 3000, want about 333", name, n)
		}
	}
}

// TestTheHashStays pins the function: with another one, each version would place ties differently.
func TestTheHashStays(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]uint64{"": 0xefd01f60ba992926, "acme:reports/0": 0xcd21c5b05745105a, "emit:sweeper/12": 0x4d3285ea243dfdb7} {
		if got := hash(text); got != want {
			t.Errorf("hash(%q) = %#x, want %#x", text, got, want)
		}
	}
}

func TestManyFilteredNodesAreCountedAndEightNamed(t *testing.T) {
	t.Parallel()
	a := advert(daemon.Spec{ID: "a"})
	in := Input{Now: epoch, Units: []daemon.Record{row(t, "a/0", daemon.Deleted, "")}}
	for i := range 20 {
		in.Nodes = append(in.Nodes, live(fmt.Sprintf("n%02d", 19-i), a).being(node.Late))
	}
	wantReported(t, Make(in), "a/0: unplaced (no eligible node; 20 late: n00, n01, n02, n03, n04, n05, n06, n07, …)")
}

func TestUnplacedReportsSinceWhen(t *testing.T) {
	t.Parallel()
	in := Input{Now: epoch, Nodes: []Node{live("n1", advert())}, Units: []daemon.Record{row(t, "a/0", daemon.Deleted, "")}}
	if got := Make(in).Unplaced[0].Since; !got.Equal(epoch.Add(-time.Minute)) {
		t.Errorf("since %v", got)
	}
}

func TestUnplacedReportsUntilWhenAndWhy(t *testing.T) {
	t.Parallel()
	gpu := daemon.Spec{ID: "a", Requires: map[string]string{"gpu": "yes"}}
	has := func(name string, a *daemon.Advert) Node { return live(name, a).labelled("gpu", "yes") }
	a := advert(gpu)
	embargo := func(inc node.Incarnation, d time.Duration) daemon.Embargo {
		return daemon.Embargo{Incarnation: inc, Until: epoch.Add(d), Length: time.Hour}
	}
	idle := has("n3", a)
	idle.Member.NoDaemons = true
	for _, tt := range []struct {
		story     string
		nodes     []Node
		embargoes []daemon.Embargo
		obstacle  Obstacle
		until     time.Duration // 0: no embargo
	}{
		{"the first embargo that ends", []Node{has("n1", a), has("n2", a)}, []daemon.Embargo{embargo("i-n1", 2*time.Minute), embargo("i-n2", time.Minute)}, Embargoed, time.Minute},
		{"the longer of two embargoes of one node", []Node{has("n1", a)}, []daemon.Embargo{embargo("i-n1", time.Minute), embargo("i-n1", 2*time.Minute)}, Embargoed, 2 * time.Minute},
		{"an embargo of a node that could not take it anyway", []Node{has("n1", a), live("n2", a)}, []daemon.Embargo{embargo("i-n1", 2*time.Minute), embargo("i-n2", time.Minute)}, Embargoed, 2 * time.Minute},
		{"labels", []Node{live("n1", a), has("n2", a).being(node.Late), idle}, nil, LabelsMissing, 0},
		{"no node takes daemons", []Node{idle, has("n2", a).being(node.Deaf)}, nil, NoDaemons, 0},
		{"no node is fine", []Node{has("n1", a).being(node.Draining)}, nil, NodeUnavailable, 0},
		{"nobody advertises it", []Node{live("n1", advert())}, nil, Unadvertised, 0},
	} {
		t.Run(tt.story, func(t *testing.T) {
			t.Parallel()
			r := row(t, "a/0", daemon.Deleted, "")
			r.Embargoes = tt.embargoes
			p := Make(Input{Now: epoch, Nodes: tt.nodes, Units: []daemon.Record{r}})
			if len(p.Unplaced) != 1 {
				t.Fatalf("%+v", p)
			}
			u := &p.Unplaced[0]
			want := time.Time{}
			if tt.until > 0 {
				want = epoch.Add(tt.until)
			}
			if u.Obstacle() != tt.obstacle || !u.EmbargoedUntil.Equal(want) {
				t.Errorf("%s until %v, want %s until %v", u.Obstacle(), u.EmbargoedUntil, tt.obstacle, want)
			}
			if message := strings.Contains(u.String(), "embargoed until "+want.Format(time.RFC3339)); message != (tt.until > 0) {
				t.Errorf("it says %q", u)
			}
		})
	}
}

func TestNothingComesOfNothing(t *testing.T) {
	t.Parallel()
	wantReported(t, Make(Input{}))
	wantReported(t, Make(Input{Nodes: []Node{{}}, Units: []daemon.Record{{}}}), "/0: unknown state ")
}

// TestASettledClusterIsCheap: if there is nothing to place, nothing is built for placement.
//
// It is not parallel, because it counts the allocations of the whole process.
func TestASettledClusterIsCheap(t *testing.T) {
	in := settle(t, shapes[0].cold(1000, 10_000))
	if n := testing.AllocsPerRun(3, func() { Make(in) }); n > 40 {
		t.Errorf("a plan without a change makes %v allocations", n)
	}
}

// Among nodes of equal load a unit goes to one that has none of its daemon, also if few keys change between two daemons.
func TestUnitsOfTheDaemonCountBesideFewChanges(t *testing.T) {
	t.Parallel()
	const nodes = 40
	a := advert(daemon.Spec{ID: "a"}, daemon.Spec{ID: "b", Instances: 2}, daemon.Spec{ID: "c", Instances: nodes})
	for x := range nodes { // the node that has a unit of b
		in := Input{Now: epoch, Units: []daemon.Record{
			{Unit: daemon.Unit{Daemon: "a"}, State: daemon.Unassigned}, {Unit: daemon.Unit{Daemon: "b", Index: 1}, State: daemon.Unassigned},
		}}
		for i := range nodes {
			n := live(fmt.Sprintf("n%02d", i), a)
			in.Nodes = append(in.Nodes, n)
			u := daemon.Unit{Daemon: "c", Index: i}
			if i == x {
				u = daemon.Unit{Daemon: "b"}
			}
			in.Units = append(in.Units, daemon.Record{Unit: u, State: daemon.Active, Generation: 1, Holder: n.Member.Identity})
		}
		for _, d := range Make(in).Decisions {
			if d.Unit == (daemon.Unit{Daemon: "b", Index: 1}) && d.To.Name == in.Nodes[x].Member.Name {
				t.Errorf("b/1 goes to %s, which has b/0", d.To.Name)
			}
		}
	}
}
