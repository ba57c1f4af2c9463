package object

import (
	"context"
	"time"

	"github.com/emitd/emitd/storage"
)

// submit stores a command, or returns the one that has its ID.
func (s *Store) submit(ctx context.Context, command storage.Command) (*storage.Command, error) {
	var filed storage.Command
	_, err := s.run(ctx, step{apply: func(c *cluster, now time.Time) (fresh bool, err error) {
		filed, fresh = c.Commands.Add(c, command, c.Term, now)
		return fresh, nil
	}})
	if err != nil {
		return nil, err
	}
	return &filed, nil
}
