package admin

import (
	"context"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/internal/admin/fault"
	"github.com/emitd/emitd/internal/admin/view"
	"github.com/emitd/emitd/internal/coordinator/history"
	"github.com/emitd/emitd/internal/inflight"
)

// hub lets all streams share one poller of the store. The poller runs only while somebody listens.
type hub struct {
	api *API

	mu        sync.Mutex
	ended     bool
	poller    *poller // nil while nobody listens
	listeners []*listener
}

// listener is one stream.
type listener struct {
	poller   *poller
	call     context.Context
	overview bool // it wants the overview
	since    int  // how many reads of the history had begun before it
}

// mostListeners bounds the streams of one process.
const mostListeners = 1000

// join adds a listener. leave must follow.
func (h *hub) join(ctx context.Context, overview bool) (*listener, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case h.ended:
		return nil, refused(http.StatusServiceUnavailable, "this node stops")
	case len(h.listeners) == mostListeners:
		return nil, refused(http.StatusTooManyRequests, "%d streams are open on this node", len(h.listeners))
	}
	if h.poller == nil {
		p := newPoller(h.api)
		life, cancel := context.WithCancel(context.Background())
		h.poller, p.cancel = p, cancel
		defer func() { go p.run(life) }() // its first poll knows what is wanted
	}
	l := &listener{h.poller, ctx, overview, h.poller.reads()}
	h.listeners = append(h.listeners, l)
	if overview {
		l.poller.wantOverview(1)
	}
	return l, nil
}

// leave removes a listener. The last one ends the poller.
func (h *hub) leave(l *listener) {
	if l.overview {
		l.poller.wantOverview(-1)
	}
	h.mu.Lock()
	h.listeners = slices.DeleteFunc(h.listeners, func(other *listener) bool { return other == l })
	last := len(h.listeners) == 0
	if last {
		h.poller = nil
		l.poller.cancel()
	}
	h.mu.Unlock()
	if last {
		<-l.poller.done
	}
}

// onBehalf returns the values of the call of a listener that is there: other nodes answer for their queues only to
// somebody who may know. What they answer does not count as memory of that call, which may last for days.
func (h *hub) onBehalf() context.Context {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, l := range h.listeners {
		if l.call.Err() == nil {
			return inflight.NewContext(context.WithoutCancel(l.call), nil)
		}
	}
	return context.Background()
}

// end ends all streams.
func (h *hub) end() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ended = true
	if h.poller != nil {
		h.poller.finish()
	}
}

// poller reads the store for all listeners, and keeps the newest events for them.
//
// A listener has a position of its own in the history, so a slow one holds up nobody and needs no buffer. It takes what it
// lacks from the poller's events or, if it is further behind, from the store.
type poller struct {
	api    *API
	cancel context.CancelFunc
	done   chan struct{} // closed when run has returned

	mu        sync.Mutex
	changed   chan struct{} // closed at the next change of what follows, and replaced
	ended     bool
	away      *fault.Problem // why the store does not answer; nil if it does
	known     bool           // the history was read
	restarts  int            // how often the history was found to be another one
	last      int64          // the newest event
	reading   int            // how many reads of the history have begun
	read      int            // which of them has read all that is new
	awaited   bool           // a listener has seen a later event than last
	recent    []daemon.Event // the newest events, without gaps, up to last
	overview  *view.Overview // nil until it was read
	overviews int            // how often it was read
	wanted    int            // how many listeners want the overview
}

// Limits of the poller.
const (
	pollEvery     = time.Second
	overviewEvery = 2       // polls
	mostRecent    = 1 << 10 // events that are kept
)

func newPoller(a *API) *poller {
	return &poller{api: a, done: make(chan struct{}), changed: make(chan struct{})}
}

