package view

import (
	"cmp"
	"path"
	"time"

	"github.com/emitd/emitd/daemon"
)

// EventFilter selects events. A zero field selects all.
type EventFilter struct {
	Kind   string        // a pattern such as leader.* or assignment.failed
	Node   string        // name or ID of a node
	Daemon string        // a daemon, or one unit of it
	Term   int64         // number of a term
	Since  time.Duration // the oldest age of an event
}

// Valid reports whether Kind is a valid pattern.
func (f EventFilter) Valid() bool {
	_, err := path.Match(f.Kind, "")
	return err == nil
}

// All reports whether the filter selects every event.
func (f EventFilter) All() bool { return f == EventFilter{} }

// Selects reports whether the filter selects the event. now is the store's clock.
func (f EventFilter) Selects(e *daemon.Event, now time.Time) bool {
	kind, _ := path.Match(cmp.Or(f.Kind, "*"), string(e.Kind))
	return kind && f.InTime(e, now) &&
		(f.Node == "" || f.Node == e.Node || f.Node == string(e.NodeID)) &&
		(f.Daemon == "" || f.Daemon == string(e.Daemon) || f.Daemon == e.Unit.String()) &&
		(f.Term == 0 || f.Term == e.Term)
}

// InTime reports whether the event is recent enough.
func (f EventFilter) InTime(e *daemon.Event, now time.Time) bool {
	return f.Since == 0 || now.Sub(e.At) <= f.Since
}
