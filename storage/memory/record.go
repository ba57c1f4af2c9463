package memory

import (
	"context"
	"fmt"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/storage"
	"github.com/emitd/emitd/storage/internal/rules"
)

var _ storage.Recorder = (*Store)(nil)

// Record implements [storage.Recorder].
func (s *Store) Record(ctx context.Context, e daemon.Event) error {
	now, err := s.begin(ctx)
	if err != nil {
		return fmt.Errorf("record %s: %w", e.Kind, err)
	}
	defer s.end()
	rules.Record(s.state, e, now)
	return nil
}
