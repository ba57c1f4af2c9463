package rules

import (
	"fmt"
	"time"

	"github.com/emitd/emitd/daemon"
)

// SaveState decides whether a run may replace its unit's state old, and emits its events if so. It returns the state to
// write, and whether there is anything to write: a state that the run has written already is not written again.
func SaveState(r Rows, old daemon.UnitState, f daemon.Fence, s daemon.UnitState, events []daemon.Event, now time.Time) (daemon.UnitState, bool, error) {
	if err := CheckStateSize(s); err != nil {
		return old, false, err
	}
	if held := r.Fence(f.Unit); held != f.Generation || f.Generation <= 0 {
		return old, false, &daemon.StaleError{Fence: f, HeldGeneration: held}
	}
	switch {
	case s.Revision == old.Revision && old.Generation == f.Generation:
		return old, false, nil
	case s.Revision != old.Revision+1:
		return old, false, OtherRevision(s.Revision, old.Revision)
	}
	s.Unit, s.Generation, s.SavedAt = f.Unit, f.Generation, now
	for _, e := range events {
		r.Emit(stateEvent(r, f, e), now)
	}
	return s, true, nil
}

// maxState is the largest document of a state, in bytes.
const maxState = 4 << 10

// CheckStateSize refuses a state that is too large.
func CheckStateSize(s daemon.UnitState) error {
	if n := len(s.Data); n > maxState {
		return fmt.Errorf("the state has %d bytes, at most %d are stored", n, maxState)
	}
	return nil
}

// OtherRevision is the answer to a write of one revision while the state has another.
func OtherRevision(written, held int64) error {
	return fmt.Errorf("%w: revision %d was to be written, the present one is %d", daemon.ErrStateRevision, written, held)
}

// stateEvent makes an event of a run. It names the node if the unit's row is still that of the run.
func stateEvent(r Rows, f daemon.Fence, e daemon.Event) daemon.Event {
	out := daemon.Event{Kind: e.Kind, Daemon: f.Unit.Daemon, Unit: f.Unit, Generation: f.Generation, Reason: e.Reason, Detail: e.Detail}
	if rec := r.Unit(f.Unit); rec != nil && rec.Generation == f.Generation {
		out.Node, out.NodeID, out.Incarnation, out.Term = rec.Holder.Name, rec.Holder.ID, rec.Holder.Incarnation, rec.Term
	}
	return out
}
