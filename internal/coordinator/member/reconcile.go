package member

import "github.com/emitd/emitd/daemon"

// localRun is a run of a unit in this process that has not returned.
type localRun struct {
	Generation int64
	Started    bool // its agent was called (or is ready): it may be acknowledged
	Draining   bool
	Cancelled  bool
	Abandoned  bool
}

// action is what to do with one unit.
type action string

// The actions.
const (
	actionNothing     action = "nothing"
	actionStart       action = "start"       // start a run of the listed generation
	actionAcknowledge action = "acknowledge" // report that the run has started
	actionResume      action = "resume"      // ask the store for a new generation
	actionDrain       action = "drain"
	actionCancel      action = "cancel"  // cancel the run: it is not the listed one any more
	actionConfirm     action = "confirm" // report that the unit was revoked and that no run of it is left
	actionAbandon     action = "abandon" // report that the run ignored its cancellation
	actionRelease     action = "release" // give the unit back: this process cannot run it again
)

// reconcile decides what this node must do with one unit. The rules behind the table:
//
//   - One run at a time: while an earlier run of the unit has not returned, nothing starts.
//   - A run goes on only under the generation that it was started with. Any other run is cancelled.
//   - A generation names one run. An active unit whose run has ended here is resumed, which raises
//     its generation. It is never started again under the old generation.
//   - This process does not touch an abandoned run again.
//
// It returns the action for one unit. listed is nil when the store lists no record for this
// process. run is nil when no run of the unit exists here. ran is the highest generation of the
// unit that this process ever started.
func reconcile(listed *daemon.Record, run *localRun, ran int64) action {
	switch {
	case listed == nil || listed.State.IsFree():
		return unlisted(run)
	case !listed.State.Known():
		return actionNothing // a state that a newer version wrote: leave it alone
	case run == nil:
		return idle(listed, ran)
	case run.Abandoned:
		return actionAbandon
	case run.Generation != listed.Generation:
		return unlisted(run)
	}
	switch listed.State {
	case daemon.Assigning:
		if run.Started && !run.Cancelled {
			return actionAcknowledge
		}
	case daemon.Revoking:
		if !run.Draining && !run.Cancelled {
			return actionDrain
		}
	}
	return actionNothing
}

// unlisted decides about a run that the store does not list (under its generation).
func unlisted(run *localRun) action {
	if run == nil || run.Cancelled {
		return actionNothing
	}
	return actionCancel
}

// idle decides about a listed unit that has no run here.
func idle(listed *daemon.Record, ran int64) action {
	switch listed.State {
	case daemon.Revoking:
		return actionConfirm
	case daemon.Assigning:
		if ran >= listed.Generation {
			return actionRelease // its run has ended before it was acknowledged
		}
		return actionStart
	default: // active
		if ran >= listed.Generation {
			return actionResume
		}
		return actionStart // it was resumed before, and the reply was lost
	}
}
