package member

import (
	"slices"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/internal/coordinator/plan"
)

// noteVerdicts records what the newest plan says about sick daemons and nodes. It informs the history of what is new and of
// what is over. A node on which daemons failed gets what becomes free: to move units there at once would make many fail
// if it is still sick. One that flapped and is steady now gets its share.
func (m *Member) noteVerdicts(now []plan.Verdict) {
	l := &m.leader
	for _, v := range now {
		if !slices.ContainsFunc(l.verdicts, v.SameSubject) {
			kind := daemon.LedgerQuarantined
			if v.Node != "" {
				kind = daemon.LedgerSick
			}
			l.events = append(l.events, daemon.Event{Kind: kind, Node: v.Node, Daemon: v.Daemon, Reason: v.Reason})
		}
	}
	for _, v := range l.verdicts {
		if !slices.ContainsFunc(now, v.SameSubject) {
			l.events = append(l.events, daemon.Event{Kind: daemon.LedgerCleared, Node: v.Node, Daemon: v.Daemon, Reason: v.Reason})
			l.maybeUneven = l.maybeUneven || v.Flapping // the node is steady and may have its share again
		}
	}
	l.verdicts = now
}
