package plan

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/node"
)

// failedOn is a free unit that failed on nodes, once on each, the last time some time ago.
func failedOn(t testing.TB, text string, ago time.Duration, nodes ...string) daemon.Record {
	r := freed(t, text, ago)
	r.Failures = 5
	for _, name := range nodes {
		r.Embargoes = append(r.Embargoes, daemon.Embargo{
			Incarnation: node.Incarnation("i-" + name), Node: name, Until: epoch.Add(time.Minute - ago), Length: time.Minute, Strikes: 1,
		})
	}
	return r
}

// A daemon that failed three times on at least two nodes waits. The time doubles with each further time, then one unit is
// tried.
func TestQuarantine(t *testing.T) {
	t.Parallel()
	specs := []daemon.Spec{{ID: "a", Instances: 3}, {ID: "b"}}
	for _, c := range []struct {
		name  string
		row   daemon.Record
		waits time.Duration // from now; 0 = not at all
	}{
		{"twice", failedOn(t, "a/0", time.Second, "n1", "n2"), 0},
		{"three nodes", failedOn(t, "a/0", time.Second, "n1", "n2", "n3"), 59 * time.Second},
		{"four nodes", failedOn(t, "a/0", time.Second, "n1", "n2", "n3", "n4"), 2*time.Minute - time.Second},
		{"six nodes", failedOn(t, "a/0", time.Second, "n1", "n2", "n3", "n4", "n5", "n6"), 8*time.Minute - time.Second},
		{"long ago", failedOn(t, "a/0", 11*time.Minute, "n1", "n2", "n3"), 0},
		{"by a clock that was ahead", failedOn(t, "a/0", -time.Hour, "n1", "n2", "n3"), 0},
	} {
		in := Input{Now: epoch, Nodes: livesOf(8, advert(specs...))}
		in.Units = []daemon.Record{c.row, failedOn(t, "a/1", time.Second), freed(t, "b/0", time.Second)}
		p := Make(in)
		placed := map[string]bool{}
		for _, d := range p.Decisions {
			placed[d.Unit.String()] = d.Step == daemon.Assign
		}
		if placed["a/1"] != (c.waits == 0) || !placed["b/0"] {
			t.Errorf("%s: %v", c.name, reported(p))
		}
		if (len(p.Verdicts) == 1) != (c.waits > 0) {
			t.Errorf("%s: verdicts %v", c.name, p.Verdicts)
		}
		if c.waits > 0 && (!p.DueAt.Equal(epoch.Add(c.waits)) || p.Unplaced[0].Obstacle() != InQuarantine) {
			t.Errorf("%s: due at %v, unplaced %v", c.name, p.DueAt, p.Unplaced)
		}
	}
}

// A unit that fails wherever it is does not hold up a daemon of which many units run: the fault is in the unit, such as
// in the data of one customer.
func TestFewFailingUnitsAreNoQuarantine(t *testing.T) {
	t.Parallel()
	for running, quarantined := range map[int]bool{0: true, 10: true, 11: false} {
		in := Input{Now: epoch, Nodes: livesOf(8, advert(daemon.Spec{ID: "a", Instances: 20}))}
		in.Units = []daemon.Record{failedOn(t, "a/0", time.Second, "n1", "n2", "n3"), freed(t, "a/1", time.Second)}
		for i := range running {
			r := freed(t, fmt.Sprintf("a/%d", i+2), time.Minute)
			r.State, r.Holder = daemon.Active, live("n5", nil).Member.Identity
			in.Units = append(in.Units, r)
		}
		if p := Make(in); (len(p.Verdicts) == 1) != quarantined {
			t.Errorf("%d units run: %v, %v", running, p.Verdicts, reported(p))
		}
	}
}

