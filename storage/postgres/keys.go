package postgres

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/storage"
	"github.com/emitd/emitd/storage/internal/rules"
)

var _ storage.KeyStore = (*Store)(nil)

// maxNamedKeys is how many keys of each kind an event names.
const maxNamedKeys = 8

// columns returns the columns daemon and index of a unit, as arguments.
func columns(u daemon.Unit) (name string, index int) {
	name, index = rules.Columns(u)
	return cleanText(name), index
}

// ChangeKeys implements [storage.KeyStore].
func (s *Store) ChangeKeys(ctx context.Context, change storage.KeyChange) (counts storage.KeyCounts, err error) {
	what := fmt.Sprintf("change keys of %.128s", change.Daemon)
	if err := change.Validate(); err != nil {
		return counts, fmt.Errorf("%s: %w", what, err)
	}
	var held int64
	fenced := change.Fence != daemon.Fence{}
	err = s.call(ctx, "change keys", writing, func(m *message) {
		if fenced {
			d, i := unitOf(change.Fence)
			m.query(number64(&held), "hold_fence", d, i)
		}
		writeKeys(m, change, fenced, &counts)
	})
	if err == nil && fenced && !owns(change.Fence, held) {
		err = &daemon.StaleError{Fence: change.Fence, HeldGeneration: held}
	}
	if err != nil {
		return storage.KeyCounts{}, s.fail(what, err)
	}
	return counts, nil
}

// writeKeys writes the statements that change keys.
func writeKeys(m *message, change storage.KeyChange, fenced bool, counts *storage.KeyCounts) {
	d, i := unitOf(change.Fence)
	m.do("keys_allow")
	m.do("keys_lock", string(change.Daemon), array(slices.Concat(change.Add, change.Remove)))
	m.query(func(c *composite) error {
		counts.Added, counts.Removed = int(c.int()), int(c.int())
		c.skip(1)
		return nil
	}, "change_keys", string(change.Daemon), array(change.Add), array(change.Remove), fenced, cleanText(change.Actor),
		rules.KeyAdded, rules.KeyRemoved, cleanText(change.Reason), maxNamedKeys, d, i, change.Fence.Generation)
}

// SweepUnits implements [storage.KeyStore].
func (s *Store) SweepUnits(ctx context.Context, fence daemon.Fence, age time.Duration, limit int) (int, error) {
	return s.sweep(ctx, fence, "units", func(m *message, run []any, n *int64) {
		m.query(number64(n), "sweep_units", append(run, micros(age), max(limit, 0))...)
	})
}
