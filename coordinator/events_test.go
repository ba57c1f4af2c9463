package coordinator_test

import (
	"context"
	"errors"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/emitd/emitd/coordinator"
	"github.com/emitd/emitd/coordinator/coordinatortest"
	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/node"
	"github.com/emitd/emitd/storage"
	"github.com/emitd/emitd/storage/memory"
)

// A subscriber first gets the node's current state, then every change in order, however slowly it
// reads and whether or not Run has begun. After Run it gets what is left, and the sequence ends.
func TestSubscribeLosesNothing(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c := coordinatortest.New(t, coordinatortest.Config{Nodes: 2})
		first := c.Elect()
		n := c.Node(first)
		late := n.Subscribe(t.Context()) // read only at the end
		for range 10 {
			c.Resign()
		}
		if err := c.Stop(first); err != nil {
			t.Fatal(err)
		}
		var got []coordinator.Transition
		for tr := range late {
			got = append(got, tr)
		}
		if len(got) != 12 || !got[0].Leading || got[11].Leading {
			t.Fatalf("%d transitions: %+v", len(got), got)
		}
		for i, tr := range got {
			if tr.Leading != (i%2 == 0) || tr.Term.Number == 0 || (tr.Reason == "") != tr.Leading {
				t.Errorf("transition %d: %+v", i, tr)
			}
			if i > 0 && tr.Term.Number < got[i-1].Term.Number {
				t.Errorf("transition %d goes back", i)
			}
		}
		for tr := range n.Subscribe(t.Context()) { // after the end: only the current state
			if tr != got[11] {
				t.Errorf("after the end: %+v", tr)
			}
		}
	})
}

// Before Run a subscriber learns that the node does not lead. When its context ends, its sequence
// does.
func TestSubscribeBeforeRun(t *testing.T) {
	t.Parallel()
	c, err := coordinator.New(memory.Open(memory.Config{}), coordinator.Config{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var got []coordinator.Transition
	for tr := range c.Subscribe(ctx) {
		got = append(got, tr)
		cancel()
	}
	if !slices.Equal(got, []coordinator.Transition{{}}) {
		t.Errorf("got %+v", got)
	}
	if _, ctx, ok := c.Leadership(); ok || ctx == nil || !errors.Is(context.Cause(ctx), coordinator.ErrNotLeading) {
		t.Errorf("Leadership before Run: %v", ok)
	}
	if err := c.Resign(t.Context(), 0); !errors.Is(err, coordinator.ErrNotLeading) {
		t.Errorf("Resign before Run: %v", err)
	}
}

// Events yields the whole history and what follows, without gaps, even across an outage of the
// store.
func TestEventsAreComplete(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c, taps := tapped(t, coordinatortest.Config{Nodes: 2})
		i := c.Elect()
		var seqs record[int64]
		var failures record[string]
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			for e, err := range c.Node(i).Events(ctx, 0) {
				if err != nil {
					failures.add(err.Error())
					continue
				}
				seqs.add(e.Seq)
			}
		}()
		c.Register(daemon.Spec{ID: "acme:x", Instances: 300}, worker)
		c.WaitUntil("they run", func() bool { return c.Holder("acme:x/299") >= 0 })
		taps[i].set(func(_ context.Context, op string, _ any, _ error) error {
			if op == "events" {
				return storage.ErrUnavailable
			}
			return nil
		}, nil)
		advance(3 * time.Second)
		taps[i].set(nil, nil)
		advance(10 * time.Second)
		cancel()
		<-done
		got := seqs.all()
		if len(failures.all()) == 0 {
			t.Error("the outage was not told")
		}
		for k, seq := range got {
			if seq != int64(k+1) {
				t.Fatalf("event %d has number %d", k, seq)
			}
		}
		snap, err := c.Store().Snapshot(t.Context())
		if err != nil || int64(len(got)) != snap.Head || len(got) < 600 {
			t.Errorf("%d events of %d, %v", len(got), snap.Head, err)
		}
	})
}

// A reader that comes too late gets ErrEventsGone, and goes on with the oldest event there is.
func TestEventsThatAreGone(t *testing.T) {
	t.Parallel()
	store := memory.Open(memory.Config{KeepEvents: 10})
	for i := range 20 {
		who := node.Identity{Name: "n", ID: node.ID(rune('a' + i)), Incarnation: node.Incarnation(rune('a' + i))}
		if _, err := store.Heartbeat(t.Context(), storage.Heartbeat{Node: who, Seq: 1, Advert: &daemon.Advert{}, TTL: time.Minute, EventsAfter: -1}); err != nil {
			t.Fatal(err)
		}
	}
	c, err := coordinator.New(store, coordinator.Config{})
	if err != nil {
		t.Fatal(err)
	}
	var reported error
	var got []int64
	for e, err := range c.Events(t.Context(), 3) {
		if err != nil {
			reported = err
			continue
		}
		if got = append(got, e.Seq); len(got) == 10 {
			break
		}
	}
	if !errors.Is(reported, coordinator.ErrEventsGone) || got[0] != 11 || got[9] != 20 {
		t.Errorf("told %v, got %v", reported, got)
	}
}

