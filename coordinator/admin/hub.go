package admin

import (
	"context"
	"net/http"
	"sync"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/internal/admin/fault"
	"github.com/emitd/emitd/internal/admin/view"
	"github.com/emitd/emitd/internal/coordinator/history"
)

// hub lets all streams share one poller of the store. The poller runs only while somebody listens.
type hub struct {
	api *API

	mu        sync.Mutex
	ended     bool
	poller    *poller // nil while nobody listens
	listeners int
}

// mostListeners bounds the streams of one process.
const mostListeners = 1000

// join adds a listener. leave must follow.
func (h *hub) join(ctx context.Context, overview bool) (*poller, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case h.ended:
		return nil, refused(http.StatusServiceUnavailable, "this node stops")
	case h.listeners == mostListeners:
		return nil, refused(http.StatusTooManyRequests, "%d streams are open on this node", h.listeners)
	}
	if h.poller == nil {
		h.poller = newPoller(h.api)
		ctx, h.poller.cancel = context.WithCancel(context.WithoutCancel(ctx)) // it outlives the stream that starts it
		defer func(p *poller) { go p.run(ctx) }(h.poller)                     // its first poll knows what is wanted
	}
	h.listeners++
	if overview {
		h.poller.wantOverview(1)
	}
	return h.poller, nil
}

// leave removes a listener. The last one ends the poller.
func (h *hub) leave(p *poller, overview bool) {
	if overview {
		p.wantOverview(-1)
	}
	h.mu.Lock()
	h.listeners--
	last := h.listeners == 0
	if last {
		h.poller = nil
		p.cancel()
	}
	h.mu.Unlock()
	if last {
		<-p.done
	}
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
	ctx, cancel := p.api.bounded(life)
	defer cancel()
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
	p.known, p.last = true, head
	p.wake()
}

// restart begins anew with another history.
func (p *poller) restart(head int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.restarts++
	p.last, p.recent = head, nil
	p.wake()
}

// add notes new events.
func (p *poller) add(events []daemon.Event) {
	p.mu.Lock()
	defer p.mu.Unlock()
	before := p.last
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
	if p.last != before {
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
		changed: p.changed, ended: p.ended, known: p.known, away: p.away, restarts: p.restarts, last: p.last,
		overview: p.overview, overviews: p.overviews,
	}
	switch missing := p.last - after; {
	case !p.known || missing <= 0:
	case missing > int64(len(p.recent)):
		g.behind = true
	default:
		g.events = p.recent[int64(len(p.recent))-missing:] // never written to
	}
	return g
}
