package memory

import (
	"context"
	"fmt"
	"time"

	"github.com/emitd/emitd/storage"
)

// RenameCluster implements [storage.Renamer]. A node is live if it has sent a heartbeat within ttl.
func (s *Store) RenameCluster(ctx context.Context, from, to string, ttl time.Duration) error {
	now, err := s.begin(ctx)
	if err != nil {
		return fmt.Errorf("rename the cluster: %w", err)
	}
	defer s.end()
	if s.state.cluster != from {
		return fmt.Errorf("rename the cluster: %w", &storage.OtherClusterError{Store: s.state.cluster, Node: from})
	}
	for _, m := range s.state.order {
		if m.Present() && storage.NodeIDInUse(m.LastHeartbeatAt, now, ttl) {
			return fmt.Errorf("rename the cluster: %w: %s", storage.ErrNodesLive, m.Name)
		}
	}
	s.state.cluster = to
	return nil
}
