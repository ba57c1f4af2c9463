package memory

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/node"
	"github.com/emitd/emitd/storage"
)

// SweepNodes implements [storage.Sweeper].
func (s *Store) SweepNodes(ctx context.Context, fence daemon.Fence, age time.Duration, limit int) (int, error) {
	return s.sweep(ctx, fence, "nodes", func(now time.Time) int { return s.state.sweepNodes(now.Add(-age), limit) })
}

// SweepEvents implements [storage.Sweeper].
func (s *Store) SweepEvents(ctx context.Context, fence daemon.Fence, keep storage.Retention, limit int) (int, error) {
	return s.sweep(ctx, fence, "events", func(now time.Time) int {
		before := now.Add(-keep.Age)
		n := s.state.sweepEvents(before, keep, limit)
		return n + s.state.commands.Sweep(before, limit-n)
	})
}

// SweepLocks implements [storage.Sweeper].
func (s *Store) SweepLocks(ctx context.Context, fence daemon.Fence, age time.Duration, limit int) (int, error) {
	return s.sweep(ctx, fence, "locks", func(now time.Time) int { return s.state.sweepLocks(now.Add(-age), limit) })
}

// sweep runs one fenced step.
func (s *Store) sweep(ctx context.Context, fence daemon.Fence, what string, step func(now time.Time) int) (int, error) {
	now, err := s.begin(ctx)
	if err != nil {
		return 0, fmt.Errorf("sweep %s: %w", what, err)
	}
	defer s.end()
	if err := s.state.checkFence(fence); err != nil {
		return 0, fmt.Errorf("sweep %s: %w", what, err)
	}
	return step(now), nil
}

// sweepNodes removes the oldest tombstones that ended before the given time, and adverts that no row names any
// more.
func (s *state) sweepNodes(before time.Time, limit int) int {
	var old []*member
	for _, m := range s.order {
		if !m.Present() && m.EndedAt.Before(before) {
			old = append(old, m)
		}
	}
	slices.SortStableFunc(old, func(a, b *member) int { return a.EndedAt.Compare(b.EndedAt) })
	old = old[:min(len(old), max(limit, 0))]
	for _, m := range old {
		delete(s.nodes, m.Incarnation)
	}
	s.order = slices.DeleteFunc(s.order, func(m *member) bool { return s.nodes[m.Incarnation] == nil })
	s.sweepAdverts()
	return len(old)
}

// sweepAdverts deletes adverts that no row names, and the (empty) tables of units held by processes
// that are gone.
func (s *state) sweepAdverts() {
	used := map[string]bool{}
	for _, m := range s.order {
		used[m.Advert] = true
	}
	s.adverts = maps.Clone(s.adverts) // snapshots hold the old map
	maps.DeleteFunc(s.adverts, func(hash string, _ *daemon.Advert) bool { return !used[hash] })
	maps.DeleteFunc(s.held, func(inc node.Incarnation, t *table) bool { return len(t.rows) == 0 && s.nodes[inc] == nil })
}

// sweepEvents removes events from the beginning of the history that exceed keep or were written
// before the given time. It stops at the first event that stays, so a clock that stepped makes no gap.
func (s *state) sweepEvents(before time.Time, keep storage.Retention, limit int) int {
	n := 0
	for left := len(s.events); n < limit && left > 0 && (left > keep.MaxEvents || left > keep.MinEvents && s.events[n].At.Before(before)); left-- {
		n++
	}
	s.dropEvents(n)
	return n
}

// sweepLocks removes the oldest locks that were released before the given time. The next holder of such a name
// still gets a higher number.
func (s *state) sweepLocks(before time.Time, limit int) int {
	var old []storage.Lock
	for _, l := range s.locks {
		if l.Free() && l.ExpiresAt.Before(before) {
			old = append(old, l)
		}
	}
	slices.SortFunc(old, func(a, b storage.Lock) int {
		return cmp.Or(a.ExpiresAt.Compare(b.ExpiresAt), cmp.Compare(a.Name, b.Name))
	})
	old = old[:min(len(old), max(limit, 0))]
	for _, l := range old {
		s.lockFloor = max(s.lockFloor, l.Number)
		delete(s.locks, l.Name)
	}
	return len(old)
}
