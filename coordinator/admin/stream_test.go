package admin

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/internal/inflight"
	"github.com/emitd/emitd/queue"
	"github.com/emitd/emitd/queue/queuetest"
	"github.com/emitd/emitd/storage"
)

// script is a store whose history the test writes. It counts its reads.
type script struct {
	storage.Store
	mu     sync.Mutex
	events []daemon.Event
	down   bool
	reads  int
}

func (s *script) Events(_ context.Context, after int64, limit int) (*storage.EventPage, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reads++
	if s.down {
		return nil, fmt.Errorf("events: %w", storage.ErrUnavailable)
	}
	return (&historyStore{events: s.events}).Events(context.Background(), after, limit)
}

func (s *script) Snapshot(context.Context) (*daemon.Snapshot, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.reads++
	snap := &daemon.Snapshot{Now: time.Now()}
	if n := len(s.events); n > 0 {
		snap.Head = s.events[n-1].Seq
	}
	return snap, nil
}

// happen adds events.
func (s *script) happen(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for range n {
		seq := int64(1)
		if len(s.events) > 0 {
			seq = s.events[len(s.events)-1].Seq + 1
		}
		kind := daemon.AssignmentActive
		if seq%10 == 0 {
			kind = daemon.LeaderElected
		}
		s.events = append(s.events, daemon.Event{Seq: seq, At: time.Now(), Kind: kind})
	}
}

func (s *script) set(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
}

func (s *script) count() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.reads
}

// message is one message of a stream.
type message struct {
	id, kind, data string
}

// browser reads a stream in virtual time.
type browser struct {
	mu     sync.Mutex
	text   bytes.Buffer
	header http.Header
	status int
	stuck  bool // its connection takes nothing any more
	cancel context.CancelFunc
	done   chan struct{}
}

func (b *browser) Header() http.Header { return b.header }
func (b *browser) WriteHeader(n int)   { b.status = n }
func (b *browser) Flush()              {}
func (b *browser) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.stuck {
		return 0, errors.New("i/o timeout")
	}
	return b.text.Write(p)
}

// connect opens a stream.
func connect(t *testing.T, a http.Handler, query string, header ...string) *browser {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	b := &browser{header: http.Header{}, cancel: cancel, done: make(chan struct{})}
	r := request(t, "GET", root+"/stream?"+query, "", header...).WithContext(ctx)
	go func() {
		defer close(b.done)
		a.ServeHTTP(b, r)
	}()
	synctest.Wait()
	return b
}

func (b *browser) leave() {
	b.cancel()
	<-b.done
}

// messages returns what has arrived since the last call, and how many keep-alives there were.
func (b *browser) messages(t *testing.T) (out []message, keepAlives int) {
	t.Helper()
	synctest.Wait()
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, part := range strings.Split(b.text.String(), "\n\n") {
		var m message
		for line := range strings.SplitSeq(part, "\n") {
			switch field, value, _ := strings.Cut(line, ": "); field {
			case "id":
				m.id = value
			case "event":
				m.kind = value
			case "data":
				m.data = value
			case "":
				if strings.HasPrefix(line, ": ") {
					keepAlives++
				}
			}
		}
		if m.kind != "" {
			out = append(out, m)
		}
	}
	b.text.Reset()
	return out, keepAlives
}

// seqs returns the numbers of the events among messages, and the kinds of the others.
func seqs(t *testing.T, messages []message) (events []int64, others []string) {
	t.Helper()
	for _, m := range messages {
		if m.kind != eventMessage {
			others = append(others, m.kind)
			continue
		}
		var e daemon.Event
		if err := json.Unmarshal([]byte(m.data), &e); err != nil || strconv.FormatInt(e.Seq, 10) != m.id {
			t.Errorf("%+v: %v", m, err)
		}
		events = append(events, e.Seq)
	}
	return events, others
}

// expect compares the events and the other messages that have arrived.
func (b *browser) expect(t *testing.T, what string, first, last int64, others ...string) {
	t.Helper()
	got, _ := b.messages(t)
	events, kinds := seqs(t, got)
	var want []int64
	for n := first; n <= last; n++ {
		want = append(want, n)
	}
	if !slices.Equal(events, want) || !slices.Equal(kinds, others) {
		t.Errorf("%s: events %v and %v, want %d to %d and %v", what, events, kinds, first, last, others)
	}
}

