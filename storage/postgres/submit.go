package postgres

import (
	"context"
	"fmt"

	"github.com/emitd/emitd/storage"
)

// Submit implements [storage.Store].
func (s *Store) Submit(ctx context.Context, c storage.Command) (*storage.Command, error) {
	var args any
	if len(c.Args) > 0 {
		args = string(c.Args)
	}
	var filed []storage.Command
	id := plain(c.ID)
	err := s.call(ctx, "submit", writing, func(q *query) {
		q.add("submit_lock", id)
		q.add("submit", id, plain(c.Kind), plain(c.Actor), plain(c.Reason), c.Term, int64(c.Cooldown), args)
		q.add("command", id).Query(commands(&filed))
	})
	if err == nil && len(filed) != 1 {
		err = fmt.Errorf("%d rows, want 1", len(filed))
	}
	if err != nil {
		return nil, s.fail("submit command "+c.ID, err)
	}
	return &filed[0], nil
}
