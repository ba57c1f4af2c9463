package memory

import (
	"time"

	"github.com/emitd/emitd/storage"
	"github.com/emitd/emitd/storage/internal/rules"
)

// leave gives things up in one step, in the order term, units, row. What already is so is left
// as it is: a term that is not held exactly so is not touched, and a tombstone may be
// deregistered again (which keeps it from being revived).
func (s *state) leave(l storage.Leave, now time.Time) error {
	row := s.nodes[l.Node.Incarnation]
	switch {
	case row == nil || !row.Present() && !l.Deregister:
		return storage.ErrNotRegistered
	case l.Seq <= row.Seq:
		return storage.ErrStaleSeq
	}
	row.Seq = l.Seq
	if rules.Resign(s, &s.term, l, now) {
		s.wakeAll() // whoever may stand, should
	}
	switch {
	case l.Deregister:
		row.left = true
		if row.Present() {
			rules.Deregister(s, row.Member, l, now)
			s.wakeLeader()
		}
	case l.Drain:
		rules.Drain(s, row.Member, l, now)
		s.wakeLeader()
	}
	s.commands.Fulfil(l, s.term, now)
	return nil
}
