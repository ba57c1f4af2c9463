package sqlite

import (
	"context"
	"fmt"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/storage/internal/rules"
)

var _ daemon.StateStore = (*Store)(nil)

const stateColumns = `daemon, idx, generation, revision, saved_at, data`

// UnitStates implements [daemon.StateStore].
func (s *Store) UnitStates(ctx context.Context, of daemon.Unit) (out []daemon.UnitState, err error) {
	err = s.readCall(ctx, "unit states", func(v *view) { out = v.unitStates(of) })
	if err != nil {
		return nil, fmt.Errorf("read states of units: %w", err)
	}
	return out, nil
}

// unitStates reads the state of one unit, or of all if none is named.
func (q *query) unitStates(of daemon.Unit) (out []daemon.UnitState) {
	text, args := `SELECT `+stateColumns+` FROM ~unit_state ORDER BY daemon, idx`, []any(nil)
	if !of.IsZero() {
		text, args = `SELECT `+stateColumns+` FROM ~unit_state WHERE daemon = ? AND idx = ?`, columnsOf(of)
	}
	q.each(text, args, func(scan func(...any) bool) {
		var s daemon.UnitState
		if scan(unitName{&s.Unit}, unitIndex{&s.Unit}, &s.Generation, &s.Revision, at{&s.SavedAt}, orZero{&s.Data}) {
			out = append(out, s)
		}
	})
	return out
}

// SaveUnitState implements [daemon.StateStore].
func (s *Store) SaveUnitState(ctx context.Context, f daemon.Fence, state daemon.UnitState, events ...daemon.Event) error {
	err := s.call(ctx, "save unit state", func(st *step) error {
		var old daemon.UnitState
		if found := st.unitStates(f.Unit); len(found) > 0 {
			old = found[0]
		}
		next, write, err := rules.SaveState(st, old, f, state, events, st.now)
		if err != nil || !write {
			return err
		}
		st.exec(`INSERT OR REPLACE INTO ~unit_state (`+stateColumns+`) VALUES (?, ?, ?, ?, ?, ?)`,
			append(columnsOf(f.Unit), next.Generation, next.Revision, nanos(next.SavedAt), string(next.Data))...)
		return nil
	})
	if err != nil {
		return fmt.Errorf("save the state of %s: %w", f, err)
	}
	return nil
}