func streaming(t *testing.T, test func(t *testing.T, s *script, a *API)) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := &script{}
		s.happen(20)
		test(t, s, api(t, s))
	})
}

// TestStream: a stream has each event once and in order. Whoever comes back with the ID of the last message misses
// nothing, whether the poller still has the events or not.
func TestStream(t *testing.T) {
	streaming(t, func(t *testing.T, s *script, a *API) {
		b := connect(t, a, "")
		b.expect(t, "the beginning", 1, 0, beginMessage)
		s.happen(3)
		time.Sleep(pollEvery)
		b.expect(t, "three events", 21, 23)
		b.leave()
		s.happen(2 * eventsAtOnce)
		again := connect(t, a, "", "Last-Event-ID", "23")
		again.expect(t, "resumed from the store", 24, 23+2*eventsAtOnce, beginMessage)
		late := connect(t, a, "after=1000")
		late.expect(t, "after a number", 1001, 23+2*eventsAtOnce, beginMessage)
		s.happen(mostRecent + 100)
		time.Sleep(5 * pollEvery)
		again.expect(t, "more than is kept", 1024, 1123+mostRecent)
		late.leave()
		again.leave()
		if b.status != 200 || b.header.Get("Content-Type") != "text/event-stream" || b.header.Get("X-Accel-Buffering") != "no" {
			t.Errorf("%d %v", b.status, b.header)
		}
	})
}

// TestStreamMoves: whoever comes from another node, which has read more already, misses nothing and gets nothing twice.
func TestStreamMoves(t *testing.T) {
	streaming(t, func(t *testing.T, s *script, a *API) {
		for _, query := range []string{"", "topics=events,overview"} {
			slow := connect(t, a, query)
			slow.messages(t)
			s.happen(3)
			head := int64(len(s.events))
			moved := connect(t, a, query, "Last-Event-ID", strconv.FormatInt(head, 10))
			s.happen(2)
			time.Sleep(3 * pollEvery)
			got, _ := moved.messages(t)
			events, kinds := seqs(t, got)
			if !slices.Equal(events, []int64{head + 1, head + 2}) || slices.Contains(kinds, resyncMessage) || got[0].id != strconv.FormatInt(head, 10) {
				t.Errorf("%q: %v, %v, %+v", query, events, kinds, got[0])
			}
			moved.leave()
			slow.leave()
		}
	})
}

// TestStreamFilter: a filter lets through what it selects, and the ID moves on all the same: whoever comes back is not
// behind.
func TestStreamFilter(t *testing.T) {
	streaming(t, func(t *testing.T, s *script, a *API) {
		b := connect(t, a, "kind=leader.*&after=0")
		defer b.leave()
		got, _ := b.messages(t)
		if events, _ := seqs(t, got); !slices.Equal(events, []int64{10, 20}) {
			t.Errorf("%v", events)
		}
		s.happen(5)
		time.Sleep(2 * keepAliveEvery)
		b.mu.Lock()
		text := b.text.String()
		b.mu.Unlock()
		if want := ": keep-alive\nid: 25\n\n"; strings.Count(text, want) < 1 || strings.Contains(text, "event:") {
			t.Errorf("%q has not %q", text, want)
		}
	})
}

// TestStreamCost: a hundred streams cost one call to the store in a second, and none when all have gone.
func TestStreamCost(t *testing.T) {
	streaming(t, func(t *testing.T, s *script, a *API) {
		for _, query := range []string{"", "topics=overview,events"} {
			var all []*browser
			for range 100 {
				all = append(all, connect(t, a, query))
			}
			before := s.count()
			const seconds = 60
			time.Sleep(seconds * time.Second)
			if n := s.count() - before; n > seconds+1 || n < seconds-1 {
				t.Errorf("topics %q: %d calls in %d s", query, n, seconds)
			}
			for _, b := range all {
				b.leave()
			}
			before = s.count()
			time.Sleep(time.Minute)
			if n := s.count() - before; n != 0 {
				t.Errorf("topics %q: %d calls for nobody", query, n)
			}
		}
	})
}

