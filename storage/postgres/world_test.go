package postgres_test

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/node"
	"github.com/emitd/emitd/storage"
	"github.com/emitd/emitd/storage/postgres"
)

// waitTimeout bounds every wait of the tests. Only a broken store needs it all.
const waitTimeout = 30 * time.Second

var drawn atomic.Int64

// actor is one process as the store sees it.
type actor struct {
	t     testing.TB
	store *postgres.Store
	id    node.Identity
	seq   uint64
}

// join registers a process.
func join(t testing.TB, store *postgres.Store, name string, edits ...func(*storage.Heartbeat)) *actor {
	t.Helper()
	n := drawn.Add(1)
	a := &actor{t: t, store: store, id: node.Identity{
		Name: name, ID: node.ID(fmt.Sprintf("0198c5a2-0001-7000-8000-%012x", n)),
		Incarnation: node.Incarnation(fmt.Sprintf("0198c5a2-0002-7000-8000-%012x", n)),
	}}
	a.beat(append([]func(*storage.Heartbeat){func(b *storage.Heartbeat) {
		b.Advert = &daemon.Advert{
			Traits: node.Traits{
				Version: "v1.2.3", Address: "10.0.0.1:7070", Capacity: 4, Labels: map[string]string{"zone": "a"},
				Host: node.Host{BootID: "d7a4a3f6-9a55-4a3e-8d2b-6a34a1f7f3a1", PID: 4711, Start: "123456"},
			},
			Kinds: []daemon.Kind{"acme:reports"},
		}
	}}, edits...)...)
	return a
}

func (a *actor) try(edits ...func(*storage.Heartbeat)) (*storage.Reply, error) {
	a.seq++
	b := storage.Heartbeat{Node: a.id, Seq: a.seq, ConfirmedSeq: a.seq - 1, TTL: time.Hour, EventsAfter: -1, TermRequest: storage.TermRequest{Lease: time.Hour}}
	for _, e := range edits {
		e(&b)
	}
	return a.store.Heartbeat(context.Background(), b)
}

func (a *actor) beat(edits ...func(*storage.Heartbeat)) *storage.Reply {
	a.t.Helper()
	r, err := a.try(edits...)
	if err != nil {
		a.t.Fatal(err)
	}
	return r
}

func stand(b *storage.Heartbeat) { b.TermRequest.Campaign = true }

// depose campaigns against exactly this term and lease.
func depose(term node.Term, lease node.Lease) func(*storage.Heartbeat) {
	return func(b *storage.Heartbeat) {
		b.TermRequest.Campaign, b.TermRequest.Unchanged, b.TermRequest.SeenTerm, b.TermRequest.SeenRenewals = true, true, term.Number, lease.Renewals
	}
}

func renew(term node.Term) func(*storage.Heartbeat) {
	return func(b *storage.Heartbeat) { b.TermRequest.Renew = term.Number }
}

// lead makes the actor the leader of a vacant term.
func (a *actor) lead() node.Term {
	a.t.Helper()
	r := a.beat(stand)
	if r.Verdict != storage.Elect {
		a.t.Fatalf("verdict %v, want an election", r.Verdict)
	}
	return r.Term
}

func unit(i int) daemon.Unit { return daemon.Unit{Daemon: "acme:reports", Index: i} }

// assign declares a unit and assigns it to an actor, who acknowledges.
func (a *actor) assign(term node.Term, u daemon.Unit, to *actor) daemon.Record {
	a.t.Helper()
	out, err := a.store.Commit(context.Background(), storage.Commit{Term: term.Ref(), Changes: []storage.Change{
		{Unit: u}, {Unit: u, Step: daemon.Assign, State: daemon.Unassigned, To: to.id, DrainTimeout: time.Minute, AcknowledgeTimeout: time.Minute},
	}})
	if err != nil || !out[1].Applied {
		a.t.Fatalf("assign: %+v, %v", out, err)
	}
	to.seq++
	done, err := to.store.Report(context.Background(), storage.Report{Node: to.id, Seq: to.seq, Units: []storage.UnitReport{
		{Unit: u, Generation: out[1].Record.Generation, Step: daemon.Acknowledge},
	}})
	if err != nil || !done[0].Applied {
		a.t.Fatalf("acknowledge: %+v, %v", done, err)
	}
	return done[0].Record
}

// later runs call on a goroutine and returns the channel of its result.
func later[T any](call func() (T, error)) <-chan result[T] {
	c := make(chan result[T], 1)
	go func() {
		v, err := call()
		c <- result[T]{v, err}
	}()
	return c
}

type result[T any] struct {
	value T
	err   error
}

// get waits for a result.
func (r result[T]) get(t testing.TB) T {
	t.Helper()
	if r.err != nil {
		t.Fatal(r.err)
	}
	return r.value
}

func await[T any](t testing.TB, what string, c <-chan T) T {
	t.Helper()
	select {
	case v := <-c:
		return v
	case <-time.After(waitTimeout):
		t.Fatalf("%s: nothing came", what)
		panic("unreachable")
	}
}

// eventually repeats yes until it returns true.
func eventually(t testing.TB, what string, yes func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	late := time.After(waitTimeout)
	for !yes() {
		select {
		case <-tick.C:
		case <-late:
			t.Fatalf("never: %s", what)
		}
	}
}

// waiting counts the sessions of the stage's database that wait for a lock.
func (s *stage) waiting(t testing.TB) int {
	t.Helper()
	return value[int](t, s, "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'")
}

// blocked waits until that many sessions wait for a lock. The calls that should be blocked then
// are.
func (s *stage) blocked(t testing.TB, n int) {
	t.Helper()
	eventually(t, fmt.Sprintf("%d sessions wait for a lock", n), func() bool { return s.waiting(t) == n })
}

// begin opens a transaction by hand, so that a test can stop a call in the middle.
func (s *stage) begin(t testing.TB, statements ...string) pgx.Tx {
	t.Helper()
	ctx := context.Background()
	tx, err := s.pool.Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tx.Rollback(ctx) })
	for _, sql := range statements {
		if _, err := tx.Exec(ctx, sql); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
	}
	return tx
}

func commit(t testing.TB, tx pgx.Tx) {
	t.Helper()
	if err := tx.Commit(context.Background()); err != nil {
		t.Fatal(err)
	}
}

// kinds lists the kinds of all events, oldest first.
func kinds(t testing.TB, store *postgres.Store) (out []daemon.EventKind) {
	t.Helper()
	page, err := store.Events(context.Background(), 0, 10_000)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range page.Events {
		out = append(out, e.Kind)
	}
	return out
}

// before reports whether the last event of one kind comes before the last of another.
func before(all []daemon.EventKind, first, second daemon.EventKind) bool {
	slices.Reverse(all)
	return slices.Index(all, first) > slices.Index(all, second) && slices.Index(all, second) >= 0
}
