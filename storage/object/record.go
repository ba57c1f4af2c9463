package object

import (
	"context"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/storage"
	"github.com/emitd/emitd/storage/internal/rules"
)

var _ storage.Recorder = (*Store)(nil)

// Record implements [storage.Recorder].
func (s *Store) Record(ctx context.Context, e daemon.Event) error {
	_, err := s.run(ctx, step{apply: func(c *cluster, now time.Time) (bool, error) {
		rules.Record(c, e, now)
		return true, nil
	}})
	return wrapErr(err, "record %s", e.Kind)
}
