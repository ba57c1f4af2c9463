package plan

import (
	"fmt"
	"strings"

	"github.com/emitd/emitd/daemon"
)

// Before says in words what a command is about to change, for the history.
func Before(snap *daemon.Snapshot, kind daemon.CommandKind, args daemon.CommandArgs) string {
	var parts []string
	switch {
	case args.Node != "":
		units := 0
		for i := range snap.Units {
			if r := &snap.Units[i]; r.Holder.Name == args.Node && !r.State.IsFree() {
				units++
			}
		}
		parts = append(parts, fmt.Sprintf("%s has %d units", args.Node, units))
	case args.Daemon != "":
		parts = append(parts, unitsBefore(snap, args))
	}
	if kind == daemon.CommandResign || kind == daemon.CommandRelease || args.Node != "" && snap.Term.Held() && snap.Term.Leader.Name == args.Node {
		parts = append(parts, fmt.Sprintf("%s leads term %d", snap.Term.Leader.Name, snap.Term.Number))
	}
	for _, c := range snap.Commands {
		if old, err := c.Arguments(); err == nil && c.Kind.Stands() && c.DoneAt.IsZero() && sameSubject(old, args) && args != (daemon.CommandArgs{}) {
			parts = append(parts, fmt.Sprintf("%s by %s in force", c.Kind.Verb(), c.Actor))
		}
	}
	return strings.Join(parts, "; ")
}

func sameSubject(a, b daemon.CommandArgs) bool {
	return a.Node == b.Node && a.Daemon == b.Daemon && a.Unit() == b.Unit()
}

// unitsBefore says where the units are that a command is about.
func unitsBefore(snap *daemon.Snapshot, args daemon.CommandArgs) string {
	held, all := 0, 0
	for i := range snap.Units {
		r := &snap.Units[i]
		switch {
		case r.Unit.Daemon != args.Daemon:
		case !args.Unit().IsZero() && r.Unit == args.Unit():
			if r.State.IsFree() {
				return fmt.Sprintf("%s %s, generation %d", r.Unit, r.State, r.Generation)
			}
			return fmt.Sprintf("%s %s on %s, generation %d", r.Unit, r.State, r.Holder.Name, r.Generation)
		default:
			if all++; !r.State.IsFree() {
				held++
			}
		}
	}
	return fmt.Sprintf("%s has %d units, %d on nodes", args.Daemon, all, held)
}