// TestStreamOverview: the topic overview has the cluster in numbers, again and again, and no events.
func TestStreamOverview(t *testing.T) {
	streaming(t, func(t *testing.T, s *script, a *API) {
		b := connect(t, a, "topics=overview")
		defer b.leave()
		s.happen(5)
		time.Sleep(2 * overviewEvery * pollEvery)
		got, _ := b.messages(t)
		events, kinds := seqs(t, got)
		if len(events) != 0 || len(kinds) < 3 || kinds[0] != beginMessage || kinds[1] != overviewMessage || got[len(got)-1].id != "25" {
			t.Errorf("%v, %+v", events, got)
		}
	})
}

// followed are queues that note who reads their counts. Each answer takes memory of the call that wants it.
type followed struct {
	*declaredQueues
	mu  sync.Mutex
	who []string // since the last call of readers
}

type whoKey struct{}

func (f *followed) Stats(ctx context.Context, name string) (*queue.Stats, error) {
	inflight.FromContext(ctx).Take(1000)
	who, _ := ctx.Value(whoKey{}).(string)
	f.mu.Lock()
	f.who = append(f.who, who)
	f.mu.Unlock()
	return f.declaredQueues.Stats(ctx, name)
}

// readers returns who has read since the last call.
func (f *followed) readers() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	out := f.who
	f.who = nil
	return out
}

// following calls test with an API whose queues are followed. Its calls are those of whom the header From names, and
// take memory of a budget.
func following(t *testing.T, test func(t *testing.T, f *followed, budget *inflight.Budget, a http.Handler)) {
	streaming(t, func(t *testing.T, s *script, _ *API) {
		f := &followed{declaredQueues: &declaredQueues{Queue: queuetest.New(), names: []string{"mail", "reports"}}}
		a := api(t, s, func(c *Config) { c.Queues = f })
		budget := inflight.New(1<<30, 10)
		test(t, f, budget, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			call, _ := budget.Begin()
			defer call.End()
			ctx := context.WithValue(r.Context(), whoKey{}, r.Header.Get("From"))
			a.ServeHTTP(w, r.WithContext(inflight.NewContext(ctx, call)))
		}))
	})
}

// TestStreamTakesNoMemory: what is read for a stream again and again does not count as held by its call.
func TestStreamTakesNoMemory(t *testing.T) {
	following(t, func(t *testing.T, f *followed, budget *inflight.Budget, a http.Handler) {
		b := connect(t, a, "topics=overview")
		defer b.leave()
		time.Sleep(time.Hour)
		synctest.Wait()
		if held, calls := budget.Held(); held != 0 || calls != 1 || len(f.readers()) < 1000 {
			t.Errorf("%d bytes are held by %d calls", held, calls)
		}
	})
}

