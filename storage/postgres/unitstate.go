package postgres

import (
	"context"
	"encoding/json"
	"fmt"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/storage/internal/rules"
)

var _ daemon.StateStore = (*Store)(nil)

// unitState reads a row of the table, whose columns it follows.
func (c *composite) unitState() (s daemon.UnitState) {
	s.Unit = c.unit()
	s.Generation, s.Revision, s.SavedAt, s.Data = c.int(), c.int(), c.time(), c.raw()
	return s
}

// UnitStates implements [daemon.StateStore].
func (s *Store) UnitStates(ctx context.Context, of daemon.Unit) (out []daemon.UnitState, err error) {
	err = s.call(ctx, "unit states", reading, func(m *message) {
		read := list(&out, (*composite).unitState)
		if of.IsZero() {
			m.query(read, "unit_states")
			return
		}
		d, i := unitOf(daemon.Fence{Unit: of})
		m.query(read, "unit_state", d, i)
	})
	if err != nil {
		return nil, s.fail("read states of units", err)
	}
	return out, nil
}

// stateEvent is one element of the events in the input of save_state.sql.
type stateEvent struct {
	Ord    int              `json:"ord"`
	Kind   daemon.EventKind `json:"kind"`
	Reason string           `json:"reason"`
	Detail json.RawMessage  `json:"detail,omitempty"`
}

// SaveUnitState implements [daemon.StateStore].
func (s *Store) SaveUnitState(ctx context.Context, f daemon.Fence, state daemon.UnitState, events ...daemon.Event) error {
	what := "save the state of " + f.String()
	if err := rules.CheckStateSize(state); err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	rows := make([]stateEvent, len(events))
	for i, e := range events {
		rows[i] = stateEvent{i, e.Kind, cleanText(e.Reason), e.Detail}
	}
	var held, saved int64
	var now []daemon.UnitState
	err := s.call(ctx, "save unit state", writing, func(m *message) {
		d, i := unitOf(f)
		m.query(number64(&held), "hold_fence", d, i)
		m.query(number64(&saved), "save_state", d, i, f.Generation, state.Revision, string(state.Data), encode(rows))
		m.query(list(&now, (*composite).unitState), "unit_state", d, i)
	})
	if err == nil && !owns(f, held) {
		err = &daemon.StaleError{Fence: f, HeldGeneration: held}
	}
	if err == nil && saved == 0 {
		err = notSaved(f, state, now)
	}
	return s.fail(what, err)
}

// notSaved says why a state was not written; nil if the run has written it before.
func notSaved(f daemon.Fence, state daemon.UnitState, now []daemon.UnitState) error {
	var held daemon.UnitState
	if len(now) > 0 {
		held = now[0]
	}
	if held.Revision == state.Revision && held.Generation == f.Generation {
		return nil
	}
	return rules.OtherRevision(state.Revision, held.Revision)
}
