package object

import (
	"context"
	"time"

	"github.com/emitd/emitd/daemon"
)

// Plant writes a state into a unit's row, as a newer version of the program would.
func (s *Store) Plant(ctx context.Context, u daemon.Unit, state daemon.State) error {
	_, err := s.run(ctx, step{apply: func(c *cluster, _ time.Time) (bool, error) {
		rec := *c.Unit(u)
		rec.State = state
		c.Put(rec)
		return true, nil
	}})
	return err
}

// Names that the tests in package object_test use.
const (
	ClusterKey = clusterKey
	PerSegment = perSegment
)

// Older returns a content of the cluster object with the same data, but an earlier number.
func Older(data []byte) ([]byte, error) {
	c := &cluster{}
	if err := open(kindCluster, data, c); err != nil {
		return nil, err
	}
	c.N, c.Nonce, c.EarlierNonces = c.N-1, c.EarlierNonces[0], c.EarlierNonces[1:]
	return seal(kindCluster, c)
}