// Once the time is over, one unit at a time is tried, until one has recovered.
func TestQuarantineIsHalfOpen(t *testing.T) {
	t.Parallel()
	in := Input{Now: epoch, Nodes: livesOf(8, advert(daemon.Spec{ID: "a", Instances: 3}))}
	in.Units = []daemon.Record{failedOn(t, "a/0", 2*time.Minute, "n1", "n2", "n3"), failedOn(t, "a/1", time.Second), failedOn(t, "a/2", time.Second)}
	p := Make(in)
	if len(p.Decisions) != 1 || p.Decisions[0].Unit != unit(t, "a/0") || len(p.Unplaced) != 2 {
		t.Fatalf("at first: %v", reported(p))
	}
	in.Units[0].State, in.Units[0].Holder, in.Units[0].Since = daemon.Active, in.Nodes[5].Member.Identity, epoch
	if p := Make(in); len(p.Decisions) != 0 || !strings.Contains(p.Unplaced[0].Why.String(), "another unit is being tried") {
		t.Errorf("while it is tried: %v", reported(p))
	}
	in.Units[0].Failures = 0
	if p := Make(in); len(p.Decisions) != 2 || len(p.Verdicts) != 0 {
		t.Errorf("once it has recovered: %v, %v", reported(p), p.Verdicts)
	}
}

// crashing is a unit that crashes wherever it is, and is on n1 now.
func crashing(t testing.TB, text string, since time.Duration) daemon.Record {
	r := failedOn(t, text, 2*time.Minute, "n2", "n3", "n4")
	r.State, r.Holder, r.Since, r.RetryAt = daemon.Active, live("n1", nil).Member.Identity, epoch.Add(-since), epoch.Add(time.Second)
	return r
}

// placed returns the units that a plan assigns.
func placed(p Plan) string {
	var out []string
	for _, d := range p.Decisions {
		if d.Step == daemon.Assign {
			out = append(out, d.Unit.String())
		}
	}
	return strings.Join(out, " ")
}

// A unit that crashes for ever keeps no other down. The units of a node that was lost go at once to another if one of the
// daemon's units runs well. If none does, they are tried one at a time until one has run for a minute.
func TestPoisonUnitKeepsNoneDown(t *testing.T) {
	t.Parallel()
	in := Input{Now: epoch, Nodes: livesOf(8, advert(daemon.Spec{ID: "a", Instances: 5}))}
	in.Units = []daemon.Record{
		crashing(t, "a/0", time.Second), row(t, "a/1", daemon.Active, "n5"), row(t, "a/2", daemon.Active, "n6"),
		freed(t, "a/3", time.Second), freed(t, "a/4", time.Second),
	}
	if p := Make(in); len(p.Verdicts) != 1 || placed(p) != "a/3 a/4" {
		t.Errorf("while others run well: %v, %v", reported(p), p.Verdicts)
	}
	in.Units[0].Since = epoch.Add(-90 * time.Second)
	in.Units[1], in.Units[2] = freed(t, "a/1", time.Second), freed(t, "a/2", time.Second)
	if p := Make(in); placed(p) != "a/1" {
		t.Fatalf("if none runs well: %v", reported(p))
	}
	in.Units[1] = row(t, "a/1", daemon.Active, "n5")
	in.Units[1].Since = epoch.Add(-20 * time.Second)
	if p := Make(in); placed(p) != "" || !p.DueAt.Equal(epoch.Add(40*time.Second)) {
		t.Errorf("while one is tried: %v, due at %v", reported(p), p.DueAt)
	}
	in.Now = epoch.Add(40 * time.Second)
	if p := Make(in); placed(p) != "a/2 a/3 a/4" {
		t.Errorf("once one has run for a minute: %v", reported(p))
	}
	in.Units[1] = failedOn(t, "a/1", 0)
	if p := Make(in); placed(p) != "a/2" {
		t.Errorf("once one has failed: %v", reported(p))
	}
}

