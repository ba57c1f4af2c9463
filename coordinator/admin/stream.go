package admin

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/internal/admin/fault"
	"github.com/emitd/emitd/internal/admin/view"
)

// streamOperation is the call that follows the cluster.
func streamOperation() operation {
	params := parametersOf(reflect.TypeFor[streamIn]())
	return operation{
		name: "stream", method: http.MethodGet, path: "/stream", summary: "What happens in the cluster, as server-sent events",
		in: reflect.TypeFor[streamIn](),
		messages: map[string]reflect.Type{
			beginMessage: reflect.TypeFor[streamBegin](), eventMessage: reflect.TypeFor[view.Event](), overviewMessage: reflect.TypeFor[view.Overview](),
			resyncMessage: reflect.TypeFor[streamResync](), storeMessage: reflect.TypeFor[streamStore](),
			endMessage: reflect.TypeFor[streamEnd](),
		},
		serve: func(a *API, w http.ResponseWriter, r *http.Request) error {
			in := new(streamIn)
			if err := decode(r, params, reflect.ValueOf(in).Elem()); err != nil {
				return err
			}
			return a.stream(w, r, in)
		},
	}
}

type streamIn struct {
	eventFilter
	// Topics says what the stream has: events, overview, or both with a comma between.
	Topics string `query:"topics" default:"events"`
	// After is the number of the event after which the stream begins. Without it and Last-Event-ID it begins now.
	After int64 `query:"after" default:"-1" min:"-1"`
	// LastEventID is what a browser sends when it connects again. It counts instead of after.
	LastEventID string `header:"Last-Event-ID"`
}

// position returns after which event the stream begins; -1 is now.
func (in *streamIn) position() (int64, error) {
	if in.LastEventID == "" {
		return in.After, nil
	}
	n, err := strconv.ParseInt(in.LastEventID, 10, 64)
	if err != nil || n < 0 {
		return 0, badCall("Last-Event-ID is %.100q, want the number of an event", in.LastEventID)
	}
	return n, nil
}

// The kinds of messages of a stream. Each has an ID, the number of the event up to which the stream is complete.
const (
	beginMessage    = "begin"    // streamBegin, once, first
	eventMessage    = "event"    // view.Event
	overviewMessage = "overview" // view.Overview
	resyncMessage   = "resync"   // streamResync: events are missing, read the state anew
	storeMessage    = "store"    // streamStore: the store does not answer, or answers again
	endMessage      = "end"      // streamEnd, last: the stream ends, and a new one would be refused
)

// streamBegin says where a stream begins: after which event.
type streamBegin struct {
	After int64 `json:"after"`
}

// streamResync says that the events between the message before and this one are missing.
type streamResync struct {
	After int64  `json:"after"` // the stream goes on after this event
	Why   string `json:"why"`
}

// streamStore says whether the store answers.
type streamStore struct {
	Answers bool           `json:"answers"`
	Problem *fault.Problem `json:"problem"` // why it does not; null if it does
}

// streamEnd says why a stream ends that would otherwise go on.
type streamEnd struct {
	Problem fault.Problem `json:"problem"`
}

// Timings of a stream.
const (
	keepAliveEvery = 15 * time.Second
	writeTimeout   = 10 * time.Second // of one write; a reader that is slower is cut off
	reconnectAfter = time.Second      // told to browsers
)

// stream answers with what happens, until the caller goes, its token is revoked or the node stops.
func (a *API) stream(w http.ResponseWriter, r *http.Request, in *streamIn) error {
	filter, err := in.view(0)
	if err != nil {
		return err
	}
	topics := strings.Split(in.Topics, ",")
	for _, t := range topics {
		if t != "events" && t != "overview" {
			return badCall("topics is %.100q, want events, overview or events,overview", in.Topics)
		}
	}
	at, err := in.position()
	if err != nil {
		return err
	}
	overview := slices.Contains(topics, "overview")
	l, err := a.hub.join(r.Context(), overview)
	if err != nil {
		return err
	}
	defer a.hub.leave(l)
	h := w.Header()
	h.Set("Content-Type", "text/event-stream")
	h.Set("Cache-Control", "no-store, no-transform")
	h.Set("X-Accel-Buffering", "no") // nginx passes each message on
	w.WriteHeader(http.StatusOK)
	s := &stream{
		api: a, filter: filter, events: slices.Contains(topics, "events"), overview: overview, at: at, since: l.since, answers: true,
		w: w, control: http.NewResponseController(w),
	}
	_ = s.run(r.Context(), l.poller) // an error means that the caller has gone
	return nil
}

// stream is one stream.
type stream struct {
	api              *API
	filter           view.EventFilter
	events, overview bool

	at        int64 // the event up to which the stream is complete; -1 until it has begun
	begun     bool
	since     int // how many reads of the history had begun before it
	restarts  int
	overviews int
	answers   bool // what was told about the store

	w       http.ResponseWriter
	control *http.ResponseController
	unsent  bool
}