// numbers returns the numbers from one to another, with blanks between.
func numbers(from, to int) string {
	var all []string
	for n := from; n <= to; n++ {
		all = append(all, strconv.Itoa(n))
	}
	return strings.Join(all, " ")
}

// A reader learns that the store has lost events that it has read, although others have their numbers by then, and gets
// those. It goes on after the newest event that it has read and that the store still has.
func TestEventsThatAreLost(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		kept, lost, written int // events
		after               int64
		want                string
	}{
		"all numbers are taken again":    {5, 3, 10, 0, numbers(1, 8) + " gone " + numbers(6, 15)},
		"some numbers are taken again":   {5, 3, 1, 0, numbers(1, 8) + " gone 6"},
		"everything is lost":             {0, 3, 4, 0, numbers(1, 3) + " gone " + numbers(1, 4)},
		"the place that was named is":    {2, 3, 5, 5, "gone " + numbers(1, 7)},
		"there was no such place":        {2, 0, 3, 9, "gone " + numbers(1, 5)},
		"nothing is lost":                {5, 0, 2, 3, numbers(4, 7)},
		"more is lost than a page has":   {100, 250, 300, 99, numbers(100, 350) + " gone " + numbers(101, 400)},
		"more is lost than a reader has": {100, 500, 600, 99, numbers(100, 600) + " gone " + numbers(1, 700)},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				store := memory.Open(memory.Config{})
				write := func(n int) {
					for range n {
						if err := store.Record(t.Context(), daemon.Event{Kind: daemon.UnitsChanged}); err != nil {
							t.Fatal(err)
						}
					}
				}
				write(c.kept)
				image := store.Clone()
				write(c.lost)
				node, err := coordinator.New(store, coordinator.Config{})
				if err != nil {
					t.Fatal(err)
				}
				ctx, cancel := context.WithCancel(t.Context())
				var got []string
				done := make(chan struct{})
				go func() {
					defer close(done)
					for e, err := range node.Events(ctx, c.after) {
						switch {
						case errors.Is(err, coordinator.ErrEventsGone):
							got = append(got, "gone")
						case err != nil:
							t.Error(err)
						default:
							got = append(got, strconv.FormatInt(e.Seq, 10))
						}
					}
				}()
				advance(10 * time.Second)
				if c.lost > 0 {
					store.Restore(image)
					store.SetStoreID("standby")
				}
				write(c.written)
				advance(10 * time.Second)
				cancel()
				<-done
				if text := strings.Join(got, " "); text != c.want {
					t.Errorf("got  %s\nwant %s", text, c.want)
				}
			})
		})
	}
}

// countingStore counts the calls that read events, and the events that they return.
type countingStore struct {
	*memory.Store
	calls, events int
}

func (s *countingStore) Events(ctx context.Context, after int64, limit int) (*storage.EventPage, error) {
	page, err := s.Store.Events(ctx, after, limit)
	s.calls++
	if err == nil {
		s.events += len(page.Events)
	}
	return page, err
}

// A reader finds the newest event that the store still has in few reads, however many the store has lost.
func TestEventsThatAreLostCostFewReads(t *testing.T) {
	bubble(t, func(t *testing.T) {
		store := &countingStore{Store: memory.Open(memory.Config{})}
		write := func(n int) {
			for range n {
				if err := store.Record(t.Context(), daemon.Event{Kind: daemon.UnitsChanged}); err != nil {
					t.Fatal(err)
				}
			}
		}
		write(100)
		image := store.Clone()
		write(500)
		node, err := coordinator.New(store, coordinator.Config{})
		if err != nil {
			t.Fatal(err)
		}
		restored := false
		for e, err := range node.Events(t.Context(), 0) {
			switch {
			case err != nil && !errors.Is(err, coordinator.ErrEventsGone):
				t.Fatal(err)
			case e.Seq == 600 && !restored:
				store.Restore(image)
				store.SetStoreID("standby")
				advance(time.Second)
				write(600)
				store.calls, store.events, restored = 0, 0, true
			}
			if e.Seq == 700 {
				break
			}
		}
		if store.calls > 20 || store.events > 1500 {
			t.Errorf("%d calls read %d events, for the 600 that are new", store.calls, store.events)
		}
	})
}

// Snapshot reads the store; its errors name what was attempted.
func TestSnapshot(t *testing.T) {
	bubble(t, func(t *testing.T) {
		c, taps := tapped(t, coordinatortest.Config{})
		c.Elect()
		s, err := c.Node(0).Snapshot(t.Context())
		if err != nil || len(s.Nodes) != 1 || !s.Term.Held() {
			t.Errorf("%+v, %v", s, err)
		}
		taps[0].set(func(ctx context.Context, op string, _ any, _ error) error { <-ctx.Done(); return ctx.Err() }, nil)
		if _, err := c.Node(0).Snapshot(t.Context()); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a store that hangs: %v", err)
		}
		taps[0].set(nil, nil)
	})
}
