package sim

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/internal/coordinator/plan"
	"github.com/emitd/emitd/storage"
)

// operations is what the checks know about operators' commands.
type operations struct {
	submitted int
	// ended are the commands that have a final event. cordoned are the nodes that a command in force keeps from getting
	// units, by name, with the number of such commands.
	ended    map[string]bool
	cordoned map[string]map[string]bool
	// requested and revoked count moves and restarts of each unit, and how often a unit was revoked for one.
	requested, revoked map[daemon.Unit]int
}

func (o *operations) init() {
	*o = operations{
		submitted: o.submitted, ended: map[string]bool{}, cordoned: map[string]map[string]bool{},
		requested: map[daemon.Unit]int{}, revoked: map[daemon.Unit]int{},
	}
}

// operate submits commands at random moments, and lifts them in the end.
func (d *director) operate() {
	w := d.w
	long := d.lasting()
	for range 1 + w.rng.IntN(5) {
		w.after(w.upTo(long), func() { w.submit(w.drawCommand()) })
	}
	d.end(long, func() {})
}

// drawCommand draws a command, mostly one that can be carried out.
func (w *world) drawCommand() (daemon.CommandKind, daemon.CommandArgs, int64) {
	snap, err := w.server.store.Snapshot(context.Background())
	if err != nil || len(snap.Units) == 0 {
		return daemon.CommandCordon, daemon.CommandArgs{Node: "nobody"}, 0
	}
	name := func() string { return w.hosts[w.rng.IntN(len(w.hosts))].name }
	row := snap.Units[w.rng.IntN(len(snap.Units))]
	unit := daemon.CommandArgs{Generation: row.Generation}
	unit.SetUnit(row.Unit)
	if w.chance(0.05) {
		unit.Generation-- // the operator looked at an older run
	}
	to := unit
	to.To = name()
	switch w.rng.IntN(13) {
	case 0:
		return daemon.CommandCordon, daemon.CommandArgs{Node: name()}, 0
	case 1:
		return daemon.CommandUncordon, daemon.CommandArgs{Node: name()}, 0
	case 2, 3:
		return daemon.CommandDrain, daemon.CommandArgs{Node: name()}, 0
	case 4:
		return daemon.CommandPause, unit, 0
	case 5:
		return daemon.CommandPause, daemon.CommandArgs{Daemon: row.Unit.Daemon}, 0
	case 6:
		return daemon.CommandResume, unit, 0
	case 7:
		return daemon.CommandPin, to, 0
	case 8:
		return daemon.CommandUnpin, unit, 0
	case 9:
		return daemon.CommandForget, daemon.CommandArgs{Node: name()}, 0
	case 10:
		return daemon.CommandResign, daemon.CommandArgs{To: name()}, snap.Term.Number
	case 11:
		return daemon.CommandRestart, unit, 0
	}
	return daemon.CommandMove, to, 0
}

// submit submits a command, sometimes twice.
func (w *world) submit(kind daemon.CommandKind, args daemon.CommandArgs, term int64) {
	o := &w.check.operations
	o.submitted++
	c := storage.Command{ID: fmt.Sprintf("c-%06d", o.submitted), Kind: kind, Args: args.Encode(), Term: term, Actor: "sim"}
	if kind == daemon.CommandMove || kind == daemon.CommandRestart {
		o.requested[args.Unit()]++
	}
	w.stats.Commands++
	w.restartBound("command")
	for range 1 + w.rng.IntN(2) {
		if _, err := w.server.store.Submit(context.Background(), c); err != nil {
			w.violate("C4", "command %s: %v", c.ID, err)
		}
	}
}

// liftAll submits what ends the standing commands.
func (w *world) liftAll() {
	if w.cfg.Faults&Operate == 0 || w.server.fork != nil {
		return
	}
	snap, err := w.server.store.Snapshot(context.Background())
	if err != nil {
		return
	}
	for _, c := range snap.Commands {
		args, _ := c.Arguments()
		args.To, args.Generation = "", 0
		switch c.Kind {
		case daemon.CommandCordon, daemon.CommandDrain:
			w.submit(daemon.CommandUncordon, args, 0)
		case daemon.CommandPause:
			w.submit(daemon.CommandResume, args, 0)
		case daemon.CommandPin:
			w.submit(daemon.CommandUnpin, args, 0)
		}
	}
}

