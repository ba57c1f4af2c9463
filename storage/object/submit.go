package object

import (
	"context"
	"fmt"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/node"
	"github.com/emitd/emitd/storage"
)

// submit files a command, or returns the one that has its ID.
func (s *Store) submit(ctx context.Context, command storage.Command) (*storage.Command, error) {
	var filed storage.Command
	_, err := s.run(ctx, step{apply: func(c *cluster, now time.Time) (bool, error) {
		var fresh bool
		filed, fresh = c.submit(command, now)
		return fresh, nil
	}})
	if err != nil {
		return nil, err
	}
	return &filed, nil
}

// submit reports whether the command is new. A resignation asked of another term than the present
// one is answered at once.
func (c *cluster) submit(command storage.Command, now time.Time) (storage.Command, bool) {
	for _, old := range c.Commands {
		if old.ID == command.ID {
			return *old, false
		}
	}
	command.CreatedAt, command.DoneAt, command.Result = now, time.Time{}, ""
	if command.Kind == storage.CommandResign {
		if command.Term != 0 && command.Term != c.Term.Number {
			command.DoneAt, command.Result = now, conflict(command.Term, c.Term)
		}
		c.emit(daemon.Event{
			Kind: daemon.OperatorResign, Term: command.Term, Reason: command.Reason,
			Detail: commandDetail(command.ID, command.Actor, command.Result),
		}, now)
	}
	kept := command
	c.Commands = append(c.Commands, &kept)
	return command, true
}

// waiting lists the commands that nobody has fulfilled, oldest first.
func (c *cluster) waiting() []storage.Command {
	var out []storage.Command
	for _, command := range c.Commands {
		if command.DoneAt.IsZero() {
			out = append(out, *command)
		}
	}
	return out
}

// conflict is the result of a command that expected another term.
func conflict(expected int64, t node.Term) string {
	return fmt.Sprintf("conflict: expected term %d, the term is %d", expected, t.Number)
}
