package rules

import (
	"fmt"
	"slices"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/node"
	"github.com/emitd/emitd/storage"
)

// Commands are the operators' commands, oldest first. Each is replaced, never changed.
type Commands []*storage.Command

// Add stores a command, or finds the one that has its ID. It reports whether the command is new.
func (cs *Commands) Add(r Rows, c storage.Command, t node.Term, now time.Time) (storage.Command, bool) {
	for _, old := range *cs {
		if old.ID == c.ID {
			return *old, false
		}
	}
	c = NewCommand(r, c, t, now)
	kept := c
	*cs = append(*cs, &kept)
	return c, true
}

// NewCommand returns a new command as it is stored. A request to resign another term than the present
// one is answered at once.
func NewCommand(r Rows, c storage.Command, t node.Term, now time.Time) storage.Command {
	c.CreatedAt, c.DoneAt, c.Result = now, time.Time{}, ""
	if c.Kind == storage.CommandResign {
		if c.Term != 0 && c.Term != t.Number {
			c.DoneAt, c.Result = now, conflict(c.Term, t)
		}
		r.Emit(daemon.Event{
			Kind: daemon.OperatorResign, Term: c.Term, Reason: c.Reason,
			Detail: commandDetail(c.ID, c.Actor, c.Result),
		}, now)
	}
	return c
}

// Waiting lists the commands that no node has carried out, oldest first.
func (cs Commands) Waiting() []storage.Command {
	var out []storage.Command
	for _, c := range cs {
		if c.DoneAt.IsZero() {
			out = append(out, *c)
		}
	}
	return out
}

// MarkDone marks a command as done that a node has carried out by its leave.
func (cs Commands) MarkDone(l storage.Leave, t node.Term, now time.Time) {
	for i, old := range cs {
		if l.Command != "" && old.ID == l.Command && old.DoneAt.IsZero() {
			done := Done(*old, l, t, now)
			cs[i] = &done
		}
	}
}

// Done returns a waiting command as done by the node that carried it out. The result is a conflict
// if the command expected another term than the one that was resigned.
func Done(c storage.Command, l storage.Leave, t node.Term, now time.Time) storage.Command {
	c.DoneAt, c.Result = now, "done"
	if c.Term != 0 && c.Term != l.Resign {
		c.Result = conflict(c.Term, t)
	}
	return c
}

// Sweep removes the oldest commands that were done before cut, at most limit, and returns how many.
func (cs *Commands) Sweep(cut time.Time, limit int) int {
	n := 0
	*cs = slices.DeleteFunc(*cs, func(c *storage.Command) bool {
		if n >= limit || c.DoneAt.IsZero() || !c.DoneAt.Before(cut) {
			return false
		}
		n++
		return true
	})
	return n
}

// conflict is the result of a command that expected another term.
func conflict(expected int64, t node.Term) string {
	return fmt.Sprintf("conflict: expected term %d, the term is %d", expected, t.Number)
}
