package sqlite

import (
	"context"
	"fmt"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/storage"
	"github.com/emitd/emitd/storage/internal/rules"
)

var _ storage.KeyStore = (*Store)(nil)

// ChangeKeys implements [storage.KeyStore].
func (s *Store) ChangeKeys(ctx context.Context, change storage.KeyChange) (counts storage.KeyCounts, err error) {
	if err := change.Validate(); err != nil {
		return counts, fmt.Errorf("change keys of %.128s: %w", change.Daemon, err)
	}
	err = s.call(ctx, "change keys", func(st *step) (err error) {
		counts, err = rules.ChangeKeys(st, change, st.now)
		if counts != (storage.KeyCounts{}) {
			st.wakeLeader()
		}
		return err
	})
	if err != nil {
		return storage.KeyCounts{}, fmt.Errorf("change keys of %s: %w", change.Daemon, err)
	}
	return counts, nil
}

// SweepUnits implements [storage.KeyStore].
func (s *Store) SweepUnits(ctx context.Context, fence daemon.Fence, age time.Duration, limit int) (int, error) {
	return s.sweep(ctx, fence, "units", func(st *step) int {
		var gone []daemon.Unit
		var floor int64
		st.each(`SELECT u.daemon, u.idx, max(u.generation, coalesce(f.generation, 0))
			FROM ~unit u LEFT JOIN ~fence f ON f.daemon = u.daemon AND f.idx = u.idx
			WHERE u.retired <> 0 AND u.state IN ('unassigned', 'deleted') AND instr(u.daemon, ' ') > 0 AND u.since < ?
			ORDER BY u.since, u.daemon LIMIT ?`, []any{nanos(st.now.Add(-age)), max(limit, 0)}, func(scan func(...any) bool) {
			var u daemon.Unit
			var generation int64
			if scan(unitName{&u}, unitIndex{&u}, &generation) {
				gone, floor = append(gone, u), max(floor, generation)
			}
		})
		for _, u := range gone {
			for _, table := range []string{"unit", "fence", "unit_state"} {
				st.exec(`DELETE FROM ~`+table+` WHERE daemon = ? AND idx = ?`, columnsOf(u)...)
			}
		}
		if len(gone) > 0 {
			st.exec(`UPDATE ~meta SET generation_floor = max(generation_floor, ?)`, floor)
		}
		return len(gone)
	})
}
