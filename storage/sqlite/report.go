package sqlite

import (
	"context"

	"github.com/emitd/emitd/storage"
	"github.com/emitd/emitd/storage/internal/rules"
)

// Report implements [storage.Store].
func (s *Store) Report(ctx context.Context, report storage.Report) ([]storage.Outcome, error) {
	var out []storage.Outcome
	err := s.call(ctx, "report", func(st *step) (err error) {
		if err := s.checkSameStore(st, report.StoreID); err != nil {
			return err
		}
		out, err = st.report(report)
		return err
	})
	if err != nil {
		return nil, attempted(err, "report of", report.Node)
	}
	return out, nil
}

// report applies the holder's steps and decides each by itself.
func (st *step) report(r storage.Report) ([]storage.Outcome, error) {
	row := st.present(r.Node.Incarnation)
	switch {
	case row == nil:
		return nil, storage.ErrNotRegistered
	case r.Seq <= row.Seq:
		return nil, storage.ErrStaleSeq
	}
	st.exec(`UPDATE ~node SET seq = ?, highest_generation = max(highest_generation, ?) WHERE incarnation = ?`,
		int64(r.Seq), r.HighestGeneration, row.Incarnation)
	out := make([]storage.Outcome, len(r.Units))
	for i, u := range r.Units {
		out[i] = rules.Report(st, row.Identity, u, st.term.Number, st.now)
	}
	if len(st.events) > 0 {
		st.wakeLeader()
	}
	return out, nil
}
