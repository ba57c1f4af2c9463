package admin

import (
	"context"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/internal/admin/body"
	"github.com/emitd/emitd/internal/admin/view"
	"github.com/emitd/emitd/internal/coordinator/history"
	"github.com/emitd/emitd/storage"
)

// historyOperations lists the calls that read the history of the cluster.
func historyOperations() []operation {
	return []operation{
		get("listEvents", "/events", "The history of the cluster, the newest events first", (*API).events),
		get("listTerms", "/terms", "The terms in the history, the newest first", (*API).terms),
	}
}

// eventFilter selects events.
type eventFilter struct {
	// Kind selects kinds by a pattern, such as leader.* or assignment.failed.
	Kind string `query:"kind"`
	// Node selects the events about a node, by its name or ID.
	Node string `query:"node"`
	// Daemon selects the events about a daemon, or about one unit of it.
	Daemon string `query:"daemon"`
	// Term selects the events of a term, by its number.
	Term int64 `query:"term"`
}

func (f eventFilter) view(since time.Duration) (view.EventFilter, error) {
	out := view.EventFilter{Kind: f.Kind, Node: f.Node, Daemon: f.Daemon, Term: f.Term, Since: since}
	if !out.Valid() {
		return out, badCall("kind is %.100q, want a pattern such as leader.* or assignment.failed", f.Kind)
	}
	return out, nil
}

type eventsIn struct {
	paging
	eventFilter
	// Since selects the events of the last period of that length, such as 1h, by the store's clock.
	Since time.Duration `query:"since"`
	// After selects the events after this number.
	After int64 `query:"after"`
	// Order is newest (the newest events first) or oldest.
	Order string `query:"order" default:"newest" enum:"newest,oldest"`
}

// eventPage is a page of events.
type eventPage struct {
	Events []view.Event `json:"events"`
	// Cursor is that of the next page; null at the end. A page may have fewer events than asked for, even none, and a
	// cursor all the same: a call searches only a part of a long history.
	Cursor *string `json:"cursor"`
	// Head is the number of the newest event, Oldest of the oldest one that is still kept; 0 = none.
	Head   int64 `json:"head"`
	Oldest int64 `json:"oldest"`
}

// Limits of the search for events.
const (
	eventsAtOnce = 500  // read by one call to the store
	mostSearched = 5000 // searched by one call of the API
)

func (a *API) events(ctx context.Context, in *eventsIn) (*eventPage, error) {
	filter, err := in.view(in.Since)
	if err != nil {
		return nil, err
	}
	ctx, cancel := a.bounded(ctx)
	defer cancel()
	s := search{store: a.cfg.Store, filter: filter, floor: in.After, limit: in.Limit, block: eventsAtOnce}
	if filter.All() {
		s.block = min(s.block, in.Limit)
	}
	if filter.Since != 0 {
		state, err := a.reads.get(ctx)
		if err != nil {
			return nil, err
		}
		s.now = state.snap.Now
	}
	list := "events " + in.Order
	from, begun, err := after[int64](in.paging, list)
	if err != nil {
		return nil, err
	}
	var next int64
	if in.Order == "oldest" {
		next, err = s.forward(ctx, max(from, in.After))
	} else {
		next, err = s.backward(ctx, from, begun)
	}
	if err != nil {
		return nil, fmt.Errorf("read events: %w", err)
	}
	out := &eventPage{Events: s.found, Head: s.head, Oldest: s.oldest}
	if out.Events == nil {
		out.Events = []view.Event{}
	}
	if next >= 0 {
		out.Cursor = cursor(list, next)
	}
	return out, nil
}

// search looks for events in the history. Events are numbered without gaps; the oldest ones are deleted in time.
type search struct {
	store  storage.Store
	filter view.EventFilter
	now    time.Time // the store's clock, for filter.Since
	floor  int64     // only events after this one
	limit  int       // how many events are wanted
	block  int       // how many are read at once

	found        []view.Event
	searched     int
	head, oldest int64
}

// end says that a search has reached the end of the history.
const end = -1

