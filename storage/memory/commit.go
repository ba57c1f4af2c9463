package memory

import (
	"fmt"
	"time"

	"github.com/emitd/emitd/storage"
	"github.com/emitd/emitd/storage/internal/rules"
)

// commit applies a leader's batch if exactly this term leads. Each change also has the guard of its
// row. It wakes the holders of the units that it changed.
func (s *state) commit(c storage.Commit, now time.Time) ([]storage.Outcome, error) {
	if len(c.Changes) > storage.MaxChanges {
		return nil, fmt.Errorf("%d changes, the limit is %d", len(c.Changes), storage.MaxChanges)
	}
	if !s.term.Held() || s.term.Ref() != c.Term {
		return nil, storage.ErrTermLost
	}
	s.commands.Answer(s, c.Commands, now)
	out := rules.Commit(s, c, now)
	for i, o := range out {
		if o.Applied && c.Changes[i].Step != "" {
			s.wakeNode(o.Record.Holder.Incarnation)
		}
	}
	return out, nil
}
