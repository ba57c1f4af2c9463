package object

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/node"
	"github.com/emitd/emitd/storage"
)

// SweepNodes implements [storage.Sweeper].
func (s *Store) SweepNodes(ctx context.Context, fence daemon.Fence, age time.Duration, limit int) (int, error) {
	var gone []node.Incarnation
	_, err := s.run(ctx, step{apply: func(c *cluster, now time.Time) (bool, error) {
		if err := c.checkFence(fence); err != nil {
			return false, err
		}
		adverts := len(c.Adverts)
		gone = c.sweepNodes(now.Add(-age), limit)
		return len(gone) > 0 || len(c.Adverts) < adverts, nil
	}})
	if err != nil {
		return 0, wrapErr(err, "sweep nodes")
	}
	for _, inc := range gone {
		s.deleteUnreferenced(ctx, pulseKey(inc))
	}
	return len(gone), nil
}

// deleteUnreferenced deletes an object that nothing names any more. If the deletion fails, the object stays
// and does no harm.
func (s *Store) deleteUnreferenced(ctx context.Context, key string) { _ = s.bucket.Delete(ctx, key) }

// sweepNodes removes the oldest tombstones that ended before cut, and adverts that no row names any
// more.
func (c *cluster) sweepNodes(cut time.Time, limit int) []node.Incarnation {
	var old []*member
	for _, m := range c.Members {
		if !m.Present() && m.EndedAt.Before(cut) {
			old = append(old, m)
		}
	}
	slices.SortStableFunc(old, func(a, b *member) int { return a.EndedAt.Compare(b.EndedAt) })
	old = old[:min(len(old), max(limit, 0))]
	var gone []node.Incarnation
	for _, m := range old {
		gone = append(gone, m.Incarnation)
	}
	c.Members = slices.DeleteFunc(c.Members, func(m *member) bool { return slices.Contains(gone, m.Incarnation) })
	used := map[string]bool{}
	for _, m := range c.Members {
		used[m.Advert] = true
	}
	maps.DeleteFunc(c.Adverts, func(hash string, _ *daemon.Advert) bool { return !used[hash] })
	return gone
}

// SweepEvents implements [storage.Sweeper].
func (s *Store) SweepEvents(ctx context.Context, fence daemon.Fence, keep storage.Retention, limit int) (int, error) {
	var oldEvents, oldCommands int
	var dropped []segment
	c, err := s.run(ctx, step{
		prepare: func(ctx context.Context, c *cluster, now time.Time) (err error) {
			oldEvents = 0
			if c.checkFence(fence) == nil {
				oldEvents, err = s.countOld(ctx, c, now.Add(-keep.Age), keep, limit)
			}
			return err
		},
		apply: func(c *cluster, now time.Time) (bool, error) {
			if err := c.checkFence(fence); err != nil {
				return false, err
			}
			dropped = c.dropEvents(oldEvents)
			oldCommands = c.Commands.Sweep(now.Add(-keep.Age), limit-oldEvents)
			return oldEvents+oldCommands > 0, nil
		},
	})
	if err != nil {
		return 0, wrapErr(err, "sweep events")
	}
	if len(dropped) > 0 {
		s.sweepSegments(ctx, c, dropped)
	}
	return oldEvents + oldCommands, nil
}

// countOld counts the events at the beginning of the history that exceed keep or were written
// before cut. It stops at the first event that stays, so a clock that stepped makes no gap.
func (s *Store) countOld(ctx context.Context, c *cluster, cut time.Time, keep storage.Retention, limit int) (int, error) {
	all := int(c.Head - c.Oldest + 1)
	n := max(min(all-keep.MaxEvents, limit), 0) // these go whatever their age
	most := min(limit, all-keep.MinEvents)      // including those that are old
	if n >= most {
		return n, nil
	}
	next := c.Oldest + int64(n)
	for _, g := range c.Segments {
		if g.First == next && !g.At.Before(cut) {
			return n, nil // without reading it
		}
	}
	err := s.history(ctx, c, next-1, func(e daemon.Event) bool {
		if n >= most || !e.At.Before(cut) {
			return false
		}
		n++
		return true
	})
	return n, err
}

// dropEvents drops the n oldest events, and returns the segments of which no event is left.
func (c *cluster) dropEvents(n int) []segment {
	c.Oldest += int64(n)
	i := 0
	for i < len(c.Segments) && c.Segments[i].last() < c.Oldest {
		i++
	}
	dropped := c.Segments[:i]
	c.Segments = c.Segments[i:]
	if len(c.Ring) > 0 {
		c.Ring = c.Ring[min(max(c.Oldest-c.Ring[0].Seq, 0), int64(len(c.Ring))):]
	}
	return dropped
}

// sweepSegments deletes segments that the cluster no longer names, and those left by writers that
// ended before the cluster named them. A writer at work names only events that are still in the
// cluster object, so its segment stays.
func (s *Store) sweepSegments(ctx context.Context, c *cluster, dropped []segment) {
	for _, g := range dropped {
		s.deleteUnreferenced(ctx, g.key())
	}
	named := map[string]bool{}
	for _, g := range c.Segments {
		named[g.key()] = true
	}
	end := fmt.Sprintf("%s%020d", segmentPrefix, c.Head-int64(len(c.Ring))+1)
	page, err := s.bucket.List(ctx, segmentPrefix, "", 0)
	if err != nil {
		return // next time
	}
	for _, e := range page.Entries {
		if e.Key < end && !named[e.Key] && !strings.HasPrefix(e.Key, end) {
			s.deleteUnreferenced(ctx, e.Key)
		}
	}
}

// SweepLocks implements [storage.Sweeper].
func (s *Store) SweepLocks(ctx context.Context, fence daemon.Fence, age time.Duration, limit int) (int, error) {
	n := 0
	_, err := s.run(ctx, step{apply: func(c *cluster, now time.Time) (bool, error) {
		if err := c.checkFence(fence); err != nil {
			return false, err
		}
		n = c.sweepLocks(now.Add(-age), limit)
		return n > 0, nil
	}})
	if err != nil {
		return 0, wrapErr(err, "sweep locks")
	}
	return n, nil
}

// sweepLocks removes the oldest locks that were released before cut. The next holder of such a name
// still gets a higher number.
func (c *cluster) sweepLocks(cut time.Time, limit int) int {
	var old []storage.Lock
	for _, l := range c.Locks {
		if l.Free() && l.ExpiresAt.Before(cut) {
			old = append(old, l)
		}
	}
	slices.SortFunc(old, func(a, b storage.Lock) int {
		return cmp.Or(a.ExpiresAt.Compare(b.ExpiresAt), cmp.Compare(a.Name, b.Name))
	})
	old = old[:min(len(old), max(limit, 0))]
	for _, l := range old {
		c.LockFloor = max(c.LockFloor, l.Number)
		delete(c.Locks, l.Name)
	}
	return len(old)
}
