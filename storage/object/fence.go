package object

import (
	"context"
	"time"

	"github.com/emitd/emitd/daemon"
)

// stamp raises a unit's fence, which only grows, and only so.
func (s *Store) stamp(ctx context.Context, f daemon.Fence) error {
	_, err := s.run(ctx, step{apply: func(c *cluster, _ time.Time) (changed bool, err error) {
		if f.Generation > c.Fences[f.Unit] {
			c.Fences[f.Unit], changed = f.Generation, true
		}
		return changed, c.checkFence(f)
	}})
	return err
}

// checkFence accepts the run that has stamped the unit's fence last, and no other: a lower
// generation was overtaken, a higher one has not claimed yet. Generation 0 is nobody's.
func (c *cluster) checkFence(f daemon.Fence) error {
	if held := c.Fences[f.Unit]; held != f.Generation || f.Generation <= 0 {
		return &daemon.StaleError{Fence: f, Holds: held}
	}
	return nil
}