// run sends what the poller has, until ctx ends or the node stops.
func (s *stream) run(ctx context.Context, p *poller) error {
	keepAlive := time.NewTicker(keepAliveEvery)
	defer keepAlive.Stop()
	if err := s.raw("retry: %d\n\n", reconnectAfter.Milliseconds()); err != nil {
		return err
	}
	for {
		g := p.changesAfter(s.at)
		if g.ended {
			return nil
		}
		more, err := s.show(ctx, g)
		if err != nil {
			return err
		}
		if err := s.flush(); err != nil {
			return err
		}
		if more {
			continue
		}
		select {
		case <-g.changed:
		case <-keepAlive.C:
			// The ID alone is no message, but the browser remembers it: a filter may let nothing through for long.
			if err := s.raw(": keep-alive\n%s\n", s.id()); err != nil {
				return err
			}
		case <-ctx.Done():
			return s.end(ctx)
		}
	}
}

// end tells the listener that its right has ended, if that is why the stream ends.
func (s *stream) end(ctx context.Context) error {
	ended := revoked(ctx)
	if ended == nil {
		return ctx.Err()
	}
	if err := s.send(endMessage, streamEnd{s.api.problemOf(ended)}); err != nil {
		return err
	}
	return s.flush()
}

// show sends what is new, and reports whether there is more to show at once.
func (s *stream) show(ctx context.Context, g changes) (more bool, err error) {
	if answers := g.away == nil; answers != s.answers {
		s.answers = answers
		if err := s.send(storeMessage, streamStore{answers, g.away}); err != nil {
			return false, err
		}
	}
	if !g.known {
		return false, nil
	}
	if !s.begun {
		if s.at > g.last && g.read <= s.since {
			return false, nil // another node was quicker to read that event
		}
		return true, s.begin(g)
	}
	if s.overview && g.overview != nil && g.overviews != s.overviews {
		s.overviews = g.overviews
		if err := s.send(overviewMessage, g.overview); err != nil {
			return false, err
		}
	}
	switch {
	case g.restarts != s.restarts:
		s.restarts = g.restarts
		return true, s.resync(g.last, "the store has another history")
	case !s.events:
		s.at = g.last
		return false, nil
	case s.at > g.last:
		return false, nil
	case g.behind:
		return true, s.catchUp(ctx, g)
	}
	for i := range g.events {
		if err := s.event(&g.events[i]); err != nil {
			return false, err
		}
	}
	return len(g.events) > 0, nil
}

// begin says where the stream begins. A position after the newest event is one of another history.
func (s *stream) begin(g changes) error {
	s.begun, s.restarts = true, g.restarts
	lost := s.at > g.last
	if s.at < 0 || lost {
		s.at = g.last
	}
	if err := s.send(beginMessage, streamBegin{s.at}); err != nil || !lost {
		return err
	}
	return s.resync(g.last, "the store has another history")
}

// mostMissed is how many events a stream reads from the store for a listener that is behind.
const mostMissed = mostSearched

// catchUp sends events that the poller has no more.
func (s *stream) catchUp(ctx context.Context, g changes) error {
	if missed := g.last - s.at; missed > mostMissed {
		return s.resync(g.last, fmt.Sprintf("%d events were missed", missed))
	}
	ctx, cancel := s.api.bounded(ctx)
	defer cancel()
	page, err := s.api.cfg.Store.Events(ctx, s.at, eventsAtOnce)
	if err != nil {
		return err // the browser connects again
	}
	if len(page.Events) == 0 || page.Events[0].Seq != s.at+1 {
		return s.resync(g.last, "the events were deleted")
	}
	for i := range page.Events {
		if err := s.event(&page.Events[i]); err != nil {
			return err
		}
	}
	return nil
}

// event sends an event if the filter selects it.
func (s *stream) event(e *daemon.Event) error {
	s.at = e.Seq
	if !s.filter.Selects(e, time.Time{}) {
		return nil
	}
	return s.send(eventMessage, view.EventOf(*e))
}

// resync tells the listener to read the state anew.
func (s *stream) resync(at int64, why string) error {
	s.at = at
	return s.send(resyncMessage, streamResync{at, why})
}

// send writes a message.
func (s *stream) send(kind string, data any) error {
	text, err := json.Marshal(data)
	if err != nil {
		return fmt.Errorf("marshal a %s: %w", kind, err)
	}
	return s.raw("%sevent: %s\ndata: %s\n\n", s.id(), kind, text)
}

// id returns the line that says up to which event the stream is complete; none before it has begun.
func (s *stream) id() string {
	if !s.begun {
		return ""
	}
	return fmt.Sprintf("id: %d\n", s.at)
}

// raw writes to the answer.
func (s *stream) raw(format string, args ...any) error {
	_ = s.control.SetWriteDeadline(time.Now().Add(writeTimeout)) // not every server has deadlines
	s.unsent = true
	_, err := fmt.Fprintf(s.w, format, args...)
	return err
}

// flush sends what was written.
func (s *stream) flush() error {
	if !s.unsent {
		return nil
	}
	s.unsent = false
	err := s.control.Flush()
	_ = s.control.SetWriteDeadline(time.Time{}) // with HTTP/2 it would end the stream while nothing happens
	return err
}
