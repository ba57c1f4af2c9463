package sqlite

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
	err := s.call(ctx, "record", func(st *step) error {
		rules.Record(st, e, st.now)
		return nil
	})
	if err != nil {
		return fmt.Errorf("record %s: %w", e.Kind, err)
	}
	return nil
}
