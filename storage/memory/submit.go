package memory

import (
	"time"

	"github.com/emitd/emitd/storage"
)

// submit stores a command, or returns the one that has its ID.
func (s *state) submit(c storage.Command, now time.Time) *storage.Command {
	filed, fresh := s.commands.Add(s, c, s.term, now)
	if fresh && s.term.Held() {
		s.wakeNode(s.term.Leader.Incarnation) // for a heartbeat: only heartbeats read commands, passes do not
	}
	return &filed
}
