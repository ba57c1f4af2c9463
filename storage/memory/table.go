package memory

import (
	"slices"

	"github.com/emitd/emitd/daemon"
)

// table is a sorted set of unit rows. A row is replaced, never changed. The list of values that
// readers get is built once per change. Reading is therefore cheap, and a copy of the table shares
// its rows.
type table struct {
	rows []*daemon.Record
	view []daemon.Record // nil: must be built
}

func (t *table) find(u daemon.Unit) (int, bool) {
	return slices.BinarySearchFunc(t.rows, u, func(r *daemon.Record, u daemon.Unit) int { return r.Unit.Compare(u) })
}

// get returns the row, or nil. It must not be written to.
func (t *table) get(u daemon.Unit) *daemon.Record {
	if i, ok := t.find(u); ok {
		return t.rows[i]
	}
	return nil
}

func (t *table) put(r *daemon.Record) {
	t.view = nil
	i, ok := t.find(r.Unit)
	if ok {
		t.rows[i] = r
		return
	}
	t.rows = slices.Insert(t.rows, i, r)
}

func (t *table) remove(u daemon.Unit) {
	if i, ok := t.find(u); ok {
		t.view = nil
		t.rows = slices.Delete(t.rows, i, i+1)
	}
}

// all returns the rows in order. The slice is shared and must not be written to.
func (t *table) all() []daemon.Record {
	if t.view == nil && len(t.rows) > 0 {
		t.view = make([]daemon.Record, len(t.rows))
		for i, r := range t.rows {
			t.view[i] = *r
		}
	}
	return t.view
}

func (t *table) clone() *table { return &table{rows: slices.Clone(t.rows), view: t.view} }
