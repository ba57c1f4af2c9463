package plan

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/node"
)

// order makes an open command; about is a node, daemon or unit, with " to NODE" for a target.
func order(t testing.TB, id string, kind daemon.CommandKind, about string, edits ...func(*daemon.Command, *daemon.CommandArgs)) daemon.Command {
	t.Helper()
	c := daemon.Command{ID: id, Kind: kind, Actor: "alice", CreatedAt: epoch}
	var args daemon.CommandArgs
	about, args.To, _ = strings.Cut(about, " to ")
	switch {
	case kind == daemon.CommandResign:
	case strings.HasPrefix(string(kind), "node."):
		args.Node = about
	case strings.Contains(about, "/"):
		u := unit(t, about)
		args.Daemon, args.Index = u.Daemon, &u.Index
	default:
		args.Daemon = daemon.ID(about)
	}
	if kind == daemon.CommandMove || kind == daemon.CommandRestart {
		args.Generation = 7
	}
	for _, edit := range edits {
		edit(&c, &args)
	}
	c.Args = args.Encode()
	return c
}

func inForce(c *daemon.Command, _ *daemon.CommandArgs) { c.Result = daemon.ResultInForce }

func expecting(generation int64) func(*daemon.Command, *daemon.CommandArgs) {
	return func(_ *daemon.Command, a *daemon.CommandArgs) { a.Generation = generation }
}

func ofTerm(n int64) func(*daemon.Command, *daemon.CommandArgs) {
	return func(c *daemon.Command, _ *daemon.CommandArgs) { c.Term = n }
}

// operated is a cluster of three nodes; n3 has a label, and n1 leads term 5. Units a/0 and a/1 run on n1 and n2 with
// generation 7; b/0, which requires the label, is free.
func operated(t testing.TB, commands ...daemon.Command) Input {
	t.Helper()
	ad := advert(daemon.Spec{ID: "a", Instances: 2}, daemon.Spec{ID: "b", Requires: map[string]string{"disk": "ssd"}})
	nodes := livesOf(3, ad)
	nodes[2] = nodes[2].labelled("disk", "ssd")
	return Input{
		Now: epoch, Nodes: nodes, Commands: commands,
		Term: node.Term{Number: 5, Ordinal: 1, Leader: nodes[0].Member.Identity},
		Units: []daemon.Record{
			row(t, "a/0", daemon.Active, "n1"), row(t, "a/1", daemon.Active, "n2"), row(t, "b/0", daemon.Unassigned, ""),
		},
	}
}

// said writes a plan in words: its answers, and its decisions about units with a row.
func printed(p Plan) string {
	var out []string
	for _, a := range p.Answers {
		text := a.ID + " " + a.Result
		if !a.Done {
			text += " …"
		}
		out = append(out, text)
	}
	for _, d := range p.Decisions {
		out = append(out, fmt.Sprintf("%s %s %s", d.Step, d.Unit, d.To.Name))
	}
	if p.HandOver != nil {
		out = append(out, "hand over")
	}
	return strings.Join(out, "; ")
}

