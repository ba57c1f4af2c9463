package postgres_test

import (
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/storage"
	"github.com/emitd/emitd/storage/postgres"
)

func eventsAfter(seq int64) func(*storage.Heartbeat) {
	return func(b *storage.Heartbeat) { b.EventsAfter = seq }
}

// numbersOf returns the numbers of events.
func numbersOf(events []daemon.Event) []int64 {
	out := []int64{}
	for _, e := range events {
		out = append(out, e.Seq)
	}
	return out
}

// What one node of a process has read of the events about members is not read again by another one.
func TestNodesShareMemberEvents(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	a, b := join(t, c.store, "a"), join(t, c.store, "b")
	all := a.beat(eventsAfter(0))
	if len(all.Events) < 2 {
		t.Fatalf("%d events, want those of two registrations", len(all.Events))
	}
	c.exec(t, c.in("update %s.event set node = 'read again'"))
	third := join(t, c.store, "third")
	r := b.beat(eventsAfter(0))
	if got := r.Events[len(r.Events)-1]; len(r.Events) != len(all.Events)+1 || got.Incarnation != third.id.Incarnation {
		t.Fatalf("events %v after %v: no newest one", numbersOf(r.Events), numbersOf(all.Events))
	}
	for _, e := range r.Events {
		if e.Node == "read again" {
			t.Errorf("event %d was read again", e.Seq)
		}
	}
	if r := b.beat(eventsAfter(all.Head)); len(r.Events) != 1 || r.Events[0].Node != "third" {
		t.Errorf("after %d come %v", all.Head, numbersOf(r.Events))
	}
}

// A store that has lost its newest events is another one. No node gets events of the former one, not even those that another
// node of its process has read.
func TestLostMemberEventsAreNotShared(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	cfg := s.schema(t, func(c *postgres.Config) { c.Logger = slog.New(slog.DiscardHandler) })
	store := open(t, cfg)
	a, b, other := join(t, store, "a"), join(t, store, "b"), join(t, open(t, cfg), "other")
	kept := a.beat(eventsAfter(0)).Head
	join(t, store, "lost")
	a.beat(eventsAfter(0))
	other.beat()
	s.exec(t, fmt.Sprintf("delete from %[1]s.event where seq > %[2]d; update %[1]s.counter set head = %[2]d, rolled = least(rolled, %[2]d)", cfg.Schema, kept))
	other.beat() // its process finds the loss, and the first one hears of it when there are more events than before
	join(t, other.store, "new")
	join(t, other.store, "newer")
	var got []string
	cursor := int64(1)
	for range 4 {
		r := b.beat(eventsAfter(cursor))
		cursor = max(cursor, r.Head)
		for _, e := range r.Events {
			got = append(got, e.Node)
		}
	}
	if want := []string{"b", "other", "new", "newer"}; !slices.Equal(got, want) {
		t.Errorf("b heard of %v, want %v", got, want)
	}
}

// A node whose cursor is ahead of what its process knows, by as many events as one answer has, gets what is behind its cursor.
func TestMemberEventsBehindAFullAnswer(t *testing.T) {
	t.Parallel()
	log := make([]daemon.Event, postgres.MaxMemberEvents+2)
	for i := range log {
		log[i].Seq = int64(i + 1)
	}
	last := log[len(log)-1].Seq
	for cursor := int64(1); cursor < last; cursor++ {
		var shared postgres.MemberEvents
		shared.Read("store", 0, 1, 1, log[:1])
		if got := shared.Read("store", cursor, 1, last, log); len(got) == 0 || got[0].Seq != cursor+1 {
			t.Errorf("after %d come %v", cursor, numbersOf(got))
		}
	}
}

// Nodes of one process with any cursors, among sweeps and events about units, get every event about members once, in order.
func TestSharedMemberEventsAreComplete(t *testing.T) {
	t.Parallel()
	for seed := range uint64(30) {
		rng := rand.New(rand.NewPCG(seed, 0))
		var shared postgres.MemberEvents
		var log []daemon.Event // about members
		head, oldest := int64(0), int64(1)
		cursors := make([]int64, 5)
		for range 200 {
			switch rng.IntN(4) {
			case 0:
				for range rng.IntN(300) {
					if head++; rng.IntN(2) == 0 {
						log = append(log, daemon.Event{Seq: head})
					}
				}
			case 1:
				if rng.IntN(10) == 0 {
					oldest += rng.Int64N(head - oldest + 2)
					log = slices.DeleteFunc(log, func(e daemon.Event) bool { return e.Seq < oldest })
				}
			default:
				i := rng.IntN(len(cursors))
				if cursors[i]+1 < oldest || rng.IntN(20) == 0 {
					cursors[i] = head // it reads the member list
				}
				got := shared.Read("store", cursors[i], oldest, head-rng.Int64N(min(3, head-oldest+2)), log)
				want := slices.DeleteFunc(slices.Clone(log), func(e daemon.Event) bool { return e.Seq <= cursors[i] })
				want = want[:min(len(got), len(want))]
				if !slices.Equal(numbersOf(got), numbersOf(want)) {
					t.Fatalf("seed %d: after %d come %v, want %v", seed, cursors[i], numbersOf(got), numbersOf(want))
				}
				if len(got) > 0 {
					cursors[i] = got[len(got)-1].Seq
				}
			}
		}
	}
}
