package postgres_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/node"
	"github.com/emitd/emitd/storage"
	"github.com/emitd/emitd/storage/postgres"
)

// manyConnections gives a store enough connections for each rank to have some of its own.
func manyConnections(cfg *postgres.Config) { cfg.MaxConns = 16 }

// However many heartbeats wait, a leader's pass finds a connection.
func TestHeartbeatsLeaveRoomForPasses(t *testing.T) {
	t.Parallel()
	c := newCluster(t, manyConnections)
	var crowd []*actor
	for i := range 20 {
		crowd = append(crowd, join(t, c.store, fmt.Sprintf("n%d", i)))
	}
	middle := c.begin(t, c.in("select from %s.node for update"))
	var beats []<-chan result[*storage.Reply]
	for _, a := range crowd {
		beats = append(beats, later(func() (*storage.Reply, error) {
			return c.store.Heartbeat(context.Background(), storage.Heartbeat{Node: a.id, Seq: 1000, TTL: time.Hour, EventsAfter: -1})
		}))
	}
	c.blocked(t, 12) // of 16: two are for renewals, two for passes
	for range 20 {
		if _, err := c.store.Snapshot(context.Background()); err != nil {
			t.Fatal(err)
		}
	}
	if n := c.waiting(t); n != 12 {
		t.Errorf("%d heartbeats are blocked, want 12", n)
	}
	commit(t, middle)
	for _, b := range beats {
		await(t, "a heartbeat", b).get(t)
	}
}

// However many nodes register at the same time, members find connections for their heartbeats.
func TestRegistrationsLeaveRoomForHeartbeats(t *testing.T) {
	t.Parallel()
	c := newCluster(t, manyConnections)
	middle := c.begin(t, c.in("select from %s.counter for update")) // registrations wait here for each other
	var joins []<-chan result[*storage.Reply]
	for i := range 20 {
		joins = append(joins, later(func() (*storage.Reply, error) { return newcomer(c.store, fmt.Sprintf("n%d", i)) }))
	}
	c.blocked(t, 4) // of 16
	for range 20 {
		c.worker.beat()
	}
	if n := c.waiting(t); n != 4 {
		t.Errorf("%d calls are blocked, want 4", n)
	}
	commit(t, middle)
	for _, j := range joins {
		await(t, "a registration", j).get(t)
	}
}

// Nodes that register at the same time read the member list together. Each list has the node itself, because the reading
// begins after its registration.
func TestNewcomersShareTheMemberList(t *testing.T) {
	t.Parallel()
	c := newCluster(t, manyConnections)
	const crowd, atOnce = 8, 4                                      // a quarter of the connections is for registrations
	middle := c.begin(t, c.in("select from %s.counter for update")) // registrations wait here for each other
	var joins []<-chan result[*storage.Reply]
	for i := range crowd {
		joins = append(joins, later(func() (*storage.Reply, error) { return newcomer(c.store, fmt.Sprintf("n%d", i)) }))
	}
	c.blocked(t, atOnce)
	commit(t, middle)
	lists := map[*node.Member]bool{}
	for i, joined := range joins {
		r := await(t, "a registration", joined).get(t)
		lists[&r.Members[0]] = true
		own := slices.ContainsFunc(r.Members, func(m node.Member) bool { return m.Name == fmt.Sprintf("n%d", i) })
		if !own || r.Head == 0 {
			t.Errorf("n%d is in its list of %d members: %v; newest event %d", i, len(r.Members), own, r.Head)
		}
	}
	if n := c.store.ListReads(); n == 0 || n >= crowd {
		t.Errorf("%d nodes registered at the same time and read the list together %d times", crowd, n)
	}
	if n := len(lists); n >= crowd {
		t.Errorf("%d nodes have %d lists in memory", crowd, n)
	}
	before := c.store.ListReads()
	r, err := newcomer(c.store, "alone")
	if err != nil || len(r.Members) != crowd+3 || c.store.ListReads() != before {
		t.Errorf("a node that registers alone has a list of %d from another reading: %v", len(r.Members), err)
	}
}

// A heartbeat that reads the member list together with others is a simple one: it is not sent as statements.
func TestSharedListNeedsNoStatements(t *testing.T) {
	t.Parallel()
	c := newCluster(t, manyConnections)
	a := join(t, c.store, "a")
	defer c.store.Break("beat")()
	middle := c.begin(t, c.in("select from %s.counter for update"))
	joined := later(func() (*storage.Reply, error) { return newcomer(c.store, "n") })
	c.blocked(t, 1)
	r, err := a.try(func(b *storage.Heartbeat) { b.WantMembers = true })
	if err != nil || len(r.Members) == 0 {
		t.Errorf("beside a registration, the list has %d members: %v", len(r.Members), err)
	}
	commit(t, middle)
	await(t, "the registration", joined).get(t)
}

// newcomer registers a node that wants the member list.
func newcomer(store *postgres.Store, name string) (*storage.Reply, error) {
	n := drawn.Add(1)
	return store.Heartbeat(context.Background(), storage.Heartbeat{
		Node: node.Identity{
			Name: name, ID: node.ID(fmt.Sprintf("0198c5a2-0001-7000-8000-%012x", n)),
			Incarnation: node.Incarnation(fmt.Sprintf("0198c5a2-0002-7000-8000-%012x", n)),
		},
		Seq: 1, TTL: time.Hour, EventsAfter: -1, WantMembers: true, TermRequest: storage.TermRequest{Lease: time.Hour},
		Advert: &daemon.Advert{Kinds: []daemon.Kind{"acme:reports"}},
	})
}

// A node whose registration was sent and not answered may be a member, so it does not wait for calls of the lowest rank.
func TestUnansweredRegistrationIsRepeatedFirst(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	who := node.Identity{Name: "n", ID: "0198c5a2-0001-7000-8000-00000000beef", Incarnation: "0198c5a2-0002-7000-8000-00000000beef"}
	register := func(ctx context.Context, seq uint64) error {
		_, err := c.store.Heartbeat(ctx, storage.Heartbeat{
			Node: who, Seq: seq, TTL: time.Hour, EventsAfter: -1, TermRequest: storage.TermRequest{Lease: time.Hour},
			Advert: &daemon.Advert{Kinds: []daemon.Kind{"acme:reports"}},
		})
		return err
	}
	middle := c.begin(t, c.in("select from %s.counter for update"))
	ctx, cancel := context.WithCancel(context.Background())
	first := later(func() (struct{}, error) { return struct{}{}, register(ctx, 1) })
	c.blocked(t, 1)
	cancel()
	commit(t, middle)
	if r := await(t, "the first registration", first); r.err == nil {
		t.Log("it was answered, after its caller had given up")
	}
	middle, reports := c.blockReports(t, 8) // all connections that a registration may have
	if err := register(context.Background(), 2); err != nil {
		t.Errorf("repeated beside reports that wait: %v", err)
	}
	commit(t, middle)
	for _, r := range reports {
		await(t, "a report", r).get(t)
	}
}