// TestOrders: what a plan says about commands, and what it decides because of them.
func TestOrders(t *testing.T) {
	t.Parallel()
	type in = Input
	cordon, drain := daemon.CommandCordon, daemon.CommandDrain
	pause, move, restart, pin := daemon.CommandPause, daemon.CommandMove, daemon.CommandRestart, daemon.CommandPin
	for _, c := range []struct {
		name     string
		commands []daemon.Command
		edit     func(*in)
		want     string
	}{
		{"a cordon keeps units away", []daemon.Command{order(t, "c", cordon, "n3")}, nil, "c in force …"},
		{"a cordon in force is not answered again", []daemon.Command{order(t, "c", cordon, "n3", inForce)}, nil, ""},
		{"a cordon outlives the node's row", []daemon.Command{order(t, "c", cordon, "gone", inForce), order(t, "d", cordon, "n3", inForce)}, nil, ""},
		{"a cordon outlives the process", []daemon.Command{order(t, "c", cordon, "n3", inForce)}, func(i *in) {
			i.Nodes[2].Member.Incarnation = "another"
		}, ""},
		{"no node of that name", []daemon.Command{order(t, "c", cordon, "n9")}, nil, `c refused: no node is named "n9"; assign b/0 n3`},
		{"an ambiguous name", []daemon.Command{order(t, "c", cordon, "n1")}, func(i *in) {
			i.Nodes[1].Member.Name = "n1"
		}, `c refused: 2 live nodes are named "n1"; assign b/0 n3`},
		{
			"two cordons",
			[]daemon.Command{order(t, "c", cordon, "n3", inForce), order(t, "d", cordon, "n3")},
			nil,
			"d refused: command c (node.cordon by alice) is in force already",
		},
		{"uncordon lifts cordon and drain", []daemon.Command{
			order(t, "c", cordon, "n3", inForce), order(t, "d", drain, "n3", inForce), order(t, "u", daemon.CommandUncordon, "n3"),
		}, nil, "c lifted: by command u by alice; d lifted: by command u by alice; u done; assign b/0 n3"},
		{"a drain moves units and the term", []daemon.Command{order(t, "d", drain, "n1")}, nil, "d in force …; revoke a/0 ; assign b/0 n3; hand over"},
		{"a drain without another candidate keeps the term", []daemon.Command{order(t, "d", drain, "n1")}, func(i *in) {
			i.Nodes[1].Member.NeverLead, i.Nodes[2].Member.NeverLead = true, true
		}, "d in force …; revoke a/0 ; assign b/0 n3"},
		{"the only candidate is not drained while it leads", []daemon.Command{order(t, "d", drain, "n1", inForce)}, func(i *in) {
			i.Nodes[1].Member.NeverLead, i.Nodes[2].Member.NeverLead = true, true
			i.Units[0].Holder = i.Units[1].Holder
		}, "assign b/0 n3"},
		{"a node without units is drained", []daemon.Command{order(t, "d", drain, "n3", inForce)}, nil, "d drained …"},
		{"a pause of a unit", []daemon.Command{order(t, "p", pause, "a/1")}, nil, "p in force …; revoke a/1 ; assign b/0 n3"},
		{"a pause of a daemon", []daemon.Command{order(t, "p", pause, "b")}, nil, "p in force …"},
		{
			"a unit of a paused daemon",
			[]daemon.Command{order(t, "p", pause, "b", inForce), order(t, "r", daemon.CommandResume, "b/0")},
			nil,
			"r refused: the whole daemon b is paused: resume it instead",
		},
		{"no unit of that name", []daemon.Command{order(t, "p", pause, "a/2")}, nil, "p refused: there is no unit a/2; assign b/0 n3"},
		{"a move revokes", []daemon.Command{order(t, "m", move, "a/0 to n3")}, nil, "m in force …; revoke a/0 ; assign b/0 n3"},
		{"a move assigns to its node", []daemon.Command{order(t, "m", move, "a/0 to n3", inForce)}, func(i *in) {
			i.Units[0].State = daemon.Deleted
		}, "assign a/0 n3; assign b/0 n3"},
		{"a move waits for the run", []daemon.Command{order(t, "m", move, "a/0 to n1", inForce, expecting(6))}, func(i *in) {
			i.Units[0].State = daemon.Assigning
		}, "assign b/0 n3"},
		{"a move is done once", []daemon.Command{order(t, "m", move, "a/0 to n1", inForce, expecting(6))}, nil, "m done: a/0 runs on n1; assign b/0 n3"},
		{
			"a move that went elsewhere",
			[]daemon.Command{order(t, "m", move, "a/0 to n3", inForce, expecting(6))},
			nil,
			"m refused: a/0 went to n1 instead: ; assign b/0 n3",
		},
		{
			"a move of another generation",
			[]daemon.Command{order(t, "m", move, "a/0 to n3", expecting(6))},
			nil,
			"m conflict: expected generation 6 of a/0, it is 7; assign b/0 n3",
		},
		{
			"a move to a node without the label",
			[]daemon.Command{order(t, "m", move, "b/0 to n2", expecting(0))},
			nil,
			"m refused: n2 cannot take b/0: lacks disk=ssd; assign b/0 n3",
		},
		{
			"a move to a cordoned node",
			[]daemon.Command{order(t, "c", cordon, "n3", inForce), order(t, "m", move, "a/0 to n3")},
			nil,
			"m refused: n3 cannot take a/0: cordoned by alice",
		},
		{
			"a move to a dead node",
			[]daemon.Command{order(t, "m", move, "a/0 to n3")},
			func(i *in) { i.Nodes[2].State = node.Removed },
			"m refused: n3 is removed",
		},
		{
			"a move under a pin",
			[]daemon.Command{order(t, "p", pin, "a/0 to n1", inForce), order(t, "m", move, "a/0 to n3")},
			nil,
			"m refused: a/0 is pinned to n1: unpin it first; assign b/0 n3",
		},
		{
			"two moves of one unit",
			[]daemon.Command{order(t, "m", move, "a/0 to n3", inForce), order(t, "n", move, "a/0 to n2")},
			nil,
			"n refused: another command moves or restarts a/0; revoke a/0 ; assign b/0 n3",
		},
		{"a restart revokes once", []daemon.Command{order(t, "r", restart, "a/0", inForce, expecting(6))}, nil, "r done: a/0 runs on n1; assign b/0 n3"},
		{"a restart stays on its node", []daemon.Command{order(t, "r", restart, "a/0", inForce)}, func(i *in) {
			i.Units[0].State = daemon.Deleted
			i.Units = append(i.Units, row(t, "x/0", daemon.Revoking, "n1"), row(t, "x/1", daemon.Revoking, "n1"))
		}, "assign a/0 n1; assign b/0 n3"},
		{"a pin brings the unit to its node", []daemon.Command{order(t, "p", pin, "a/0 to n3", inForce)}, nil, "revoke a/0 ; assign b/0 n3"},
		{"a pin to a node that is gone holds nothing up", []daemon.Command{order(t, "p", pin, "a/0 to n3", inForce)}, func(i *in) {
			i.Nodes[2].State = node.Removed
			i.Units[0].State = daemon.Deleted
		}, "assign a/0 n1"},
		{
			"a new pin to a dead node",
			[]daemon.Command{order(t, "p", pin, "a/0 to n3")},
			func(i *in) { i.Nodes[2].State = node.Removed },
			"p refused: n3 is removed",
		},
		{
			"a live node is not forgotten",
			[]daemon.Command{order(t, "f", daemon.CommandForget, "n3")},
			nil,
			"f refused: n3 is live: stop it, or wait until it was removed; assign b/0 n3",
		},
		{"forgetting lifts cordons and pins", []daemon.Command{
			order(t, "c", cordon, "n3", inForce), order(t, "p", pin, "a/0 to n3", inForce), order(t, "f", daemon.CommandForget, "n3"),
		}, func(i *in) {
			i.Nodes[2].State = node.Removed
		}, "c lifted: by command f by alice; f done; p lifted: by command f by alice"},
		{"a node whose row is gone is forgotten", []daemon.Command{
			order(t, "c", cordon, "n9", inForce), order(t, "p", pin, "a/0 to n9", inForce), order(t, "f", daemon.CommandForget, "n9"),
		}, nil, "c lifted: by command f by alice; f done; p lifted: by command f by alice; assign b/0 n3"},
		{
			"a name that nothing has is not forgotten",
			[]daemon.Command{order(t, "c", cordon, "n3", inForce), order(t, "f", daemon.CommandForget, "n9")},
			nil,
			`f refused: no node is named "n9"`,
		},
		{
			"another term than expected",
			[]daemon.Command{order(t, "c", cordon, "n3", ofTerm(4))},
			nil,
			"c conflict: expected term 4, the term is 5; assign b/0 n3",
		},
		{"the term goes to a node", []daemon.Command{order(t, "r", daemon.CommandResign, " to n2", ofTerm(5))}, nil, "r in force …; assign b/0 n3; hand over"},
		{"the node leads already", []daemon.Command{order(t, "r", daemon.CommandResign, " to n1", ofTerm(5))}, nil, "r done: n1 leads; assign b/0 n3"},
		{"the term went to the node", []daemon.Command{order(t, "r", daemon.CommandResign, " to n1", ofTerm(4), inForce)}, nil, "r done: n1 leads; assign b/0 n3"},
		{"the term went elsewhere", []daemon.Command{order(t, "r", daemon.CommandResign, " to n2", ofTerm(4), inForce)}, nil, "r refused: n1 leads instead; assign b/0 n3"},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			in := operated(t, c.commands...)
			if c.edit != nil {
				c.edit(&in)
			}
			if got := printed(Make(in)); got != c.want {
				t.Errorf("got  %s\nwant %s", got, c.want)
			}
		})
	}
}

