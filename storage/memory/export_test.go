package memory

import "github.com/emitd/emitd/daemon"

// Plant writes a state into a unit's row, as a newer version of the program would.
func (s *Store) Plant(u daemon.Unit, state daemon.State) {
	s.mu.Lock()
	defer s.mu.Unlock()
	rec := *s.state.units.get(u)
	rec.State = state
	s.state.Put(rec)
}
