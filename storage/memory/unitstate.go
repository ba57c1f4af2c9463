package memory

import (
	"context"
	"fmt"
	"slices"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/storage/internal/rules"
)

var _ daemon.StateStore = (*Store)(nil)

// UnitStates implements [daemon.StateStore].
func (s *Store) UnitStates(ctx context.Context, of daemon.Unit) ([]daemon.UnitState, error) {
	if _, err := s.begin(ctx); err != nil {
		return nil, fmt.Errorf("read states of units: %w", err)
	}
	defer s.end()
	var out []daemon.UnitState
	for u, state := range s.state.unitStates {
		if of.IsZero() || u == of {
			out = append(out, state)
		}
	}
	slices.SortFunc(out, func(a, b daemon.UnitState) int { return a.Unit.Compare(b.Unit) })
	return out, nil
}

// SaveUnitState implements [daemon.StateStore].
func (s *Store) SaveUnitState(ctx context.Context, f daemon.Fence, state daemon.UnitState, events ...daemon.Event) error {
	now, err := s.begin(ctx)
	if err != nil {
		return fmt.Errorf("save the state of %s: %w", f, err)
	}
	defer s.end()
	state, write, err := rules.SaveState(s.state, s.state.unitStates[f.Unit], f, state, events, now)
	if err != nil {
		return fmt.Errorf("save the state of %s: %w", f, err)
	}
	if write {
		state.Data = slices.Clone(state.Data)
		s.state.unitStates[f.Unit] = state
	}
	return nil
}