// TestPreview: a preview names what moves because of the command, and nothing else.
func TestPreview(t *testing.T) {
	t.Parallel()
	in := operated(t)
	before := slices.Clone(in.Units)
	answer, moves := Preview(in, order(t, "d", daemon.CommandDrain, "n1"))
	if answer.Done || len(moves) != 1 || moves[0].Unit != unit(t, "a/0") || moves[0].From != "n1" || moves[0].To == "" || moves[0].To == "n1" {
		t.Errorf("%+v, %+v", answer, moves)
	}
	answer, moves = Preview(in, order(t, "p", daemon.CommandPause, "a/1"))
	if answer.Done || len(moves) != 1 || moves[0].Unit != unit(t, "a/1") || moves[0].From != "n2" || moves[0].To != "" {
		t.Errorf("%+v, %+v", answer, moves)
	}
	answer, _ = Preview(in, order(t, "m", daemon.CommandMove, "a/0 to n9"))
	if !answer.Done || answer.Result != `refused: no node is named "n9"` {
		t.Errorf("%+v", answer)
	}
	if !slices.EqualFunc(in.Units, before, func(a, b daemon.Record) bool { return a.Fence() == b.Fence() && a.State == b.State }) {
		t.Error("the input was changed")
	}
}

// TestOrderedRebalance: a command asks for rounds, waits for them, and ends once the loads are even.
func TestOrderedRebalance(t *testing.T) {
	t.Parallel()
	rebalance := order(t, "r", daemon.CommandRebalance, "")
	in := uneven(t, daemon.Spec{ID: "a", Instances: 6}, 2, map[string]int{"n1": 5, "n2": 1})
	read := in
	read.MaxMoves = 0 // a snapshot does not have it
	answer, moves := Preview(read, order(t, "new", daemon.CommandRebalance, ""))
	if len(moves) != 2 || moves[0].From != "n1" || moves[0].To != "n2" || answer.Done && strings.HasPrefix(answer.Result, daemon.ResultRefused) {
		t.Errorf("a preview shows %v and answers %+v", moves, answer)
	}
	in.Commands = []daemon.Command{rebalance}
	p := Make(in)
	if got := printed(p); !strings.HasPrefix(got, "r in force …; revoke a/") || len(p.Decisions) != 2 {
		t.Errorf("at first: %s", got)
	}
	in.Commands[0].Result = daemon.ResultInForce
	if got := printed(Make(settle(t, in))); got != "r done: the loads are even" {
		t.Errorf("in the end: %s", got)
	}
	unsettled := in
	unsettled.Nodes = append(livesOf(1, in.Nodes[0].Advert), in.Nodes[1].being(node.Late))
	if got := printed(Make(unsettled)); got != "" {
		t.Errorf("while a node is late: %s", got)
	}
	in.NoRounds, in.MaxMoves = true, 0
	if got := printed(Make(in)); !strings.HasPrefix(got, "r refused: the leader moves nothing") {
		t.Errorf("without rounds: %s", got)
	}
}
