package memory

import (
	"time"

	"github.com/emitd/emitd/storage"
)

// submit stores a command, or returns the one that has its ID.
func (s *state) submit(c storage.Command, now time.Time) *storage.Command {
	filed, fresh := s.commands.Add(s, c, s.term, now)
	if fresh && s.term.Held() {
		// Heartbeats read the commands on which nodes act, and each heartbeat of a leader asks for a pass.
		s.wakeNode(s.term.Leader.Incarnation)
	}
	return &filed
}
