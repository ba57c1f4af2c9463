package postgres

import (
	"context"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/storage"
)

var _ storage.Recorder = (*Store)(nil)

// Record implements [storage.Recorder].
func (s *Store) Record(ctx context.Context, e daemon.Event) error {
	err := s.call(ctx, "record", writing, func(m *message) {
		m.do("record", encode([]stateEvent{{0, daemon.EventKind(cleanText(string(e.Kind))), cleanText(e.Reason), e.Detail}}))
	})
	return s.fail("record "+string(e.Kind), err)
}
