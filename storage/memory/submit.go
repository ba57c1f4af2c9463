package memory

import (
	"time"

	"github.com/emitd/emitd/storage"
)

// submit files a command, or returns the one that has its ID.
func (s *state) submit(c storage.Command, now time.Time) *storage.Command {
	filed, fresh := s.commands.File(s, c, s.term, now)
	if fresh {
		s.wakeLeader()
	}
	return &filed
}
