package object

import (
	"context"
	"time"

	"github.com/emitd/emitd/daemon"
)

// stamp raises a unit's fence. Nothing else changes a fence, and it only grows.
func (s *Store) stamp(ctx context.Context, f daemon.Fence) error {
	_, err := s.run(ctx, step{apply: func(c *cluster, _ time.Time) (changed bool, err error) {
		if f.Generation > c.Fences[f.Unit] {
			c.Fences[f.Unit], changed = f.Generation, true
		}
		return changed, c.checkFence(f)
	}})
	return err
}

// checkFence accepts only the run that has stamped the unit's fence last. A run with a lower
// generation was superseded; one with a higher generation has not stamped yet. Generation 0 belongs
// to no run.
func (c *cluster) checkFence(f daemon.Fence) error {
	if held := c.Fences[f.Unit]; held != f.Generation || f.Generation <= 0 {
		return &daemon.StaleError{Fence: f, HeldGeneration: held}
	}
	return nil
}
