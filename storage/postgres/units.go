package postgres

import (
	"slices"

	"github.com/emitd/emitd/daemon"
)

// knownUnits is what the newest snapshot in this process has read of the units. The next one reads only what has
// changed since. Without that, a leader would read a hundred thousand rows after each change of one.
type knownUnits struct {
	revision string // of the term and the units
	// oldest is the oldest transaction that ran when the units were read. What earlier ones wrote is among them.
	oldest string
	// history names the run of the server in which the numbers of transactions go on and do not repeat.
	history string
	units   []daemon.Record // sorted; never written to
}

// noUnits is what the first snapshot knows.
var noUnits = &knownUnits{revision: noRevision, oldest: "3"}

// readUnits asks for the units. What it returns puts together the answers, once they are there: the units and what the
// next snapshot may know. It returns false if rows are gone, so that all units must be read again.
func (s *Store) readUnits(m *message, st *state, known *knownUnits) func() (*knownUnits, bool) {
	var changed []daemon.Record
	var partial bool
	var count int64
	next := &knownUnits{}
	m.query(records(&changed), "units", known.revision, known.oldest, known.history)
	m.query(func(c *composite) error {
		partial, count = c.bool(), c.int()
		next.oldest, next.history = c.text(), c.text()
		return nil
	}, "units_count", known.revision, known.oldest, known.history)
	return func() (*knownUnits, bool) {
		switch next.revision = st.revision; {
		case next.revision == known.revision:
			next.units = known.units
			return next, true
		case partial:
			next.units = mergeUnits(known.units, changed)
		default:
			next.units = changed
		}
		return next, int64(len(next.units)) == count
	}
}

// mergeUnits replaces and adds units. Both lists are sorted, and so is the result. It is a new list.
func mergeUnits(known, changed []daemon.Record) []daemon.Record {
	out := make([]daemon.Record, 0, len(known)+len(changed))
	for _, r := range changed {
		i, found := slices.BinarySearchFunc(known, r.Unit, func(r daemon.Record, u daemon.Unit) int { return r.Unit.Compare(u) })
		out = append(append(out, known[:i]...), r)
		if known = known[i:]; found {
			known = known[1:]
		}
	}
	return append(out, known...)
}