// run polls the store until ctx ends.
func (p *poller) run(ctx context.Context) {
	defer close(p.done)
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for n := 0; ; n++ {
		p.poll(ctx, n)
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// poll reads what is new. The overview has the number of the newest event, so while nothing happens a poll reads either
// the overview or the events.
func (p *poller) poll(life context.Context, n int) {
	ctx, cancel := p.api.bounded(p.api.hub.onBehalf())
	defer cancel()
	defer context.AfterFunc(life, cancel)()
	var err error
	quiet := false
	if n%overviewEvery == 0 && p.wantOverview(0) {
		quiet, err = p.readOverview(ctx)
	}
	for more := !quiet; more && err == nil; {
		more, err = p.readEvents(ctx)
	}
	if life.Err() == nil {
		p.answered(err)
	}
}

// readOverview reads the overview, and reports whether there are no new events.
func (p *poller) readOverview(ctx context.Context) (quiet bool, err error) {
	s, err := p.api.whole(ctx, false, defaultMaxWait)
	if err != nil {
		return false, err
	}
	o := s.Overview()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.overview, p.overviews = &o, p.overviews+1
	p.wake()
	return p.known && p.last == s.Store.Head, nil
}

// readEvents reads a page of events after the newest known one, and reports whether there are more. It reads that one
// again: if it is another event now, so is the history (a restored backup, a new store).
func (p *poller) readEvents(ctx context.Context) (more bool, err error) {
	p.mu.Lock()
	known, last, recent := p.known, p.last, p.recent
	p.reading++
	p.mu.Unlock()
	if !known {
		page, err := p.api.cfg.Store.Events(ctx, 0, 1)
		if err == nil {
			p.begin(page.Head)
		}
		return false, err
	}
	page, err := p.api.cfg.Store.Events(ctx, max(last-1, 0), eventsAtOnce)
	if err != nil {
		return false, err
	}
	if page.Head < last || len(recent) > 0 && history.Replaced(page, &recent[len(recent)-1]) {
		p.restart(page.Head)
		return false, nil
	}
	p.add(page.Events)
	return len(page.Events) == eventsAtOnce, nil
}

// begin notes the newest event.
func (p *poller) begin(head int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.known, p.last, p.read = true, head, p.reading
	p.wake()
}

// restart begins anew with another history.
func (p *poller) restart(head int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.restarts++
	p.last, p.recent, p.read = head, nil, p.reading
	p.wake()
}

// add notes new events.
func (p *poller) add(events []daemon.Event) {
	p.mu.Lock()
	defer p.mu.Unlock()
	before := p.last
	if len(events) < eventsAtOnce { // these are all
		p.read = p.reading
	}
	for _, e := range events {
		switch {
		case e.Seq > p.last+1: // the events between were deleted before they were read
			p.recent = nil
			fallthrough
		case e.Seq > p.last:
			p.recent, p.last = append(p.recent, e), e.Seq
		case e.Seq == p.last && len(p.recent) == 0: // the newest event when the poller began
			p.recent = append(p.recent, e)
		}
	}
	if over := len(p.recent) - mostRecent; over > 0 {
		p.recent = append([]daemon.Event(nil), p.recent[over:]...) // what is cut off is freed
	}
	if p.last != before || p.awaited {
		p.awaited = false
		p.wake()
	}
}

// answered notes whether the store answers.
func (p *poller) answered(err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case err != nil && p.away == nil:
		problem := p.api.problemOf(err)
		p.away = &problem
		p.wake()
	case err == nil && p.away != nil:
		p.away = nil
		p.wake()
	}
}

// finish ends all streams.
func (p *poller) finish() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ended = true
	p.wake()
}

// wantOverview adds a listener that wants the overview, or takes one away, and reports whether there are any.
func (p *poller) wantOverview(n int) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.wanted += n; p.wanted == 0 {
		p.overview = nil // it grows old from now on
	}
	return p.wanted > 0
}

// reads returns how many reads of the history have begun.
func (p *poller) reads() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.reading
}

// wake wakes all listeners. The caller holds mu.
func (p *poller) wake() {
	close(p.changed)
	p.changed = make(chan struct{})
}

// changes is what a listener gets of the poller.
type changes struct {
	changed      <-chan struct{} // closed when there is more to see
	ended, known bool
	away         *fault.Problem
	restarts     int
	last         int64
	read         int            // which read of the history has shown this
	events       []daemon.Event // after the listener's position
	behind       bool           // the events after the position are not kept any more
	overview     *view.Overview
	overviews    int
}

// changesAfter returns what is new after an event.
func (p *poller) changesAfter(after int64) changes {
	p.mu.Lock()
	defer p.mu.Unlock()
	g := changes{
		changed: p.changed, ended: p.ended, known: p.known, away: p.away, restarts: p.restarts, last: p.last, read: p.read,
		overview: p.overview, overviews: p.overviews,
	}
	switch missing := p.last - after; {
	case !p.known || missing <= 0:
		p.awaited = p.awaited || missing < 0
	case missing > int64(len(p.recent)):
		g.behind = true
	default:
		g.events = p.recent[int64(len(p.recent))-missing:] // never written to
	}
	return g
}
