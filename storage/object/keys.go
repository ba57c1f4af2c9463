package object

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/storage"
	"github.com/emitd/emitd/storage/internal/rules"
)

var _ storage.KeyStore = (*Store)(nil)

// ChangeKeys implements [storage.KeyStore].
func (s *Store) ChangeKeys(ctx context.Context, change storage.KeyChange) (counts storage.KeyCounts, err error) {
	if err := change.Validate(); err != nil {
		return counts, wrapErr(err, "change keys of %.128s", change.Daemon)
	}
	_, err = s.run(ctx, step{apply: func(c *cluster, now time.Time) (bool, error) {
		counts, err = rules.ChangeKeys(c, change, now)
		return counts != (storage.KeyCounts{}), err
	}})
	if err != nil {
		return storage.KeyCounts{}, wrapErr(err, "change keys of %s", change.Daemon)
	}
	return counts, nil
}

// SweepUnits implements [storage.KeyStore].
func (s *Store) SweepUnits(ctx context.Context, fence daemon.Fence, age time.Duration, limit int) (int, error) {
	n := 0
	_, err := s.run(ctx, step{apply: func(c *cluster, now time.Time) (bool, error) {
		if err := c.checkFence(fence); err != nil {
			return false, err
		}
		n = c.sweepUnits(now.Add(-age), limit)
		return n > 0, nil
	}})
	if err != nil {
		return 0, wrapErr(err, "sweep units")
	}
	return n, nil
}

func (c *cluster) sweepUnits(before time.Time, limit int) int {
	var old []*daemon.Record
	for _, r := range c.Units {
		if rules.IsOldKey(r, before) {
			old = append(old, r)
		}
	}
	slices.SortFunc(old, func(a, b *daemon.Record) int { return cmp.Or(a.Since.Compare(b.Since), a.Unit.Compare(b.Unit)) })
	old = old[:min(len(old), max(limit, 0))]
	gone := make(map[daemon.Unit]bool, len(old))
	for _, r := range old {
		c.GenerationFloor = max(c.GenerationFloor, r.Generation, c.Fences[r.Unit])
		gone[r.Unit] = true
		delete(c.Fences, r.Unit)
		delete(c.UnitStates, r.Unit)
	}
	c.Units = slices.DeleteFunc(c.Units, func(r *daemon.Record) bool { return gone[r.Unit] })
	return len(old)
}
