package sqlite

import (
	"context"
	"fmt"

	"github.com/emitd/emitd/storage"
	"github.com/emitd/emitd/storage/internal/rules"
)

// Commit implements [storage.Store].
func (s *Store) Commit(ctx context.Context, commit storage.Commit) ([]storage.Outcome, error) {
	var out []storage.Outcome
	err := s.call(ctx, "commit", func(st *step) (err error) {
		if err := s.checkSameStore(st, commit.StoreID); err != nil {
			return err
		}
		out, err = st.commit(commit)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("commit of term %d: %w", commit.Term.Number, err)
	}
	return out, nil
}

// commit applies a leader's batch if exactly this term leads. Each change also has the guard of its
// row.
func (st *step) commit(c storage.Commit) ([]storage.Outcome, error) {
	if len(c.Changes) > storage.MaxChanges {
		return nil, fmt.Errorf("%d changes, the limit is %d", len(c.Changes), storage.MaxChanges)
	}
	if !st.term.Held() || st.term.Ref() != c.Term {
		return nil, storage.ErrTermLost
	}
	for _, result := range c.Commands {
		if old := st.command(result.ID); old != nil {
			if answered, changed := rules.Answered(st, *old, result, st.now); changed {
				st.putResult(answered)
			}
		}
	}
	out := rules.Commit(st, c, st.now)
	for i, o := range out {
		st.woken = st.woken || o.Applied && c.Changes[i].Step != ""
	}
	return out, nil
}
