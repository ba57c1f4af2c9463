package drill

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/emitd/emitd/coordinator/operator"
	"github.com/emitd/emitd/daemon"
)

// TestDrillCommandsWhileLeadersDie gives the cluster one operator's command after another, and kills the leader while it
// carries each of them out. Each must be carried out once or be refused, whichever leader answers.
func TestDrillCommandsWhileLeadersDie(t *testing.T) {
	ParallelUnlessMeasured(t)
	rounds, first := 4, map[string]int{"postgres": 4} // a few kinds on each store
	if Full() {
		rounds = 200
	}
	for name, open := range stores {
		t.Run(name, func(t *testing.T) {
			ParallelUnlessMeasured(t)
			c := open(t)
			for _, node := range []string{"a", "b", "c"} {
				c.Start(node)
			}
			d := &commandDrill{Cluster: c, rng: rand.New(rand.NewPCG(uint64(len(name)), 1)), paused: map[daemon.Unit]bool{}, of: map[daemon.CommandKind]tally{}}
			for i := range rounds {
				d.round(first[name] + i)
			}
			what := fmt.Sprintf("%s: leader killed during a command, %d times", name, rounds)
			all, fewest := tally{}, rounds
			for _, kind := range slices.Compact(slices.Sorted(slices.Values(drilled))) {
				n := d.of[kind]
				t.Logf("%s: %d given, the leader killed before the answer to %d, %d refused", kind, n.given, n.before, n.refused)
				all.before, all.refused, fewest = all.before+n.before, all.refused+n.refused, min(fewest, n.given)
			}
			Count(t, what+", killed before the answer", all.before, "counted")
			Count(t, what+", refused", all.refused, "counted")
			if Full() {
				Count(t, what+", fewest of one kind of command", fewest, fmt.Sprintf("≥ %d", rounds/len(drilled)))
			}
			Never(t, what+", not carried out once and not refused", d.wrong)
			c.Check()
		})
	}
}

// commandDrill is a drill with operators' commands.
type commandDrill struct {
	*Cluster
	rng     *rand.Rand
	subject daemon.CommandArgs // of the pair of commands under way
	paused  map[daemon.Unit]bool
	of      map[daemon.CommandKind]tally
	wrong   int
}

// tally counts commands of one kind.
type tally struct {
	given   int
	before  int // the leader was killed before the answer
	refused int
}

// The commands, of every kind that operators have, in pairs where the second lifts the first.
var drilled = []daemon.CommandKind{
	daemon.CommandMove, daemon.CommandDrain, daemon.CommandUncordon, daemon.CommandResign,
	daemon.CommandPause, daemon.CommandResume, daemon.CommandRestart, daemon.CommandPin, daemon.CommandUnpin,
	daemon.CommandCordon, daemon.CommandUncordon, daemon.CommandRebalance, daemon.CommandForget, daemon.CommandRelease,
}

