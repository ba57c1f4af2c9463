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

func (n Node) limited(weight int) Node { n.Member.MaxWeight = weight; return n }

// TestLimit: a node is given units up to its limit, and what fits nowhere waits with the reason.
func TestLimit(t *testing.T) {
	t.Parallel()
	in := Input{Now: epoch, Nodes: livesOf(2, advert(daemon.Spec{ID: "a", Instances: 5, Weight: 2}))}
	in.Nodes[0], in.Nodes[1] = in.Nodes[0].limited(5), in.Nodes[1].limited(2)
	done := settle(t, in)
	if got := spread(done.Units); got != "n1:2 n2:1" {
		t.Errorf("units %q, want two on n1 and one on n2", got)
	}
	p := Make(done)
	if len(p.Unplaced) != 2 || p.Unplaced[0].Obstacle() != Full {
		t.Fatalf("unplaced %v", reported(p))
	}
	if got, want := p.Unplaced[0].String(), "no eligible node; 2 full: n1, n2"; got != want {
		t.Errorf("reason %q, want %q", got, want)
	}
	e := Explain(done, p.Unplaced[0].Unit)
	if got, want := e.Rows[0].Verdict, "full: holds 4, 6 with the unit, at most 5 (node.max_weight)"; got != want || e.Rows[0].Eligible {
		t.Errorf("verdict %q, want %q", got, want)
	}
	// A lighter unit still fits.
	done.Nodes[0].Advert = advert(daemon.Spec{ID: "a", Instances: 5, Weight: 2}, daemon.Spec{ID: "b"})
	done.Nodes[1].Advert = done.Nodes[0].Advert
	if got := spread(settle(t, done).Units); got != "n1:3 n2:1" {
		t.Errorf("units %q, want the lighter one on n1", got)
	}
}

// TestLimitAfterLoss: nine of ten nodes are lost. The one that is left is given what it can carry, and not all.
func TestLimitAfterLoss(t *testing.T) {
	t.Parallel()
	in := Input{Now: epoch, Nodes: livesOf(10, advert(daemon.Spec{ID: "a", Instances: 60}))}
	for i := range in.Nodes {
		in.Nodes[i] = in.Nodes[i].limited(8)
		if i > 0 {
			in.Nodes[i] = in.Nodes[i].being(node.Removed)
		}
	}
	for i := range 60 {
		holder, state := fmt.Sprintf("n%d", i%10+1), daemon.Active
		if holder != "n1" {
			state = daemon.Deleted
		}
		in.Units = append(in.Units, row(t, fmt.Sprintf("a/%d", i), state, holder))
	}
	p := Make(in)
	if len(p.Decisions) != 2 || len(p.Unplaced) != 52 {
		t.Errorf("%d units placed and %d unplaced, want 2 and 52", len(p.Decisions), len(p.Unplaced))
	}
	back := in.Nodes[1].being(node.Live)
	in.Units = carryOut(in.Units, p.Decisions)
	in.Nodes[1] = back
	if p := Make(in); len(p.Decisions) != 8 || p.Decisions[0].To.Name != "n2" {
		t.Errorf("a node that returns is given %v", reported(p)[:1])
	}
}

// TestLimitAndEmbargo: a full node is full, and that an embargo there ends helps nobody.
func TestLimitAndEmbargo(t *testing.T) {
	t.Parallel()
	in := Input{Now: epoch, Nodes: livesOf(1, advert(daemon.Spec{ID: "a", Instances: 2}))}
	in.Nodes[0] = in.Nodes[0].limited(1)
	failed := row(t, "a/1", daemon.Deleted, "n1")
	failed.Embargoes = []daemon.Embargo{{Incarnation: "i-n1", Until: epoch.Add(time.Minute), Length: time.Minute}}
	in.Units = []daemon.Record{row(t, "a/0", daemon.Active, "n1"), failed}
	p := Make(in)
	if u := p.Unplaced; len(u) != 1 || u[0].Obstacle() != Full || !u[0].EmbargoedUntil.IsZero() {
		t.Errorf("unplaced %+v, want one unit for which the node is full", u)
	}
}

// TestLimitKeepsRunningUnits: a node that holds more than its limit keeps it, is given no more, and gives units away
// only to make loads even.
func TestLimitKeepsRunningUnits(t *testing.T) {
	t.Parallel()
	in := uneven(t, daemon.Spec{ID: "a", Instances: 6}, 2, map[string]int{"n1": 3, "n2": 3})
	in.Nodes[0] = in.Nodes[0].limited(2)
	if p := Make(in); len(p.Decisions) > 0 || !p.Balanced {
		t.Errorf("decisions %v, balanced %v", reported(p), p.Balanced)
	}
}

// TestLimitInRounds: a round of rebalancing moves nothing to a node that would exceed its limit.
func TestLimitInRounds(t *testing.T) {
	t.Parallel()
	in := uneven(t, daemon.Spec{ID: "a", Instances: 9}, 3, map[string]int{"n1": 9})
	in.Nodes[1] = in.Nodes[1].limited(1)
	done := settle(t, in)
	if got := spread(done.Units); got != "n1:4 n2:1 n3:4" {
		t.Errorf("units %q", got)
	}
	if p := Make(done); !p.Balanced {
		t.Error("the loads are as even as the limit allows, and the plan does not say so")
	}
}

// TestLimitRefusesCommands: a move and a pin to a full node are refused; a pin that is in force sends its unit elsewhere.
func TestLimitRefusesCommands(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		kind daemon.CommandKind
		edit []func(*daemon.Command, *daemon.CommandArgs)
		unit string
		want string
	}{
		{"move", daemon.CommandMove, nil, "a/0", "c refused: n2 cannot take a/0: full: holds 1, 2 with the unit, at most 1 (node.max_weight)"},
		{"pin", daemon.CommandPin, nil, "a/0", "c refused: n2 cannot take a/0: full: holds 1, 2 with the unit, at most 1 (node.max_weight)"},
		{"pin of its own unit", daemon.CommandPin, nil, "a/1", "c in force …"},
		{"pin in force", daemon.CommandPin, []func(*daemon.Command, *daemon.CommandArgs){inForce}, "a/0", ""},
	} {
		in := operated(t, order(t, "c", c.kind, c.unit+" to n2", c.edit...))
		in.Nodes[1] = in.Nodes[1].limited(1)
		got, _, _ := strings.Cut(printed(Make(in)), "; assign")
		if strings.HasPrefix(got, "assign") {
			got = ""
		}
		if got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
	in := operated(t, order(t, "c", daemon.CommandPin, "a/0 to n2", inForce))
	in.Nodes[1] = in.Nodes[1].limited(1)
	in.Units[0].State = daemon.Deleted
	p := Make(in)
	if i := slices.IndexFunc(p.Decisions, func(d Decision) bool { return d.Unit == in.Units[0].Unit }); i < 0 || p.Decisions[i].To.Name == "n2" {
		t.Errorf("a free unit that is pinned to a full node: %v", reported(p))
	}
}
