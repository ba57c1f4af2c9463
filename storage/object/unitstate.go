package object

import (
	"context"
	"slices"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/storage/internal/rules"
)

var _ daemon.StateStore = (*Store)(nil)

// UnitStates implements [daemon.StateStore].
func (s *Store) UnitStates(ctx context.Context, of daemon.Unit) ([]daemon.UnitState, error) {
	c, err := s.readCluster(ctx)
	if err != nil {
		return nil, wrapErr(err, "read states of units")
	}
	var out []daemon.UnitState
	for u, state := range c.UnitStates {
		if of.IsZero() || u == of {
			out = append(out, state)
		}
	}
	slices.SortFunc(out, func(a, b daemon.UnitState) int { return a.Unit.Compare(b.Unit) })
	return out, nil
}

// SaveUnitState implements [daemon.StateStore].
func (s *Store) SaveUnitState(ctx context.Context, f daemon.Fence, state daemon.UnitState, events ...daemon.Event) error {
	_, err := s.run(ctx, step{apply: func(c *cluster, now time.Time) (bool, error) {
		next, write, err := rules.SaveState(c, c.UnitStates[f.Unit], f, state, events, now)
		if err == nil && write {
			c.UnitStates[f.Unit] = next
		}
		return write, err
	}})
	return wrapErr(err, "save the state of %s", f)
}