// read returns the events after a number.
func (s *search) read(ctx context.Context, after int64, limit int) ([]daemon.Event, error) {
	p, err := s.store.Events(ctx, after, limit)
	if err != nil {
		return nil, err
	}
	s.head, s.oldest = p.Head, p.Oldest
	s.searched += len(p.Events)
	return p.Events, nil
}

// take adds the event if it is wanted, and reports whether there are enough.
func (s *search) take(e *daemon.Event) bool {
	if s.filter.Selects(e, s.now) {
		s.found = append(s.found, view.EventOf(*e))
	}
	return len(s.found) == s.limit
}

// forward searches from the event after a number on. It returns the number after which the next page begins, or end.
func (s *search) forward(ctx context.Context, after int64) (int64, error) {
	for {
		events, err := s.read(ctx, after, s.block)
		if err != nil {
			return end, err
		}
		for i := range events {
			after = events[i].Seq
			if s.take(&events[i]) {
				return s.unless(after >= s.head, after), nil
			}
		}
		if len(events) == 0 || after >= s.head {
			return end, nil
		}
		if s.searched >= mostSearched {
			return after, nil
		}
	}
}

// backward searches from the event before a number back, or from the newest event back. It returns the number before
// which the next page begins, or end.
func (s *search) backward(ctx context.Context, before int64, begun bool) (int64, error) {
	if !begun {
		if _, err := s.read(ctx, 0, 1); err != nil { // to know the newest event
			return end, err
		}
		before = s.head + 1
	}
	for before > s.floor+1 {
		low := max(before-1-int64(s.block), s.floor) // the events low+1 to before-1
		events, err := s.read(ctx, low, int(before-1-low))
		if err != nil {
			return end, err
		}
		recent := false
		for i := range slices.Backward(events) {
			e := &events[i]
			if e.Seq >= before { // the history has lost events, and its numbers have begun anew
				continue
			}
			recent = recent || s.filter.InTime(e, s.now)
			if s.take(e) {
				return s.unless(e.Seq <= max(s.oldest, s.floor+1), e.Seq), nil
			}
		}
		before = low + 1
		// Times may be out of order where the store's clock was set, so one old event does not end the search.
		if before <= s.oldest || !recent {
			return end, nil
		}
		if s.searched >= mostSearched {
			return before, nil
		}
	}
	return end, nil
}

func (s *search) unless(over bool, next int64) int64 {
	if over {
		return end
	}
	return next
}

type termsIn struct {
	paging
	// Since selects the terms that ended in the last period of that length, such as 1h, by the store's clock.
	Since time.Duration `query:"since"`
}

func (a *API) terms(ctx context.Context, in *termsIn) (*body.TermPage, error) {
	ctx, cancel := a.bounded(ctx)
	defer cancel()
	s, err := a.reads.get(ctx)
	if err != nil {
		return nil, err
	}
	out, further, err := a.termPage(ctx, in, s.snap.Now)
	if err == nil && further && in.Cursor != "" && len(out.Terms) == 0 { // the caller wants what was not read yet
		a.leaders.forget()
		out, further, err = a.termPage(ctx, in, s.snap.Now)
	}
	if err != nil || !further {
		return out, err
	}
	const list = "terms"
	last, begun, _ := after[int64](in.paging, list)
	switch n := len(out.Terms); {
	case n > 0:
		last = out.Terms[n-1].Term
	case !begun:
		last = math.MaxInt64
	}
	out.Cursor = cursor(list, last)
	return out, nil
}

// termPage returns a page of what was read, and whether there may be further terms that were not read yet.
func (a *API) termPage(ctx context.Context, in *termsIn, now time.Time) (out *body.TermPage, further bool, err error) {
	led, err := a.leaders.get(ctx)
	if err != nil {
		return nil, false, err
	}
	last, begun, err := after[int64](in.paging, "terms")
	if err != nil {
		return nil, false, err
	}
	if !begun {
		last = math.MaxInt64
	}
	terms := view.RecentTerms(view.TermsBefore(led.events, now, last, in.Limit+1), now, in.Since) // one more, to know whether there is one
	out = &body.TermPage{At: view.Time{Time: now}}
	out.Terms, out.Cursor, err = page(terms, in.paging, "terms", func(t *view.Term) int64 { return t.Term }, func(a, b int64) int { return int(b - a) })
	old := in.Since > 0 && now.Sub(led.begun) > in.Since
	return out, err == nil && out.Cursor == nil && !led.whole && !old, err
}