// Of the units that wait for a trial, those that have not failed come first, then that which has been free for longest. One
// that no node can take does not take the turn.
func TestOrderOfTrials(t *testing.T) {
	t.Parallel()
	in := Input{Now: epoch, Nodes: livesOf(3, advert(daemon.Spec{ID: "a", Instances: 4}))}
	in.Units = []daemon.Record{
		failedOn(t, "a/0", 5*time.Minute, "n1", "n2", "n3"), failedOn(t, "a/1", 2*time.Minute), failedOn(t, "a/2", 3*time.Minute), freed(t, "a/3", time.Second),
	}
	for i := range in.Units[0].Embargoes { // they last longer than the daemon's quarantine
		e := &in.Units[0].Embargoes[i]
		e.Until, e.Length = epoch.Add(5*time.Minute), 10*time.Minute
	}
	for _, want := range []string{"a/3", "a/2", "a/1", ""} {
		p := Make(in)
		if placed(p) != want {
			t.Fatalf("%v, want %q to be tried", reported(p), want)
		}
		if at := p.Unplaced[0].Obstacle(); want == "" && at != Embargoed {
			t.Errorf("a/0 waits because of %q: %v", at, reported(p))
		}
		in.Units = slices.DeleteFunc(in.Units, func(r daemon.Record) bool { return r.Unit.String() == want })
	}
}

// A unit that each node gives back at once, or on which it never starts, has no failures. It does not take every turn.
func TestUnitThatIsGivenBackIsNotAlwaysFirst(t *testing.T) {
	t.Parallel()
	in := Input{Now: epoch, Nodes: livesOf(8, advert(daemon.Spec{ID: "a", Instances: 2}))}
	in.Units = []daemon.Record{failedOn(t, "a/0", time.Second, "n1"), failedOn(t, "a/1", 9*time.Minute, "n2", "n3", "n4")}
	in.Units[0].Failures = 0
	if p := Make(in); placed(p) != "a/1" || len(p.Verdicts) != 1 {
		t.Errorf("%v, %v", reported(p), p.Verdicts)
	}
}

// Explain does not say of a unit that would start at once, were it not paused, that it waits for its daemon's quarantine.
func TestExplainWhatNoQuarantineHolds(t *testing.T) {
	t.Parallel()
	in := Input{Now: epoch, Nodes: livesOf(8, advert(daemon.Spec{ID: "a", Instances: 4}))}
	in.Units = []daemon.Record{crashing(t, "a/0", time.Second), row(t, "a/1", daemon.Active, "n5"), freed(t, "a/2", time.Second), failedOn(t, "a/3", time.Second)}
	in.Commands = []daemon.Command{order(t, "p", daemon.CommandPause, "a", inForce)}
	for text, waits := range map[string]bool{"a/2": false, "a/3": true} {
		if x := Explain(in, unit(t, text)); (x.Why.Rule == Quarantined) != waits || (x.Next.Name == "") != waits {
			t.Errorf("%s: %s, next %q", text, x.Why, x.Next.Name)
		}
	}
}

// The failure of a trial keeps its daemon in quarantine, though the failures that led to it are long ago. If nothing of the
// daemon has failed lately, all of it is tried.
func TestFailedTrialKeepsTheQuarantine(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		trial, rest time.Duration // how long ago
		want        string
	}{
		{time.Second, 12 * time.Minute, ""},
		{time.Second, 59 * time.Minute, ""},
		{maxQuarantine, 20 * time.Minute, "a/1"},
		{11 * time.Minute, 20 * time.Minute, "a/0 a/1 a/2 a/3"},
		{time.Second, time.Hour, "a/0 a/1 a/2 a/3"},
	} {
		in := Input{Now: epoch, Nodes: livesOf(8, advert(daemon.Spec{ID: "a", Instances: 4}))}
		in.Units = []daemon.Record{failedOn(t, "a/0", c.trial, "n4")}
		for i := range 3 {
			in.Units = append(in.Units, failedOn(t, fmt.Sprintf("a/%d", i+1), c.rest, "n1", "n2", "n3"))
		}
		if p := Make(in); placed(p) != c.want {
			t.Errorf("a trial failed %v ago, the rest %v ago: %v", c.trial, c.rest, reported(p))
		}
	}
}

