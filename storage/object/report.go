package object

import (
	"context"
	"slices"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/storage"
	"github.com/emitd/emitd/storage/internal/rules"
)

// report applies the holder's steps as one step of the cluster object.
func (s *Store) report(ctx context.Context, r storage.Report) (out []storage.Outcome, err error) {
	renews := slices.ContainsFunc(r.Units, func(u storage.UnitReport) bool { return u.Step == daemon.Resume || u.Step == daemon.Postpone })
	_, err = s.run(ctx, step{
		prepare: func(ctx context.Context, c *cluster, _ time.Time) error {
			if renews {
				return s.refresh(ctx, c, c.memberIDs()) // the generation of the new run depends on all rows
			}
			return s.refreshOwn(ctx, c, r.Node.Incarnation)
		},
		apply: func(c *cluster, now time.Time) (bool, error) {
			if err := s.same(c, r.StoreID); err != nil {
				return false, err
			}
			out, err = c.report(r, now)
			return err == nil, err
		},
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

// report decides each step by itself.
func (c *cluster) report(r storage.Report, now time.Time) ([]storage.Outcome, error) {
	row := c.present(r.Node.Incarnation)
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
		out[i] = rules.Report(c, row.Identity, u, c.Term.Number, now)
	}
	return out, nil
}