// leadership is what the history says about who led. It is read from the newest event back, a part with each read, and
// later reads also go on where the one before has ended. Only one read at a time uses it.
type leadership struct {
	from, through int64          // the events after from, up to through, were read; 0 = none
	newest        *daemon.Event  // the event through
	begun         time.Time      // when the oldest of them was
	events        []daemon.Event // about the leader, the oldest first
}

// ledBy is a part of the history: the events about the leader.
type ledBy struct {
	events []daemon.Event // the oldest first
	begun  time.Time      // when the part begins
	whole  bool           // nothing is older
}

// read reads on, and returns the events about the leader that were read.
func (l *leadership) read(ctx context.Context, store storage.Store) (*ledBy, error) {
	head, oldest, err := l.forward(ctx, store)
	if err != nil {
		return nil, err
	}
	if l.from >= oldest && oldest > 0 {
		if err := l.back(ctx, store, max(oldest-1, l.from-mostSearched)); err != nil {
			return nil, err
		}
	}
	swept := slices.IndexFunc(l.events, func(e daemon.Event) bool { return e.Seq >= oldest })
	if swept < 0 {
		swept = len(l.events)
	}
	l.events = l.events[swept:] // earlier results stay as they are: what is appended comes after their end
	return &ledBy{l.events, l.begun, l.from < oldest || head == 0}, nil
}

// forward reads what has happened since the last read. It begins anew, at the end of the history, if this is the first
// read, if too much has happened, or if the history is another one.
func (l *leadership) forward(ctx context.Context, store storage.Store) (head, oldest int64, err error) {
	for {
		limit := eventsAtOnce
		if l.through == 0 {
			limit = 1 // to know the newest event
		}
		p, err := store.Events(ctx, max(l.through-1, 0), limit)
		if err != nil {
			return 0, 0, fmt.Errorf("read events: %w", err)
		}
		if l.through == 0 || p.Head-l.through > mostSearched || l.newest != nil && history.Replaced(p, l.newest) {
			*l = leadership{from: p.Head, through: p.Head}
			return p.Head, p.Oldest, nil
		}
		before := l.through
		for i := range p.Events {
			if e := &p.Events[i]; e.Seq > l.through {
				l.through, l.newest = e.Seq, e
				l.events = append(l.events, aboutLeader(*e)...)
			}
		}
		if l.through == before || l.through >= p.Head {
			return p.Head, p.Oldest, nil
		}
	}
}

// back reads the events after low that come before those that were read.
func (l *leadership) back(ctx context.Context, store storage.Store, low int64) error {
	var older []daemon.Event
	begun := time.Time{}
	for at := low; at < l.from; {
		p, err := store.Events(ctx, at, int(l.from-at))
		if err != nil {
			return fmt.Errorf("read events: %w", err)
		}
		if len(p.Events) == 0 {
			break // they were deleted meanwhile
		}
		for i := range p.Events {
			e := &p.Events[i]
			if at = e.Seq; at > l.from {
				break
			}
			if begun.IsZero() {
				begun = e.At
			}
			if l.newest == nil && e.Seq == l.through {
				l.newest = e
			}
			older = append(older, aboutLeader(*e)...)
		}
	}
	l.from, l.begun, l.events = low, begun, append(older, l.events...)
	return nil
}

// aboutLeader returns an event if it is about the leader.
func aboutLeader(e daemon.Event) []daemon.Event {
	if e.Kind == daemon.LeaderElected || e.Kind == daemon.LeaderLost {
		return []daemon.Event{e}
	}
	return nil
}

// readLeadership reads the events about the leader.
func (a *API) readLeadership(ctx context.Context) (*ledBy, error) {
	ctx, cancel := a.bounded(ctx)
	defer cancel()
	a.leading.Lock()
	defer a.leading.Unlock()
	return a.led.read(ctx, a.cfg.Store)
}