// A trial ends after eight minutes, also if the holder never gives the unit up.
func TestTrialEnds(t *testing.T) {
	t.Parallel()
	for since, want := range map[time.Duration]string{7 * time.Minute: "", 8 * time.Minute: "a/3"} {
		in := Input{Now: epoch, Nodes: livesOf(8, advert(daemon.Spec{ID: "a", Instances: 4, MaxFailures: -1}))}
		for i, name := range []string{"n1", "n2", "n3"} {
			r := row(t, fmt.Sprintf("a/%d", i), daemon.Active, name)
			r.Since, r.FailingSince, r.RetryAt, r.Failures = epoch.Add(-time.Hour), epoch.Add(-since), epoch.Add(time.Second), 9
			in.Units = append(in.Units, r)
		}
		in.Units = append(in.Units, failedOn(t, "a/3", time.Minute))
		p := Make(in)
		if len(p.Verdicts) != 1 || placed(p) != want {
			t.Errorf("after %v: %v, %v", since, reported(p), p.Verdicts)
		}
		if due := epoch.Add(maxQuarantine - since); want == "" && !p.DueAt.Equal(due) {
			t.Errorf("due at %v, want %v", p.DueAt, due)
		}
	}
}

// What an operator moves, restarts or pins starts although its daemon is in quarantine. A pin holds on, so it does so only
// until the unit fails.
func TestCommandsPassTheQuarantine(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name     string
		command  daemon.Command
		failures int
		want     string
	}{
		{"no command", daemon.Command{}, 0, ""},
		{"move", order(t, "m", daemon.CommandMove, "a/1 to n6", inForce), 0, "a/1"},
		{"move of one that failed", order(t, "m", daemon.CommandMove, "a/1 to n6", inForce), 3, "a/1"},
		{"restart", order(t, "r", daemon.CommandRestart, "a/1", inForce), 3, "a/1"},
		{"pin", order(t, "p", daemon.CommandPin, "a/1 to n6", inForce), 0, "a/1"},
		{"pin of one that failed", order(t, "p", daemon.CommandPin, "a/1 to n6", inForce), 3, ""},
	} {
		in := Input{Now: epoch, Nodes: livesOf(8, advert(daemon.Spec{ID: "a", Instances: 2}))}
		in.Units = []daemon.Record{crashing(t, "a/0", time.Second), freed(t, "a/1", time.Second)}
		in.Units[1].Failures = c.failures
		if c.command.ID != "" {
			in.Commands = []daemon.Command{c.command}
		}
		if p := Make(in); placed(p) != c.want {
			t.Errorf("%s: %v", c.name, reported(p))
		}
	}
}

// sickCluster has n daemons that failed on n1 and run on n2, and one free unit. n1 is empty.
func sickCluster(t testing.TB, n int) Input {
	specs := []daemon.Spec{{ID: "free"}}
	in := Input{Now: epoch, Units: []daemon.Record{freed(t, "free/0", time.Second)}}
	for i := range n {
		id := daemon.ID(fmt.Sprintf("d%d", i))
		specs = append(specs, daemon.Spec{ID: id})
		r := failedOn(t, string(id)+"/0", time.Minute, "n1")
		r.State, r.Holder, r.Failures = daemon.Active, live("n2", nil).Member.Identity, 0
		in.Units = append(in.Units, r)
	}
	in.Nodes = livesOf(4, advert(specs...))
	in.Nodes = append(in.Nodes[:2:2], in.Nodes[2].being(node.Late), in.Nodes[3].being(node.Late))
	return in
}

// A node on which three daemons failed gets a unit only if no other node can take it. Otherwise it would be the least
// loaded candidate for every free unit.
func TestSickNodeComesLast(t *testing.T) {
	t.Parallel()
	for n, want := range map[int]string{2: "n1", 3: "n2"} {
		in := sickCluster(t, n)
		p := Make(in)
		if len(p.Decisions) != 1 || p.Decisions[0].To.Name != want {
			t.Errorf("%d daemons failed on n1: %v", n, reported(p))
		}
	}
	in := sickCluster(t, 3)
	if got := Make(in).Decisions[0].Reason.String(); got != "healthy node; runner-up n1; 2 late: n3, n4" {
		t.Errorf("reason %q", got)
	}
	if x := Explain(in, unit(t, "free/0")); x.Rows[0].Verdict != "sick: comes last" {
		t.Errorf("verdict %q", x.Rows[0].Verdict)
	}
	in.Nodes = in.Nodes[:1]
	for i := range in.Units[1:] {
		in.Units[i+1].Retired, in.Units[i+1].State = false, daemon.Active
	}
	in.MaxMoves = 100
	if p := Make(in); len(p.Decisions) != 1 || p.Decisions[0].To.Name != "n1" {
		t.Errorf("without another node: %v", reported(p))
	}
}

