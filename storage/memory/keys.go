package memory

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/storage"
	"github.com/emitd/emitd/storage/internal/rules"
)

var _ storage.KeyStore = (*Store)(nil)

// ChangeKeys implements [storage.KeyStore].
func (s *Store) ChangeKeys(ctx context.Context, change storage.KeyChange) (counts storage.KeyCounts, err error) {
	var now time.Time
	if err = change.Validate(); err == nil {
		now, err = s.begin(ctx)
	}
	if err != nil {
		return counts, fmt.Errorf("change keys of %.128s: %w", change.Daemon, err)
	}
	defer s.end()
	if counts, err = rules.ChangeKeys(s.state, change, now); err != nil {
		return counts, fmt.Errorf("change keys of %s: %w", change.Daemon, err)
	}
	if counts != (storage.KeyCounts{}) {
		s.state.wakeLeader()
	}
	return counts, nil
}

// SweepUnits implements [storage.KeyStore].
func (s *Store) SweepUnits(ctx context.Context, fence daemon.Fence, age time.Duration, limit int) (int, error) {
	return s.sweep(ctx, fence, "units", func(now time.Time) int { return s.state.sweepUnits(now.Add(-age), limit) })
}

func (s *state) sweepUnits(before time.Time, limit int) int {
	var old []*daemon.Record
	for _, r := range s.units.rows {
		if rules.IsOldKey(r, before) {
			old = append(old, r)
		}
	}
	slices.SortFunc(old, func(a, b *daemon.Record) int { return cmp.Or(a.Since.Compare(b.Since), a.Unit.Compare(b.Unit)) })
	old = old[:min(len(old), max(limit, 0))]
	for _, r := range old {
		s.generationFloor = max(s.generationFloor, r.Generation, s.fences[r.Unit])
		s.units.remove(r.Unit)
		delete(s.fences, r.Unit)
		delete(s.unitStates, r.Unit)
	}
	return len(old)
}
