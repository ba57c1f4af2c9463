package memory

import (
	"fmt"
	"time"

	"github.com/emitd/emitd/storage"
	"github.com/emitd/emitd/storage/internal/rules"
)

// commit applies a leader's batch: all of it under the exact term, each change under its row. Whose
// unit was changed is woken.
func (s *state) commit(c storage.Commit, now time.Time) ([]storage.Outcome, error) {
	if len(c.Changes) > storage.MaxChanges {
		return nil, fmt.Errorf("%d changes, the limit is %d", len(c.Changes), storage.MaxChanges)
	}
	if !s.term.Held() || s.term.Ref() != c.Term {
		return nil, storage.ErrTermLost
	}
	out := rules.Commit(s, c, now)
	for i, o := range out {
		if o.Applied && c.Changes[i].Step != "" {
			s.wakeNode(o.Record.Holder.Incarnation)
		}
	}
	return out, nil
}
