package postgres

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/emitd/emitd/storage"
)

// Submit implements [storage.Store].
func (s *Store) Submit(ctx context.Context, c storage.Command) (*storage.Command, error) {
	var args any
	if len(c.Args) > 0 {
		args = string(c.Args)
	}
	var filed []command
	id := cleanText(c.ID)
	err := s.call(ctx, "submit", writing, func(m *message) {
		m.do("submit_lock", id)
		m.do("submit", id, cleanText(string(c.Kind)), cleanText(c.Actor), cleanText(c.Reason), c.Term, int64(c.Cooldown), args)
		m.query(commands(&filed), "command", id)
		m.recount()
	})
	if err == nil && len(filed) != 1 {
		err = fmt.Errorf("%d rows, want 1", len(filed))
	}
	if err != nil {
		return nil, s.fail("submit command "+c.ID, err)
	}
	return &filed[0].Command, nil
}

// recount records how many open commands nodes act on. It locks the counter's row first. A count from before the
// lock would miss a command that is submitted meanwhile, and heartbeats would never ask for it.
func (m *message) recount() {
	m.do("counter_lock")
	m.do("recount")
}

// sortedCommands sorts commands in the order of their submission.
func sortedCommands(found []command) []storage.Command {
	slices.SortFunc(found, func(a, b command) int { return cmp.Compare(a.number, b.number) })
	var out []storage.Command
	for _, c := range found {
		out = append(out, c.Command)
	}
	return out
}

// resultInput is one element of the input of commit_commands.sql.
type resultInput struct {
	Ord    int    `json:"ord"`
	ID     string `json:"id"`
	Result string `json:"result"`
	Done   bool   `json:"done"`
}

func resultInputs(results []storage.CommandResult) (in []resultInput, ids []string) {
	for i, r := range results {
		in = append(in, resultInput{i, cleanText(r.ID), cleanText(r.Result), r.Done})
		ids = append(ids, cleanText(r.ID))
	}
	return in, ids
}
