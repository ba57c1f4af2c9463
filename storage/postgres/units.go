package postgres

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/internal/pgerror"
	"github.com/emitd/emitd/storage/internal/rules"
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

// readUnits asks for the units. What it returns puts together the answers, once they are there: the units and what the
// next snapshot may know. It returns false if rows are gone or the readings do not compare, so that all units must be read
// again.
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
		case !partial:
			return next, false
		}
		next.units = mergeUnits(known.units, changed)
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

// loading is the reading of all units in pages, by a process that knows none. A single statement for a hundred thousand
// units would take longer than a call may, and a leader that cannot read them would resign, again and again.
//
// Each page is of a moment of its own. All together are compared with the moment of the first one: the snapshot that
// follows reads what any transaction has written that the first page may not have seen. A row that none of these wrote was the
// same the whole time, and its page has it.
type loading struct {
	turn chan struct{} // held while a page is read; made with the store
	so   *knownUnits   // so far, with the moment of the first page; nil before it
	size int           // of the next page
	read int           // how many units all pages so far had
}

// unitsPage is how many units a page has. It is halved when a page takes too long, down to smallPage.
const (
	unitsPage = 5000
	smallPage = 100
)

// errUnitsGone says that a reading of units must begin anew.
var errUnitsGone = errors.New("rows of units are gone")

// loadUnits reads all units in pages. When ctx will end before the next page, it returns an error, and the next call
// goes on from there. What it returns is to be completed by a snapshot.
func (s *Store) loadUnits(ctx context.Context) (*knownUnits, error) {
	l := &s.loading
	select {
	case l.turn <- struct{}{}:
		defer func() { <-l.turn }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if known := s.units.Load(); known != nil {
		return known, nil // another call has read them meanwhile
	}
	for last := time.Duration(0); ; {
		began := time.Now()
		if deadline, ok := ctx.Deadline(); ok && last > 0 && deadline.Sub(began) < last+last/2 {
			return nil, &unavailable{fmt.Sprintf("%d units were read so far, the next call goes on", len(l.so.units)), context.DeadlineExceeded}
		}
		whole, err := s.loadPage(ctx)
		if err != nil {
			return nil, err
		}
		if whole {
			break
		}
		last = time.Since(began)
	}
	known := l.so
	l.so = nil
	byUnit := func(a, b daemon.Record) int { return a.Unit.Compare(b.Unit) }
	if !slices.IsSortedFunc(known.units, byUnit) { // the columns may order keys in another way
		slices.SortFunc(known.units, byUnit)
	}
	s.units.Store(known) // the snapshot may fail, and the next one goes on with this
	return known, nil
}

// loadPage reads the next page. It reports whether that was the last one.
func (s *Store) loadPage(ctx context.Context) (whole bool, err error) {
	l := &s.loading
	after, index := "", 0
	if l.so != nil && len(l.so.units) > 0 {
		after, index = rules.Columns(l.so.units[len(l.so.units)-1].Unit)
	}
	var page []daemon.Record
	moment := &knownUnits{revision: noRevision}
	err = s.call(ctx, "snapshot", reading, func(m *message) {
		m.query(func(c *composite) error {
			moment.oldest, moment.history = c.text(), c.text()
			return nil
		}, "units_origin")
		m.query(records(&page), "units_page", after, int64(index), l.size)
	})
	switch {
	case errors.Is(err, context.DeadlineExceeded) || pgerror.Code(err) == codeCancelled:
		l.size = max(l.size/2, smallPage)
		return false, err
	case err != nil:
		return false, err
	case l.so == nil:
		l.so = moment
	case l.so.history != moment.history: // another server, or it was restarted
		l.so = nil
		return false, &unavailable{"the server was restarted while units were read", errUnitsGone}
	}
	l.read += len(page)
	l.so.units = append(l.so.units, page...)
	return len(page) < l.size, nil
}