// round gives one command, kills the leader a moment later, and starts a node in its place.
func (d *commandDrill) round(i int) {
	d.T.Helper()
	d.calm()
	defer d.scene(drilled[i%len(drilled)])()
	leader, term := d.Leading()
	command := d.draw(drilled[i%len(drilled)], leader)
	s, err := d.Snapshot()
	if err != nil {
		d.T.Fatal(err)
	}
	type answer struct {
		command daemon.Command
		err     error
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	answers := make(chan answer, 1)
	go func() {
		client := operator.Client{Store: d.Store, Actor: "drill"}
		done, err := client.Do(ctx, command)
		answers <- answer{done, err}
	}()
	select { // the moment at which the leader dies is what this drill varies
	case <-time.After(time.Duration(d.rng.IntN(30_000)) * time.Microsecond):
	case a := <-answers:
		answers <- a
	}
	leader.Kill()
	n := d.of[command.Kind]
	defer func() { d.of[command.Kind] = n }()
	n.given++
	if len(answers) == 0 {
		n.before++
	}
	a := <-answers
	d.Start(leader.Name)
	d.Until(time.Minute, "a new leader", func() bool { return d.Term() > term && d.Leader() != nil })
	var refused *operator.RefusedError
	switch {
	case errors.As(a.err, &refused):
		n.refused++
		d.T.Logf("%d: %s: %s", i, command.Kind, refused.Command.Result)
		a.command = refused.Command
	case a.err != nil:
		d.T.Fatalf("%d: %s: %v", i, command.Kind, a.err)
	}
	for _, bad := range d.check(a.command, s.Head) {
		d.wrong++
		d.T.Errorf("%d: %s: %s", i, command.Kind, bad)
	}
}

// calm waits until three nodes are live, one leads, and all units run that are not paused.
func (d *commandDrill) calm() {
	d.T.Helper()
	d.Until(time.Minute, "the cluster is calm", func() bool {
		s, err := d.Snapshot()
		if err != nil || d.leader(s) == nil {
			return false
		}
		live := 0
		for _, m := range s.Nodes {
			if m.Present() && s.Now.Sub(m.LastHeartbeatAt) < d.Timing().Late() {
				live++
			}
		}
		running := countUnits(s, func(u daemon.Record) bool { return u.State == daemon.Active })
		return live == 3 && running == d.Instances-len(d.paused)
	})
}

// goneNode is the name of the node that is there to be forgotten.
const goneNode = "gone"

// scene brings about what some commands are for, and returns what ends it.
func (d *commandDrill) scene(kind daemon.CommandKind) (end func()) {
	d.T.Helper()
	switch kind {
	case daemon.CommandForget:
		d.loseNode()
	case daemon.CommandRelease:
		return d.holdBrake()
	}
	return func() {}
}

// loseNode makes a node come, be cordoned and go for good.
func (d *commandDrill) loseNode() {
	d.T.Helper()
	n := d.Start(goneNode)
	d.Until(time.Minute, "the node to forget is live", func() bool { m, ok := n.Member(); return ok && m.Present() })
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	client := operator.Client{Store: d.Store, Actor: "drill"}
	if _, err := client.Do(ctx, daemon.Command{Kind: daemon.CommandCordon, Args: daemon.CommandArgs{Node: goneNode}.Encode()}); err != nil {
		d.T.Fatal(err)
	}
	n.Kill()
	d.Until(time.Minute, "the node to forget is gone", func() bool { m, ok := n.Member(); return ok && !m.Present() })
}

// holdBrake makes three of five nodes look dead, until end continues them.
func (d *commandDrill) holdBrake() (end func()) {
	d.T.Helper()
	spare := []*Node{d.Start("d"), d.Start("e")}
	d.Until(time.Minute, "five nodes are live", func() bool {
		s, err := d.Snapshot()
		return err == nil && d.leader(s) != nil && len(present(s)) == 5
	})
	s, err := d.Snapshot()
	if err != nil {
		d.T.Fatal(err)
	}
	leader := d.leader(s)
	var frozen []*Node
	for _, n := range d.Nodes() {
		if n.Alive() && n != leader && len(frozen) < 3 {
			n.Freeze()
			frozen = append(frozen, n)
		}
	}
	d.Until(time.Minute, "the brake holds", func() bool { return d.happened(s.Head, daemon.BrakeHeld) > 0 })
	return func() {
		for _, n := range frozen {
			n.Signal(syscall.SIGCONT)
		}
		d.Until(time.Minute, "the stopped nodes are back", func() bool {
			s, err := d.Snapshot()
			return err == nil && len(present(s)) == 5
		})
		for _, n := range spare {
			n.Stop()
		}
	}
}

// draw makes a command that is likely to be possible. Every third one is about the leader that is about to die.
func (d *commandDrill) draw(kind daemon.CommandKind, leader *Node) daemon.Command {
	d.T.Helper()
	name := leader.Name
	if others := d.Others(leader); d.rng.IntN(3) > 0 {
		name = others[d.rng.IntN(len(others))]
	}
	s, err := d.Snapshot()
	if err != nil {
		d.T.Fatal(err)
	}
	var args daemon.CommandArgs
	switch kind {
	case daemon.CommandCordon, daemon.CommandDrain:
		args.Node = name
		d.subject = args
	case daemon.CommandUncordon, daemon.CommandResume, daemon.CommandUnpin:
		args = d.subject
		args.To, args.Generation = "", 0
	case daemon.CommandForget:
		args.Node = goneNode
	case daemon.CommandResign:
		args.To = name
	case daemon.CommandMove, daemon.CommandPin, daemon.CommandPause, daemon.CommandRestart:
		row := d.unit(s, kind, name)
		args = daemon.CommandArgs{Daemon: row.Unit.Daemon, Index: &row.Unit.Index}
		if kind == daemon.CommandMove || kind == daemon.CommandPin {
			args.To = name
		}
		d.subject = args
	}
	return daemon.Command{Kind: kind, Args: args.Encode()}
}

// unit returns a unit of the tickers, for a move one that is not on the named node.
func (d *commandDrill) unit(s *daemon.Snapshot, kind daemon.CommandKind, name string) daemon.Record {
	var rows []daemon.Record
	for _, u := range s.Units {
		if strings.HasPrefix(string(u.Unit.Daemon), "drill:") && (kind != daemon.CommandMove || u.Holder.Name != name) {
			rows = append(rows, u)
		}
	}
	if len(rows) == 0 { // everything is on that node: the move is refused
		rows = s.Units
	}
	return rows[d.rng.IntN(len(rows))]
}

// check compares what the history and the rows say about a command with its answer.
func (d *commandDrill) check(c daemon.Command, head int64) (bad []string) {
	d.T.Helper()
	events, err := d.Events(head)
	if err != nil {
		d.T.Fatal(err)
	}
	stored, ended, effects := 0, 0, 0
	for _, e := range events {
		switch {
		case strings.HasPrefix(string(e.Kind), "operator."):
			var about struct{ Command, Result string }
			if err := json.Unmarshal(e.Detail, &about); err != nil {
				d.T.Fatal(err)
			}
			if about.Command != c.ID {
				continue
			}
			switch of := (daemon.Command{Result: about.Result}).Outcome(); of {
			case "":
				stored++
			case daemon.ResultInForce, daemon.ResultDrained: // of a drain that becomes undone, both come again
			default:
				ended++
			}
		case effectOf(c, e):
			effects++
		}
	}
	refused := c.Outcome() == daemon.ResultRefused || c.Outcome() == daemon.ResultConflict
	preview := refused && stored == 0 // nothing was stored: the client refused it
	switch {
	case stored != 1 && !preview:
		bad = append(bad, fmt.Sprintf("it was stored %d times", stored))
	case ended > 1, ended == 0 && !c.Kind.Stands() && !preview:
		bad = append(bad, fmt.Sprintf("it ended %d times", ended))
	case effects > 1, effects > 0 && preview:
		bad = append(bad, fmt.Sprintf("it had its effect %d times, and the answer is %q", effects, c.Result))
	}
	if !refused {
		bad = append(bad, d.stands(c)...)
	}
	return bad
}

// effectOf reports whether the event is an effect that the command may have once.
func effectOf(c daemon.Command, e daemon.Event) bool {
	args, _ := c.Arguments()
	switch c.Kind {
	case daemon.CommandMove:
		return e.Kind == daemon.AssignmentRevoking && e.Unit == args.Unit() && strings.HasPrefix(e.Reason, "move requested")
	case daemon.CommandRestart:
		return e.Kind == daemon.AssignmentRevoking && e.Unit == args.Unit() && strings.HasPrefix(e.Reason, "restart requested")
	case daemon.CommandResign:
		return e.Kind == daemon.LeaderLost && e.Reason == "resigned"
	case daemon.CommandRelease:
		return e.Kind == daemon.BrakeReleased && strings.HasPrefix(e.Reason, "released by drill")
	}
	return false
}

// stands checks that a standing command is in force, and that one which lifts others has lifted them.
func (d *commandDrill) stands(c daemon.Command) (bad []string) {
	d.T.Helper()
	args, _ := c.Arguments()
	s, err := d.Snapshot()
	if err != nil {
		d.T.Fatal(err)
	}
	open := map[daemon.CommandKind]int{}
	for _, o := range s.Commands {
		open[o.Kind]++
		if about, _ := o.Arguments(); c.Kind == daemon.CommandForget && about.Node == args.Node {
			bad = append(bad, fmt.Sprintf("%s of the forgotten node is in force still", o.Kind))
		}
		if o.ID == c.ID && !c.Kind.Stands() {
			bad = append(bad, "it was answered and is still open")
		}
	}
	switch c.Kind {
	case daemon.CommandCordon, daemon.CommandDrain, daemon.CommandPause, daemon.CommandPin:
		if open[c.Kind] != 1 {
			bad = append(bad, fmt.Sprintf("%d such commands are in force", open[c.Kind]))
		}
	case daemon.CommandUncordon, daemon.CommandResume, daemon.CommandUnpin:
		if n := open[daemon.CommandCordon] + open[daemon.CommandDrain] + open[daemon.CommandPause] + open[daemon.CommandPin]; n > 0 {
			bad = append(bad, fmt.Sprintf("%v are in force still", slices.Sorted(maps.Keys(open))))
		}
	}
	switch c.Kind {
	case daemon.CommandPause:
		d.paused[args.Unit()] = true
	case daemon.CommandResume:
		delete(d.paused, args.Unit())
	}
	return bad
}