// The next process with the name of a sick node is sick too, and loads are not evened out onto it.
func TestSickNodeByName(t *testing.T) {
	t.Parallel()
	in := sickCluster(t, 6)
	in.Nodes[2], in.Nodes[3] = in.Nodes[2].being(node.Live), in.Nodes[3].being(node.Live)
	in.Nodes[0].Member.Incarnation = "another"
	in.Units = in.Units[1:]
	in.MaxMoves = 100
	p := Make(in)
	if len(p.Verdicts) != 1 || p.Verdicts[0].Node != "n1" {
		t.Fatalf("verdicts %v", p.Verdicts)
	}
	for name, n := range countUnits(settle(t, in).Units) {
		if name == "n1" && n > 0 {
			t.Errorf("%d units were moved to the sick node", n)
		}
	}
}

// At most half of the nodes are sick, the worst of them: if all look so, the nodes are not the cause.
func TestHalfOfTheNodesAreSickAtMost(t *testing.T) {
	t.Parallel()
	var specs []daemon.Spec
	in := Input{Now: epoch}
	for i := range 5 {
		id := daemon.ID(fmt.Sprintf("d%d", i))
		specs = append(specs, daemon.Spec{ID: id})
		r := failedOn(t, string(id)+"/0", time.Minute, "n1", "n2", "n3")
		r.State, r.Holder, r.Failures = daemon.Active, live("n4", nil).Member.Identity, 0
		in.Units = append(in.Units, r)
	}
	in.Nodes = livesOf(4, advert(specs...))
	if p := Make(in); len(p.Verdicts) != 2 || p.Verdicts[0].Node != "n1" || p.Verdicts[1].Node != "n2" {
		t.Errorf("verdicts %v", p.Verdicts)
	}
}

// The units of a quarantined daemon are not moved to make loads even: they would wait until the quarantine ends.
func TestQuarantinedUnitsAreNotMoved(t *testing.T) {
	t.Parallel()
	specs := []daemon.Spec{{ID: "a", Instances: 5}, {ID: "b", Instances: 4}}
	in := Input{Now: epoch, SettleWindow: window, MaxMoves: 100, Nodes: livesOf(4, advert(specs...))}
	in.Units = append(heldBy(t, "a", map[string]int{"n1": 4}), failedOn(t, "a/4", time.Second, "n2", "n3", "n4"))
	in.Units = append(in.Units, heldBy(t, "b", map[string]int{"n1": 4})...)
	p := Make(in)
	if len(p.Verdicts) != 1 || len(p.Decisions) == 0 {
		t.Fatalf("verdicts %v, decisions %v", p.Verdicts, reported(p))
	}
	for _, d := range p.Decisions {
		if d.Unit.Daemon != "b" {
			t.Errorf("%s is moved", d.Unit)
		}
	}
}

// lostNode is a tombstone of a node of that name.
func lostNode(name string, n int, ago time.Duration, why string) Node {
	out := live(name, nil)
	out.Member.Incarnation = node.Incarnation(fmt.Sprintf("i-%s-%d", name, n))
	out.Member.State, out.State = node.Removed, node.Removed
	out.Member.EndedAt, out.Member.EndReason = epoch.Add(-ago), why
	return out
}

