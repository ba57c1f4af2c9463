package cli

import (
	"bytes"
	"context"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/internal/admin/view"
	"github.com/emitd/emitd/storage"
)

// replacedHistory is a history that a test may replace.
type replacedHistory struct {
	mu     sync.Mutex
	events []daemon.Event
}

// become makes the history a range of numbers, whose events have a kind.
func (h *replacedHistory) become(from, to int64, kind daemon.EventKind) {
	h.mu.Lock()
	defer h.mu.Unlock()
	at := time.Date(2030, 1, 31, 9, 0, 0, 0, time.UTC)
	h.events = slices.DeleteFunc(h.events, func(e daemon.Event) bool { return e.Seq >= from })
	for seq := from; seq <= to; seq++ {
		h.events = append(h.events, daemon.Event{Seq: seq, At: at, Kind: kind})
	}
}

// keep deletes the events before a number.
func (h *replacedHistory) keep(from int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.events = slices.DeleteFunc(h.events, func(e daemon.Event) bool { return e.Seq < from })
}

func (h *replacedHistory) Events(_ context.Context, after int64, limit int) (*storage.EventPage, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	p := &storage.EventPage{Oldest: h.events[0].Seq, Head: h.events[len(h.events)-1].Seq}
	for _, e := range h.events {
		if e.Seq > after && len(p.Events) < limit {
			p.Events = append(p.Events, e)
		}
	}
	return p, nil
}

// TestEventsOfAnotherHistory checks that following events notices that the store was restored, goes on with what the store
// has since, and says which events were deleted before it has read them.
func TestEventsOfAnotherHistory(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var out, text bytes.Buffer
		a := &app{Streams: Streams{Out: &out, Err: &text}, output: string(view.NameFormat), timeout: 10 * time.Second}
		ctx, cancel := context.WithCancel(t.Context())
		h := &replacedHistory{}
		h.become(1, 10, "first")
		ended := make(chan error)
		go func() {
			ended <- a.eventsOf(ctx, ctx, h, &eventPrinter{a: a, filter: view.EventFilter{Kind: "*"}, follow: true})
		}()
		shows := func(want, notice string) {
			t.Helper()
			time.Sleep(2 * followEvery)
			synctest.Wait()
			if got := strings.Join(strings.Fields(out.String()), " "); got != want {
				t.Errorf("printed %s, want %s", got, want)
			}
			if got := text.String(); !strings.Contains(got, notice) || (notice == "") != (got == "") {
				t.Errorf("said %q, want %q", got, notice)
			}
			out.Reset()
			text.Reset()
		}
		shows("1 2 3 4 5 6 7 8 9 10", "")
		h.become(7, 8, "second")
		shows("7 8", "the store has another history than that of event 10")
		h.become(8, 12, "third") // longer than what was read
		shows("8 9 10 11 12", "the store has another history than that of event 8")
		h.become(13, 20, "third")
		h.keep(18)
		shows("18 19 20", "events 13 to 17")
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
}
