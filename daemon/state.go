package daemon

import (
	"context"
	"encoding/json"
	"errors"
	"time"
)

// UnitState is what the runs of a unit leave for later runs, wherever those are: a document in the store that only the
// unit's present run can replace.
type UnitState struct {
	Unit Unit `json:"unit"`
	// Generation is that of the run that wrote it.
	Generation int64 `json:"generation"`
	// Revision counts the writes.
	Revision int64           `json:"revision"`
	SavedAt  time.Time       `json:"saved_at"` // the store's clock
	Data     json.RawMessage `json:"data"`
}

// StateStore holds the states of units. All four stores implement it.
type StateStore interface {
	// UnitStates reads the state of one unit, or of all units if none is named, sorted by unit. What a run reads after
	// its fence stamp was written by runs that can no longer write.
	UnitStates(ctx context.Context, of Unit) ([]UnitState, error)

	// SaveUnitState replaces the state of the fence's unit and appends the events to the history, in one step. Of
	// the state, Revision and Data count; of an event, Kind, Reason and Detail. ErrStale, unless the fence is that
	// of the unit's present run. ErrStateRevision, unless the revision is one more than the present one. If the
	// same run has written that revision already, the call changes nothing, so it may be repeated. Data of more than
	// 4 KiB is refused.
	SaveUnitState(ctx context.Context, fence Fence, state UnitState, events ...Event) error
}

// ErrStateRevision says that a unit's state has another revision than the caller believes.
var ErrStateRevision = errors.New("the unit's state has another revision")

type statesKey struct{}

// WithStates returns a context by which an agent finds the store of its unit's state. It is for
// internal/coordinator/supervisor and for tests of agents.
func WithStates(ctx context.Context, s StateStore) context.Context {
	return context.WithValue(ctx, statesKey{}, s)
}