// event checks an event about a command, or one that a command may have caused.
func (o *operations) event(w *world, e *daemon.Event) {
	switch e.Kind {
	case daemon.AssignmentAssigned, daemon.AssignmentResumed:
		if ids := o.cordoned[e.Node]; e.Kind == daemon.AssignmentAssigned && len(ids) > 0 {
			w.violate("C4", "%s was assigned to %s, which is cordoned by %v", e.Unit, e.Node, ids)
		}
		return
	case daemon.AssignmentRevoking:
		if !byOperator(e.Reason) {
			return
		}
		if o.revoked[e.Unit]++; o.revoked[e.Unit] > o.requested[e.Unit] {
			w.violate("C4", "%s was revoked %d times for %d moves and restarts", e.Unit, o.revoked[e.Unit], o.requested[e.Unit])
		}
		return
	}
	about, ok := commandOf(e)
	if !ok {
		return
	}
	final := about.outcome() != "" && about.outcome() != daemon.ResultInForce && about.outcome() != daemon.ResultDrained
	if o.ended[about.Command] {
		w.violate("C4", "command %s was answered after its end: %s", about.Command, about.Result)
	}
	o.ended[about.Command] = final
	if k := e.Kind; k == daemon.CommandCordon.Event() || k == daemon.CommandDrain.Event() {
		o.cordon(about, final)
	}
	if about.outcome() == daemon.ResultDrained {
		w.after(0, func() { o.drained(w, about) }) // once the transaction is complete
	}
}

func (o *operations) cordon(about commandDetail, final bool) {
	name := about.Args.Node
	switch {
	case final:
		delete(o.cordoned[name], about.Command)
	case about.Result != "":
		if o.cordoned[name] == nil {
			o.cordoned[name] = map[string]bool{}
		}
		o.cordoned[name][about.Command] = true
	}
}

// drained checks that a node that is called drained holds nothing.
func (o *operations) drained(w *world, about commandDetail) {
	name := about.Args.Node
	if !o.cordoned[name][about.Command] {
		return
	}
	for i := range w.check.model.units {
		u := &w.check.model.units[i]
		if p := w.byInc[u.holder]; p != nil && p.who.Name == name && !u.state.IsFree() {
			w.violate("C4", "%s is called drained and holds %s", name, w.units[i].Unit)
		}
	}
}

// failedOver starts anew from what the store has kept.
func (o *operations) failedOver(w *world) {
	requested := o.requested
	o.init()
	o.requested = requested // a command may be carried out once more, because its end was lost
	snap, err := w.server.store.Snapshot(context.Background())
	if err != nil {
		return
	}
	for _, c := range snap.Commands {
		args, _ := c.Arguments()
		if (c.Kind == daemon.CommandCordon || c.Kind == daemon.CommandDrain) && c.Result != "" {
			o.cordon(commandDetail{Command: c.ID, Result: c.Result, Args: args}, false)
		}
	}
}

// checkAllAnswered checks that a cluster that is well has no command that waits: each was carried out or refused, or stands.
func (o *operations) checkAllAnswered(w *world, snap *daemon.Snapshot) {
	for _, c := range snap.Commands {
		if c.Kind.Stands() && c.Result != "" {
			continue
		}
		w.violate("C4", "command %s (%s) is open for %v: %q", c.ID, c.Kind, snap.Now.Sub(c.CreatedAt).Round(time.Second), c.Result)
	}
}

// commandDetail is the detail of an event about a command.
type commandDetail struct {
	Command, Result string
	Args            daemon.CommandArgs
}

func (d commandDetail) outcome() string { return daemon.Command{Result: d.Result}.Outcome() }

// commandOf decodes the detail of an event about a command.
func commandOf(e *daemon.Event) (d commandDetail, ok bool) {
	if !strings.HasPrefix(string(e.Kind), "operator.") {
		return d, false
	}
	return d, json.Unmarshal(e.Detail, &d) == nil
}

// byOperator reports whether a unit was revoked for a move or restart.
func byOperator(reason string) bool {
	return strings.HasPrefix(reason, string(plan.MoveRequested)) || strings.HasPrefix(reason, string(plan.RestartRequested))
}
