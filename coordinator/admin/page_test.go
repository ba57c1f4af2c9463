package admin

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"net/url"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/internal/admin/body"
	"github.com/emitd/emitd/internal/admin/view"
	"github.com/emitd/emitd/storage"
)

// TestPages: whoever follows the cursors of a list sees each entry that is there all the time exactly once, whatever comes
// and goes between two pages, and no entry twice.
func TestPages(t *testing.T) {
	t.Parallel()
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 1))
		var list, constant []int
		for n := range 60 {
			if r.IntN(3) == 0 {
				constant = append(constant, 2*n)
			}
		}
		churn := func() {
			list = slices.Clone(constant)
			for n := range 60 {
				if r.IntN(2) == 0 {
					list = append(list, 2*n+1)
				}
			}
			slices.Sort(list)
		}
		var seen []int
		in := paging{Limit: 1 + r.IntN(10)}
		for pages := 0; ; pages++ {
			churn()
			part, next, err := page(list, in, "numbers", func(n *int) int { return *n }, cmp.Compare)
			if err != nil || len(part) > in.Limit || pages > 200 {
				t.Fatalf("seed %d: page %d has %v, %v", seed, pages, part, err)
			}
			seen = append(seen, part...)
			if next == nil {
				break
			}
			in.Cursor = *next
		}
		if !slices.IsSorted(seen) || len(slices.Compact(slices.Clone(seen))) != len(seen) {
			t.Fatalf("seed %d: an entry is listed twice: %v", seed, seen)
		}
		for _, n := range constant {
			if !slices.Contains(seen, n) {
				t.Fatalf("seed %d: %d is left out: %v", seed, n, seen)
			}
		}
	}
}

// historyStore is a store with a history of its own: events first to head.
type historyStore struct {
	storage.Store
	events []daemon.Event
	reads  int // calls
	read   int // events
}

func (h *historyStore) Events(_ context.Context, after int64, limit int) (*storage.EventPage, error) {
	h.reads++
	p := &storage.EventPage{}
	if n := len(h.events); n > 0 {
		p.Oldest, p.Head = h.events[0].Seq, h.events[n-1].Seq
	}
	i, _ := slices.BinarySearchFunc(h.events, after+1, func(e daemon.Event, seq int64) int { return cmp.Compare(e.Seq, seq) })
	p.Events = h.events[i:min(i+max(limit, 0), len(h.events))]
	h.read += len(p.Events)
	return p, nil
}

func (h *historyStore) Snapshot(context.Context) (*daemon.Snapshot, error) {
	return &daemon.Snapshot{Now: time.Unix(1_000_000, 0)}, nil
}

// newHistory returns a history in which one event per second happened, and the last of them just now.
func newHistory(first, head int64) *historyStore {
	h := &historyStore{}
	kinds := []daemon.EventKind{daemon.LeaderElected, "assignment.assigned", "assignment.acknowledged"}
	for seq := first; seq <= head; seq++ {
		term := seq / 100
		if seq%3 == 0 { // each election has a term of its own
			term = 1000 + seq
		}
		h.events = append(h.events, daemon.Event{
			Seq: seq, At: time.Unix(1_000_000-head+seq, 0), Kind: kinds[seq%3], Node: fmt.Sprintf("n%d", seq%7), Term: term,
			Daemon: "acme:reports", Unit: daemon.Unit{Daemon: "acme:reports", Index: int(seq % 5)},
		})
	}
	return h
}

