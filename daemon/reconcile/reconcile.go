// Package reconcile decides, for one unit, what a node must do: given the record that the store
// lists for this process (or that it lists none) and the run of the unit in this process (or
// that there is none).
//
// The rules behind the table:
//
//   - One run at a time: while any earlier run of the unit has not returned, nothing starts.
//   - A run goes on only under the generation it was started with; every other is cancelled.
//   - A generation names one run: an active unit whose run has ended here is resumed, which
//     raises its generation, and never started again under the old one.
//   - What was abandoned is not touched again by this process.
//
// The package is pure: values in, a value out. When a deadline has come is not decided here but
// in coordinator/member.
package reconcile

import (
	"github.com/emitd/emitd/daemon"
)

// Run is a run of a unit in this process that has not returned.
type Run struct {
	Generation int64
	Started    bool // entered (or ready): may be acknowledged
	Draining   bool
	Cancelled  bool
	Abandoned  bool
}

// Action is what to do with one unit.
type Action string

// The actions.
const (
	Nothing     Action = "nothing"
	Start       Action = "start"       // the listed generation
	Acknowledge Action = "acknowledge" // the run has started
	Resume      Action = "resume"      // ask the store for a new generation
	Drain       Action = "drain"
	Cancel      Action = "cancel"  // the run is not the listed one any more
	Confirm     Action = "confirm" // revoked, and nothing of it runs
	Abandon     Action = "abandon" // tell the store that the run ignored its cancellation
	Release     Action = "release" // give it back: this process cannot run it again
)

// Decide returns the action for one unit. listed is nil when the store lists no record for this
// process; run is nil when nothing of the unit runs here. ran is the highest generation of the
// unit that this process ever started.
func Decide(listed *daemon.Record, run *Run, ran int64) Action {
	switch {
	case listed == nil || listed.State.Free():
		return unlisted(run)
	case !listed.State.Known():
		return Nothing // a newer version's state: kept, left alone
	case run == nil:
		return idle(listed, ran)
	case run.Abandoned:
		return Abandon
	case run.Generation != listed.Generation:
		return unlisted(run)
	}
	switch listed.State {
	case daemon.Assigning:
		if run.Started && !run.Cancelled {
			return Acknowledge
		}
	case daemon.Revoking:
		if !run.Draining && !run.Cancelled {
			return Drain
		}
	}
	return Nothing
}

// unlisted is for a run that the store does not list (under its generation).
func unlisted(run *Run) Action {
	if run == nil || run.Cancelled {
		return Nothing
	}
	return Cancel
}

// idle is for a listed unit of which nothing runs here.
func idle(listed *daemon.Record, ran int64) Action {
	switch listed.State {
	case daemon.Revoking:
		return Confirm
	case daemon.Assigning:
		if ran >= listed.Generation {
			return Release // its run has ended before it was acknowledged
		}
		return Start
	default: // active
		if ran >= listed.Generation {
			return Resume
		}
		return Start // resumed before, and the reply was lost
	}
}
