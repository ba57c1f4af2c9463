// Package reconcile decides what a node must do with one unit. The inputs are the record that the
// store lists for this process, if it lists one, and the run of the unit in this process, if there
// is one.
//
// The rules behind the table:
//
//   - One run at a time: while an earlier run of the unit has not returned, nothing starts.
//   - A run goes on only under the generation that it was started with. Any other run is cancelled.
//   - A generation names one run. An active unit whose run has ended here is resumed, which raises
//     its generation. It is never started again under the old generation.
//   - This process does not touch an abandoned run again.
//
// The package is pure: values in, a value out. It does not decide whether a deadline has passed;
// coordinator/member does.
package reconcile

import (
	"github.com/emitd/emitd/daemon"
)

// Run is a run of a unit in this process that has not returned.
type Run struct {
	Generation int64
	Started    bool // its agent was called (or is ready): it may be acknowledged
	Draining   bool
	Cancelled  bool
	Abandoned  bool
}

// Action is what to do with one unit.
type Action string

// The actions.
const (
	Nothing     Action = "nothing"
	Start       Action = "start"       // start a run of the listed generation
	Acknowledge Action = "acknowledge" // report that the run has started
	Resume      Action = "resume"      // ask the store for a new generation
	Drain       Action = "drain"
	Cancel      Action = "cancel"  // cancel the run: it is not the listed one any more
	Confirm     Action = "confirm" // report that the unit was revoked and that no run of it is left
	Abandon     Action = "abandon" // report that the run ignored its cancellation
	Release     Action = "release" // give the unit back: this process cannot run it again
)

// Decide returns the action for one unit. listed is nil when the store lists no record for this
// process. run is nil when no run of the unit exists here. ran is the highest generation of the
// unit that this process ever started.
func Decide(listed *daemon.Record, run *Run, ran int64) Action {
	switch {
	case listed == nil || listed.State.Free():
		return unlisted(run)
	case !listed.State.Known():
		return Nothing // a state that a newer version wrote: leave it alone
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

// unlisted decides about a run that the store does not list (under its generation).
func unlisted(run *Run) Action {
	if run == nil || run.Cancelled {
		return Nothing
	}
	return Cancel
}

// idle decides about a listed unit that has no run here.
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
		return Start // it was resumed before, and the reply was lost
	}
}
