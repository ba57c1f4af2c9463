package plan

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/node"
)

// six is a cluster of three nodes that hold two units of a each. Units of gpu run on n1 only.
func six(t *testing.T) Input {
	t.Helper()
	a := advert(daemon.Spec{ID: "a", Instances: 6}, daemon.Spec{ID: "gpu", Instances: 1, Requires: map[string]string{"gpu": "yes"}})
	in := Input{Now: epoch, Nodes: livesOf(3, a), MaxMoves: 1}
	in.Nodes[0] = in.Nodes[0].labelled("gpu", "yes")
	for i := range 6 {
		in.Units = append(in.Units, row(t, fmt.Sprintf("a/%d", i), daemon.Active, fmt.Sprintf("n%d", i%3+1)))
	}
	in.Units = append(in.Units, row(t, "gpu/0", daemon.Active, "n1"))
	return in
}

// outcome writes a dry run: each unit that moves, each that runs nowhere, and what the nodes hold afterwards.
func outcome(d DryRun) string {
	var out []string
	for _, m := range d.Moves {
		out = append(out, fmt.Sprintf("%s %s>%s", m.Unit, m.From, m.To))
	}
	for _, m := range d.Unplaced {
		out = append(out, fmt.Sprintf("%s nowhere", m.Unit))
	}
	for _, n := range d.Nodes {
		out = append(out, strings.TrimSpace(fmt.Sprintf("%s %d %s", n.Node, n.UnitsAfter, n.Change)))
	}
	return strings.Join(out, "; ")
}

func TestTry(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		change func(*Input)
		s      Scenario
		moves  int
		want   string // a part of the outcome
	}{
		"nothing changes":               {s: Scenario{}, want: "n1 3; n2 2; n3 2"},
		"a node is lost":                {s: Scenario{Lose: []string{"n2"}}, moves: 2, want: "n2 0 lose"},
		"a node is drained":             {s: Scenario{Drain: []string{"n2"}}, moves: 2, want: "n2 0 drain"},
		"the only node with the labels": {s: Scenario{Lose: []string{"n1"}}, moves: 3, want: "gpu/0 nowhere"},
		"all nodes are lost":            {s: Scenario{Lose: []string{"n1", "n2", "n3"}}, moves: 7, want: "a/0 nowhere; a/1 nowhere; a/2 nowhere; a/3 nowhere; a/4 nowhere; a/5 nowhere; gpu/0 nowhere"},
		"two nodes are added":           {s: Scenario{Add: 2}, moves: 2, want: "new-1 1 add; new-2 1 add"},
		"one goes and a like one comes": {s: Scenario{Lose: []string{"n1"}, Add: 1, Like: "n1"}, moves: 3, want: "new-1 3 add"},
		"no moves for evenness":         {change: func(in *Input) { in.MaxMoves = 0 }, s: Scenario{Add: 1}, want: "new-1 0 add"},
		"a name that is taken":          {change: func(in *Input) { in.Nodes[2].Member.Name = "new-1" }, s: Scenario{Add: 1}, moves: 1, want: "new-2 1 add"},
		"joins are not waited out": {change: func(in *Input) {
			in.SettleWindow = 3600e9
			in.Nodes = append(in.Nodes, live("n4", in.Nodes[1].Advert).born(0))
		}, moves: 1, want: "n4 1"},
		"a hand-over under way":            {change: func(in *Input) { in.Units[0].State = daemon.Revoking }, s: Scenario{}, want: "n1 3; n2 2; n3 2"},
		"a start under way":                {change: func(in *Input) { in.Units[0].State = daemon.Assigning }, s: Scenario{}, want: "n1 3; n2 2; n3 2"},
		"a drained node, drained as well":  {change: func(in *Input) { in.Commands = []daemon.Command{order(t, "d", daemon.CommandDrain, "n2")} }, s: Scenario{Drain: []string{"n3"}}, moves: 4, want: "n1 7; n2 0; n3 0 drain"},
		"the lost node is drained already": {change: func(in *Input) { in.Nodes[1].State = node.Draining }, s: Scenario{Lose: []string{"n2"}}, moves: 2, want: "n2 0 lose"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			in := six(t)
			if c.change != nil {
				c.change(&in)
			}
			before := slices.Clone(in.Units)
			got, err := Try(in, c.s)
			if err != nil || len(got.Moves) != c.moves || !strings.Contains(outcome(got), c.want) {
				t.Errorf("%v, %s; want %d moves and %s", err, outcome(got), c.moves, c.want)
			}
			if !slices.EqualFunc(in.Units, before, func(a, b daemon.Record) bool { return a.Fence() == b.Fence() && a.State == b.State }) {
				t.Error("the input was changed")
			}
			for _, m := range got.Unplaced {
				if m.Why == "" {
					t.Errorf("%s runs nowhere for no reason", m.Unit)
				}
			}
		})
	}
}

// A dry run ends where the plans of the test's own loop end, which carries out one after the other.
func TestTryIsWhatPlansDo(t *testing.T) {
	t.Parallel()
	in := six(t)
	got, err := Try(in, Scenario{Lose: []string{"n3"}, Add: 2})
	if err != nil {
		t.Fatal(err)
	}
	in.Nodes = append(slices.Clone(in.Nodes[:2]), live("new-1", in.Nodes[0].Advert).labelled("gpu", "yes").born(0), live("new-2", in.Nodes[0].Advert).labelled("gpu", "yes").born(0))
	for i := range in.Nodes[2:] {
		n := &in.Nodes[2+i].Member
		n.ID, n.Incarnation = node.ID(n.Name), node.Incarnation(n.Name)
	}
	for i := range in.Units {
		if in.Units[i].Holder.Name == "n3" {
			in.Units[i].State, in.Units[i].Since = daemon.Deleted, epoch
		}
	}
	in.MaxMoves = len(in.Units)
	held := map[string]int{}
	for _, r := range settle(t, in).Units {
		held[r.Holder.Name]++
	}
	for _, n := range got.Nodes {
		if n.Change != "lose" && n.UnitsAfter != held[n.Node] {
			t.Errorf("%s holds %d units, the plans give it %d", n.Node, n.UnitsAfter, held[n.Node])
		}
	}
}

func TestTryRefuses(t *testing.T) {
	t.Parallel()
	in := six(t)
	for name, c := range map[string]struct {
		s       Scenario
		message string
	}{
		"drain of nobody": {Scenario{Drain: []string{"n9"}}, `there is no node "n9"`},
		"loss of nobody":  {Scenario{Lose: []string{"n1", "n9"}}, `there is no node "n9"`},
		"like nobody":     {Scenario{Add: 1, Like: "n9"}, `there is no node "n9"`},
		"less than none":  {Scenario{Add: -1}, "cannot be added"},
		"both":            {Scenario{Drain: []string{"n1"}, Lose: []string{"n1"}}, "named twice"},
		"twice":           {Scenario{Lose: []string{"n1", "n1"}}, "named twice"},
	} {
		if _, err := Try(in, c.s); err == nil || !strings.Contains(err.Error(), c.message) {
			t.Errorf("%s: %v, want %q", name, err, c.message)
		}
	}
	var unknown *UnknownNodeError
	if _, err := Try(in, Scenario{Drain: []string{"n9"}}); !errors.As(err, &unknown) || unknown.Name != "n9" {
		t.Error(err)
	}
	if _, err := Try(Input{Now: epoch}, Scenario{Add: 1}); err == nil {
		t.Error("nodes like nobody were added")
	}
}
