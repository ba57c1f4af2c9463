package sqlite

import (
	"context"
	"fmt"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/storage"
)

// SweepNodes implements [storage.Sweeper]. It removes the oldest tombstones, and adverts that no
// row names any more.
func (s *Store) SweepNodes(ctx context.Context, fence daemon.Fence, age time.Duration, limit int) (int, error) {
	return s.sweep(ctx, fence, "nodes", func(st *step) int {
		n := st.exec(`DELETE FROM ~node WHERE incarnation IN (
				SELECT incarnation FROM ~node WHERE state = 'removed' AND ended_at < ? ORDER BY ended_at, incarnation LIMIT ?)`,
			nanos(st.now.Add(-age)), max(limit, 0))
		st.exec(`DELETE FROM ~advert WHERE hash NOT IN (SELECT advert FROM ~node)`)
		return int(n)
	})
}

// SweepEvents implements [storage.Sweeper]. It removes the beginning of the history, then commands.
func (s *Store) SweepEvents(ctx context.Context, fence daemon.Fence, keep storage.Retention, limit int) (int, error) {
	return s.sweep(ctx, fence, "events", func(st *step) int {
		cut := nanos(st.now.Add(-keep.Age))
		n := st.sweepEvents(cut, keep, limit)
		m := st.exec(`DELETE FROM ~command WHERE num IN (
				SELECT num FROM ~command WHERE done_at <> 0 AND done_at < ? ORDER BY num LIMIT ?)`, cut, max(limit-n, 0))
		return n + int(m)
	})
}

// SweepLocks implements [storage.Sweeper]. The next holder of such a name still gets a higher
// number.
func (s *Store) SweepLocks(ctx context.Context, fence daemon.Fence, age time.Duration, limit int) (int, error) {
	return s.sweep(ctx, fence, "locks", func(st *step) int {
		const old = `FROM ~lock WHERE owner = '' AND expires_at < ? ORDER BY expires_at, name LIMIT ?`
		args := []any{nanos(st.now.Add(-age)), max(limit, 0)}
		floor := st.meta.lockFloor
		st.one(`SELECT max(number) FROM (SELECT number `+old+`)`, args, orZero{&floor})
		n := st.exec(`DELETE FROM ~lock WHERE name IN (SELECT name `+old+`)`, args...)
		if n > 0 {
			st.exec(`UPDATE ~meta SET lock_floor = max(lock_floor, ?)`, floor)
		}
		return int(n)
	})
}

// sweep runs one fenced step.
func (s *Store) sweep(ctx context.Context, fence daemon.Fence, what string, sweep func(*step) int) (n int, err error) {
	err = s.call(ctx, "sweep", func(st *step) error {
		if err := st.checkFence(fence); err != nil {
			return err
		}
		n = sweep(st)
		return nil
	})
	if err != nil {
		return 0, fmt.Errorf("sweep %s: %w", what, err)
	}
	return n, nil
}

// sweepEvents removes events from the beginning of the history that exceed keep or were written
// before cut. It stops at the first event that stays, so a clock that stepped makes no gap.
func (st *step) sweepEvents(cut int64, keep storage.Retention, limit int) int {
	oldest := st.oldest()
	if oldest == 0 {
		return 0
	}
	beyond := st.meta.head - int64(keep.MaxEvents) // events up to this number go whatever their age
	aging := st.meta.head - int64(keep.MinEvents)  // events up to this number go if they are old
	last := oldest - 1
	st.each(`SELECT seq, at FROM ~event ORDER BY seq LIMIT ?`, []any{max(limit, 0)}, func(scan func(...any) bool) {
		var seq, at int64
		if scan(&seq, &at) && seq == last+1 && (seq <= beyond || seq <= aging && at < cut) {
			last = seq
		}
	})
	st.exec(`DELETE FROM ~event WHERE seq <= ?`, last)
	return int(last - oldest + 1)
}
