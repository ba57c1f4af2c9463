package memory

import (
	"fmt"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/node"
	"github.com/emitd/emitd/storage"
)

// submit files a command, or returns the one that has its ID. A resignation asked of another
// term than the present one is answered at once.
func (s *state) submit(c storage.Command, now time.Time) *storage.Command {
	for _, old := range s.commands {
		if old.ID == c.ID {
			return ptr(*old)
		}
	}
	c.CreatedAt, c.DoneAt, c.Result = now, time.Time{}, ""
	if c.Kind == storage.CommandResign {
		if c.Term != 0 && c.Term != s.term.Number {
			c.DoneAt, c.Result = now, conflict(c.Term, s.term)
		}
		s.emit(daemon.Event{
			Kind: daemon.OperatorResign, Term: c.Term, Reason: c.Reason,
			Detail: commandDetail(c.ID, c.Actor, c.Result),
		}, now)
	}
	s.commands = append(s.commands, ptr(c))
	s.wakeLeader()
	return &c
}

// waiting lists the commands that nobody has fulfilled, oldest first.
func (s *state) waiting() []storage.Command {
	var out []storage.Command
	for _, c := range s.commands {
		if c.DoneAt.IsZero() {
			out = append(out, *c)
		}
	}
	return out
}

// conflict is the result of a command that expected another term.
func conflict(expected int64, t node.Term) string {
	return fmt.Sprintf("conflict: expected term %d, the term is %d", expected, t.Number)
}

func ptr[T any](v T) *T { return &v }
