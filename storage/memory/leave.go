package memory

import (
	"time"

	"github.com/emitd/emitd/storage"
	"github.com/emitd/emitd/storage/internal/rules"
)

// leave gives up what the call asks for in one step, in the order term, units, row. It does not
// change what is already so: a term that this process does not hold stays. A tombstone may be
// deregistered again, which prevents its revival.
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
		s.wakeAll() // wakes the candidates, which should campaign
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
	s.commands.MarkDone(l, s.term, now)
	return nil
}
