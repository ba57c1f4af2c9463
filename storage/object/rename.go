package object

import (
	"context"
	"fmt"
	"time"

	"github.com/emitd/emitd/storage"
)

// RenameCluster implements [storage.Renamer]. Without a shared clock, a node whose process was
// killed counts as live until this process has seen its row unchanged for ttl. The caller must
// therefore retry.
func (s *Store) RenameCluster(ctx context.Context, from, to string, ttl time.Duration) error {
	_, err := s.run(ctx, step{
		prepare: func(ctx context.Context, c *cluster, _ time.Time) error {
			return s.refresh(ctx, c, c.memberIDs())
		},
		apply: func(c *cluster, now time.Time) (bool, error) {
			if c.Name != from {
				return false, &storage.OtherClusterError{Store: c.Name, Node: from}
			}
			for _, m := range c.Members {
				if m.Present() && !s.silent(m, ttl, now) {
					return false, fmt.Errorf("%w: %s", storage.ErrNodesLive, m.Name)
				}
			}
			c.Name = to
			return true, nil
		},
	})
	return wrapErr(err, "rename the cluster")
}
