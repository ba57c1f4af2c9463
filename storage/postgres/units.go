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
	moment   moment
	units    []daemon.Record // sorted; never written to
}

// moment tells the server which transactions a reading of the units has seen. A row that one of these wrote has not changed
// since.
type moment struct {
	// oldest is the oldest transaction that ran then. All earlier ones are seen.
	oldest string
	// seen lists the later ones that are seen all the same, of those that wrote rows. Without it, a transaction that runs
	// for hours would make everything that was written since it began look unread. It is an array of bigint.
	seen string
	// history names the run of the server in which the numbers of transactions go on and do not repeat.
	history string
}

// noTransactions is a list of transactions without any.
const noTransactions = "{}"

// noUnits is what a process knows that has read none: every number is as old as that transaction or younger.
var noUnits = &knownUnits{revision: noRevision, moment: moment{oldest: "3", seen: noTransactions}}

// completeness says whether a reading of the changes has all of them.
type completeness int

const (
	whole  completeness = iota
	behind              // more has changed than fits into one call
	gone                // rows are gone, or the server is not the one of the earlier reading
)

// readUnits asks for the units. What it returns puts together the answers, once they are there: the units and what the
// next snapshot may know.
func (s *Store) readUnits(m *message, st *state, known *knownUnits) func() (*knownUnits, completeness) {
	var changed []daemon.Record
	var comparable bool
	var count int64
	next, at := &knownUnits{}, known.moment
	m.query(records(&changed), "units", known.revision, at.oldest, at.history, at.seen, unitsPage+1)
	m.query(func(c *composite) error {
		comparable, count = c.bool(), c.int()
		next.moment = moment{oldest: c.text(), seen: c.text(), history: c.text()}
		return nil
	}, "units_count", known.revision, at.oldest, at.history)
	return func() (*knownUnits, completeness) {
		switch next.revision = st.revision; {
		case next.revision == known.revision && comparable:
			return known, whole
		case next.revision == known.revision:
			next.units = known.units
			return next, whole
		case !comparable:
			return next, gone
		case len(changed) > unitsPage:
			return next, behind
		}
		if next.units = mergeUnits(known.units, changed); int64(len(next.units)) != count {
			return next, gone
		}
		return next, whole
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

// loading is the reading of units in pages, by a process that knows none, or since whose newest snapshot many have changed.
// A single statement for a hundred thousand units would take longer than a call may, and a leader that cannot read them
// would resign, again and again.
//
// Each page is of a moment of its own. All together are compared with the moment of the first one: the snapshot that
// follows reads what any transaction has written that the first page may not have seen. A row that none of these wrote was the
// same the whole time, and its page has it.
type loading struct {
	busy chan struct{} // holds an element while a page is read; made with the store
	base *knownUnits   // the pages have what has changed since
	so   *knownUnits   // the pages so far, with the moment of the first one; nil before it
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

// loadUnits reads in pages what has changed since base. When ctx will end before the next page, it returns an error, and
// the next call goes on from there. What it returns is to be completed by a snapshot.
func (s *Store) loadUnits(ctx context.Context, base *knownUnits) (*knownUnits, error) {
	l := &s.loading
	select {
	case l.busy <- struct{}{}:
		defer func() { <-l.busy }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	if known := s.units.Load(); known != nil && known != base {
		return known, nil // another call has read them meanwhile
	}
	if l.so == nil {
		l.base = base
	}
	for last := time.Duration(0); ; {
		began := time.Now()
		if deadline, ok := ctx.Deadline(); ok && last > 0 && deadline.Sub(began) < last+last/2 {
			return nil, &unavailable{fmt.Sprintf("%d units were read so far, the next call goes on", len(l.so.units)), context.DeadlineExceeded}
		}
		complete, err := s.loadPage(ctx)
		if err != nil {
			return nil, err
		}
		if complete {
			break
		}
		last = time.Since(began)
	}
	known := l.so
	sortUnits(known.units)
	known.units = mergeUnits(l.base.units, known.units)
	l.so, l.base = nil, nil
	s.units.Store(known) // the snapshot may fail, and the next one goes on with this
	return known, nil
}

// sortUnits sorts units that may be in the order of their columns, which is another one for keys.
func sortUnits(units []daemon.Record) {
	byUnit := func(a, b daemon.Record) int { return a.Unit.Compare(b.Unit) }
	if !slices.IsSortedFunc(units, byUnit) {
		slices.SortFunc(units, byUnit)
	}
}

// loadPage reads the next page. It reports whether that was the last one.
func (s *Store) loadPage(ctx context.Context) (complete bool, err error) {
	l := &s.loading
	after, index := "", 0
	if l.so != nil && len(l.so.units) > 0 {
		after, index = rules.Columns(l.so.units[len(l.so.units)-1].Unit)
	}
	var page []daemon.Record
	comparable, now, base := false, moment{}, l.base.moment
	err = s.call(ctx, "snapshot", reading, func(m *message) {
		m.query(func(c *composite) error {
			comparable = c.bool()
			now = moment{oldest: c.text(), seen: c.text(), history: c.text()}
			return nil
		}, "units_origin", base.oldest, base.history, l.so == nil)
		m.query(records(&page), "units_page", after, int64(index), l.size, base.oldest, base.history, base.seen)
	})
	switch {
	case errors.Is(err, context.DeadlineExceeded) || pgerror.Code(err) == codeCancelled:
		l.size = max(l.size/2, smallPage)
		return false, err
	case err != nil:
		return false, err
	case l.so != nil && l.so.moment.history != now.history: // another server, or it was restarted
		l.so = nil
		return false, &unavailable{"the server was restarted while units were read", errUnitsGone}
	case l.so == nil:
		l.so = &knownUnits{revision: noRevision, moment: now}
		if !comparable {
			l.base = noUnits // the page is of all units
		}
	}
	l.read += len(page)
	l.so.units = append(l.so.units, page...)
	return len(page) < l.size, nil
}