// A node that was lost twice within ten minutes gets no units until it has been steady for a while, longer with each
// further loss. Clean stops, losses long ago and a node that has been steady do not count.
func TestFlappingNode(t *testing.T) {
	t.Parallel()
	const silent = "no heartbeat for 6s"
	for _, c := range []struct {
		name    string
		losses  []Node
		returns int
		since   time.Duration // for how long n1 is a member
		until   time.Duration // from now; 0 = it does not flap
	}{
		{"lost once", []Node{lostNode("n1", 1, time.Minute, silent)}, 0, time.Second, 0},
		{"lost twice", []Node{lostNode("n1", 1, time.Minute, silent), lostNode("n1", 2, 2*time.Minute, silent)}, 0, time.Second, 9 * time.Second},
		{"returned twice", nil, 2, time.Second, 9 * time.Second},
		{"lost and returned, four times", []Node{lostNode("n1", 1, time.Minute, silent)}, 3, time.Second, 39 * time.Second},
		{"steady for long enough", nil, 3, 20 * time.Second, 0},
		{"stopped cleanly", []Node{lostNode("n1", 1, time.Minute, "shutdown"), lostNode("n1", 2, time.Minute, "shutdown")}, 0, time.Second, 0},
		{"long ago", []Node{lostNode("n1", 1, 11*time.Minute, silent), lostNode("n1", 2, 12*time.Minute, silent)}, 0, time.Second, 0},
		{"another node", []Node{lostNode("n9", 1, time.Minute, silent), lostNode("n9", 2, time.Minute, silent)}, 0, time.Second, 0},
		{"returned often, long ago", nil, 5, 11 * time.Minute, 0},
	} {
		in := Input{Now: epoch, StableAfter: 10 * time.Second, Nodes: livesOf(2, advert(daemon.Spec{ID: "a", Instances: 3}))}
		in.Nodes[0].Member.Returns, in.Nodes[0].Member.RegisteredAt = c.returns, epoch.Add(-c.since)
		in.Nodes = append(in.Nodes, c.losses...)
		in.Units = append(heldBy(t, "a", map[string]int{"n2": 2}), freed(t, "a/2", time.Second))
		p := Make(in)
		want := "n1"
		if c.until > 0 {
			want = "n2"
		}
		if len(p.Decisions) != 1 || p.Decisions[0].To.Name != want {
			t.Errorf("%s: %v", c.name, reported(p))
		}
		switch {
		case c.until == 0 && len(p.Verdicts) > 0:
			t.Errorf("%s: verdicts %v", c.name, p.Verdicts)
		case c.until > 0 && (len(p.Verdicts) != 1 || !p.Verdicts[0].Flapping || !p.Verdicts[0].Until.Equal(epoch.Add(c.until)) || !p.DueAt.Equal(epoch.Add(c.until))):
			t.Errorf("%s: verdicts %v, due at %v", c.name, p.Verdicts, p.DueAt)
		}
	}
}

// If most nodes flap, the cause is not in the nodes.
func TestHalfOfTheNodesFlapAtMost(t *testing.T) {
	t.Parallel()
	in := Input{Now: epoch, StableAfter: time.Minute, Nodes: livesOf(4, advert(daemon.Spec{ID: "a"}))}
	for i := range in.Nodes {
		in.Nodes[i].Member.Returns, in.Nodes[i].Member.RegisteredAt = 3+i, epoch.Add(-time.Second)
	}
	if p := Make(in); len(p.Verdicts) != 2 || p.Verdicts[0].Node != "n3" || p.Verdicts[1].Node != "n4" {
		t.Errorf("verdicts %v", p.Verdicts)
	}
}

// Of two processes with the name of a node that flaps, the newest counts, in whatever order they are listed.
func TestFlappingNameOfTwoProcesses(t *testing.T) {
	t.Parallel()
	a := advert(daemon.Spec{ID: "a"})
	old, newest := live("n1", a).born(time.Hour), live("n1", a).born(time.Second)
	newest.Member.Incarnation, newest.Member.Returns = "i-n1-2", 2
	for _, pair := range [][]Node{{old, newest}, {newest, old}} {
		p := Make(Input{Now: epoch, StableAfter: 10 * time.Second, Nodes: append(pair, live("n2", a), live("n3", a))})
		if len(p.Verdicts) != 1 || !p.Verdicts[0].Until.Equal(epoch.Add(9*time.Second)) {
			t.Errorf("verdicts %v", p.Verdicts)
		}
	}
}
