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

// NewCommand returns a new command as it is stored. A command that expects another term than the present one is
// answered at once.
func NewCommand(r Rows, c storage.Command, t node.Term, now time.Time) storage.Command {
	c.CreatedAt, c.DoneAt, c.Result = now, time.Time{}, ""
	if c.Term != 0 && c.Term != t.Number {
		c.DoneAt, c.Result = now, conflict(c.Term, t)
	}
	r.Emit(commandEvent(c), now)
	return c
}

// commandEvent makes an event about a command as it is now.
func commandEvent(c storage.Command) daemon.Event {
	return daemon.Event{
		Kind: c.Kind.Event(), Term: c.Term, Reason: c.Reason, Detail: commandDetail(c.ID, c.Actor, c.Result, c.Args),
	}
}

// Open lists the commands that are not done, oldest first.
func (cs Commands) Open() []storage.Command {
	var out []storage.Command
	for _, c := range cs {
		if c.DoneAt.IsZero() {
			out = append(out, *c)
		}
	}
	return out
}

// ForNodes selects the commands on which nodes act.
func ForNodes(open []storage.Command) []storage.Command {
	var out []storage.Command
	for _, c := range open {
		if c.Kind.ForNodes() {
			out = append(out, c)
		}
	}
	return out
}

// Answer writes a leader's results into open commands.
func (cs Commands) Answer(r Rows, results []storage.CommandResult, now time.Time) {
	for _, result := range results {
		for i, old := range cs {
			if old.ID == result.ID {
				if c, changed := Answered(r, *old, result, now); changed {
					cs[i] = &c
				}
			}
		}
	}
}

// Answered returns a command with a leader's result, and whether that changes it.
func Answered(r Rows, c storage.Command, result storage.CommandResult, now time.Time) (storage.Command, bool) {
	if !c.DoneAt.IsZero() || !result.Done && c.Result == result.Result {
		return c, false
	}
	c.Result = result.Result
	if result.Done {
		c.DoneAt = now
	}
	r.Emit(commandEvent(c), now)
	return c, true
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
	c.DoneAt, c.Result = now, daemon.ResultDone
	if c.Term != 0 && c.Term != l.Resign {
		c.Result = conflict(c.Term, t)
	}
	return c
}

// Sweep removes the oldest commands that were done before cut, at most limit, and returns how many.
func (cs *Commands) Sweep(before time.Time, limit int) int {
	n := 0
	*cs = slices.DeleteFunc(*cs, func(c *storage.Command) bool {
		if n >= limit || c.DoneAt.IsZero() || !c.DoneAt.Before(before) {
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