// TestStreamReadsForWhoIsThere: when a listener has gone, nothing is read in its name any more.
func TestStreamReadsForWhoIsThere(t *testing.T) {
	following(t, func(t *testing.T, f *followed, _ *inflight.Budget, a http.Handler) {
		alice, bob := connect(t, a, "topics=overview", "From", "alice"), connect(t, a, "topics=overview", "From", "bob")
		defer bob.leave()
		time.Sleep(time.Minute)
		alice.leave()
		synctest.Wait()
		if who := f.readers(); len(who) == 0 {
			t.Error("nothing was read")
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if who := f.readers(); len(who) == 0 || slices.Contains(who, "alice") || slices.Contains(who, "") {
			t.Errorf("read for bob in the names of %q", who)
		}
	})
}

// TestStreamResync: who has missed too much, or events that were deleted, or another history, is told to read the state
// anew, and the stream goes on from now.
func TestStreamResync(t *testing.T) {
	streaming(t, func(t *testing.T, s *script, a *API) {
		s.happen(mostMissed + 100)
		far := connect(t, a, "", "Last-Event-ID", "1")
		far.expect(t, "too far behind", 1, 0, beginMessage, resyncMessage)
		s.set(func() { s.events = s.events[5000:] })
		gone := connect(t, a, "", "Last-Event-ID", "4000")
		gone.expect(t, "deleted events", 1, 0, beginMessage, resyncMessage)
		future := connect(t, a, "", "Last-Event-ID", "9000")
		time.Sleep(pollEvery)
		future.expect(t, "a number of another history", 1, 0, beginMessage, resyncMessage)
		s.happen(1)
		time.Sleep(pollEvery)
		all := []*browser{far, gone, future}
		for _, b := range all {
			b.expect(t, "afterwards", 20+mostMissed+101, 20+mostMissed+101)
		}
		s.set(func() { s.events = s.events[:0] })
		s.happen(3)
		time.Sleep(2 * pollEvery)
		for _, b := range all {
			b.expect(t, "a store that was replaced", 1, 0, resyncMessage)
		}
		s.set(func() { s.events[2].At = s.events[2].At.Add(time.Hour) })
		s.happen(4)
		time.Sleep(2 * pollEvery)
		for _, b := range all {
			b.expect(t, "another history that is longer", 1, 0, resyncMessage)
			b.leave()
		}
	})
}

// TestStreamStoreAway: a stream outlives the absence of the store, says when it begins and ends, and misses nothing.
func TestStreamStoreAway(t *testing.T) {
	streaming(t, func(t *testing.T, s *script, a *API) {
		s.set(func() { s.down = true })
		b := connect(t, a, "")
		got, _ := b.messages(t)
		if len(got) != 1 || got[0].kind != storeMessage || got[0].id != "" || !strings.Contains(got[0].data, "E5101") {
			t.Errorf("%+v", got)
		}
		s.set(func() { s.down = false })
		time.Sleep(pollEvery)
		b.expect(t, "the store is back", 1, 0, storeMessage, beginMessage)
		s.set(func() { s.down = true })
		time.Sleep(2 * pollEvery)
		s.set(func() { s.down = false })
		s.happen(2)
		time.Sleep(2 * pollEvery)
		got, _ = b.messages(t)
		if events, kinds := seqs(t, got); !slices.Equal(events, []int64{21, 22}) || !slices.Equal(kinds, []string{storeMessage, storeMessage}) {
			t.Errorf("%v %v", events, kinds)
		}
		b.leave()
	})
}

// TestStreamSlowReader: a reader that takes nothing ends only its own stream.
func TestStreamSlowReader(t *testing.T) {
	streaming(t, func(t *testing.T, s *script, a *API) {
		slow, quick := connect(t, a, ""), connect(t, a, "")
		slow.mu.Lock()
		slow.stuck = true
		slow.mu.Unlock()
		s.happen(2)
		time.Sleep(pollEvery)
		<-slow.done
		quick.expect(t, "the other", 21, 22, beginMessage)
		quick.leave()
	})
}

// TestStreamEnds: Close ends the streams, so that a server can shut down, and refuses further ones. Too many streams are
// refused, too.
func TestStreamEnds(t *testing.T) {
	streaming(t, func(t *testing.T, s *script, a *API) {
		var all []*browser
		for range mostListeners {
			all = append(all, connect(t, a, ""))
		}
		if w := do(t, a, request(t, "GET", root+"/stream", ""), nil); w.Code != http.StatusTooManyRequests {
			t.Errorf("%d %s", w.Code, w.Body)
		}
		for _, query := range []string{"topics=jobs", "kind=[", "after=x"} {
			if w := do(t, a, request(t, "GET", root+"/stream?"+query, ""), nil); w.Code != http.StatusBadRequest {
				t.Errorf("%s: %d %s", query, w.Code, w.Body)
			}
		}
		if w := do(t, a, request(t, "GET", root+"/stream", "", "Last-Event-ID", "x"), nil); w.Code != http.StatusBadRequest {
			t.Errorf("%d %s", w.Code, w.Body)
		}
		a.Close()
		for _, b := range all {
			<-b.done
		}
		if w := do(t, a, request(t, "GET", root+"/stream", ""), nil); w.Code != http.StatusServiceUnavailable {
			t.Errorf("%d %s", w.Code, w.Body)
		}
	})
}