// TestEventPages: in both orders, the pages of events have exactly what the filter selects, once and in order, also when
// the oldest events are gone, and one call reads a bounded part of the history.
func TestEventPages(t *testing.T) {
	t.Parallel()
	for _, store := range []*historyStore{newHistory(1, 0), newHistory(1, 7), newHistory(400, 2345), newHistory(1, 12000)} {
		a := api(t, store)
		for query, filter := range map[string]view.EventFilter{
			"":                                      {},
			"kind=leader.*":                         {Kind: "leader.*"},
			"node=n3":                               {Node: "n3"},
			"daemon=acme:reports/2&since=1000s":     {Daemon: "acme:reports/2", Since: 1000 * time.Second},
			"daemon=acme:reports&term=21":           {Daemon: "acme:reports", Term: 21},
			"after=2000&node=n3":                    {Node: "n3"},
			"after=9":                               {},
			"kind=none":                             {Kind: "none"},
			"kind=leader.elected&node=n1&since=10s": {Kind: "leader.elected", Node: "n1", Since: 10 * time.Second},
		} {
			for _, order := range []string{"newest", "oldest"} {
				var want []int64
				var after int64
				_, _ = fmt.Sscanf(query, "after=%d", &after)
				for i := range store.events {
					if store.events[i].Seq > after && filter.Selects(&store.events[i], time.Unix(1_000_000, 0)) {
						want = append(want, store.events[i].Seq)
					}
				}
				if order == "newest" {
					slices.Reverse(want)
				}
				if got := follow(t, a, store, query+"&order="+order); !slices.Equal(got, want) {
					t.Errorf("%d events, %s, %s: %d events %v…, want %d %v…", len(store.events), query, order, len(got), some(got), len(want), some(want))
				}
			}
		}
	}
}

func some(all []int64) []int64 { return all[:min(len(all), 5)] }

// follow reads all pages of events.
func follow(t *testing.T, a *API, store *historyStore, query string) (got []int64) {
	t.Helper()
	next := ""
	for range 2000 {
		store.reads = 0
		var p eventPage
		do(t, a, request(t, "GET", root+"/events?limit=97&"+query+"&cursor="+url.QueryEscape(next), ""), &p)
		if store.reads > mostSearched/eventsAtOnce+2 || len(p.Events) > 97 {
			t.Fatalf("%s: %d reads, %d events in one call", query, store.reads, len(p.Events))
		}
		for _, e := range p.Events {
			got = append(got, e.Seq)
		}
		if p.Cursor == nil {
			return got
		}
		next = *p.Cursor
	}
	t.Fatalf("%s: no end", query)
	return nil
}

// TestTermsOfAnotherHistory: a long history is read once, a part with each call; later calls read only what is new, forget what
// was deleted, and begin anew with the history of another store.
func TestTermsOfAnotherHistory(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := newHistory(1, 12_000)
		a := api(t, store)
		terms := func() []view.Term {
			time.Sleep(stateAge + 1)
			store.reads = 0
			var all []view.Term
			for next := ""; ; {
				var p body.TermPage
				had := store.read
				do(t, a, request(t, "GET", root+"/terms?limit=300&cursor="+next, ""), &p)
				if n := store.read - had; n > mostSearched+eventsAtOnce {
					t.Fatalf("one call has read %d events", n)
				}
				all = append(all, p.Terms...)
				if p.Cursor == nil {
					return all
				}
				next = *p.Cursor
			}
		}
		elected := func(h *historyStore) (n int) {
			for _, e := range h.events {
				if e.Kind == daemon.LeaderElected {
					n++
				}
			}
			return n
		}
		if n := len(terms()); n != elected(store) || store.reads > 12 {
			t.Errorf("%d terms of %d, %d reads", n, elected(store), store.reads)
		}
		store.events = append(store.events, newHistory(12_001, 12_010).events...)
		if n := len(terms()); n != elected(store) || store.reads != 1 {
			t.Errorf("%d terms of %d, %d reads", n, elected(store), store.reads)
		}
		store.events = store.events[1000:]
		if n := len(terms()); n != elected(store) {
			t.Errorf("%d terms of %d are kept", n, elected(store))
		}
		store.events = newHistory(1, 4000).events
		if n := len(terms()); n != elected(store) {
			t.Errorf("%d terms, %d in the new history", n, elected(store))
		}
	})
}
