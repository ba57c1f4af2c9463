package memory

import (
	"time"

	"github.com/emitd/emitd/storage"
	"github.com/emitd/emitd/storage/internal/rules"
)

// report applies the holder's steps and decides each by itself.
func (s *state) report(r storage.Report, now time.Time) ([]storage.Outcome, error) {
	row := s.present(r.Node.Incarnation)
	switch {
	case row == nil:
		return nil, storage.ErrNotRegistered
	case r.Seq <= row.Seq:
		return nil, storage.ErrStaleSeq
	}
	row.Seq = r.Seq
	row.HighestGeneration = max(row.HighestGeneration, r.HighestGeneration)
	out := make([]storage.Outcome, len(r.Units))
	for i, u := range r.Units {
		head := s.head
		if out[i] = rules.Report(s, row.Identity, u, s.term.Number, now); s.head > head {
			s.wakeLeader()
		}
	}
	return out, nil
}
