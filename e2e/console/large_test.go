package console

import (
	"context"
	"fmt"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/node"
	"github.com/emitd/emitd/storage"
	"github.com/emitd/emitd/storage/memory"
)

// large is a store with a large cluster: 1,000 nodes, 10,000 units and 100,000 events.
type large struct {
	storage.Store
	snap daemon.Snapshot
}

const largeEvents = 100_000

// Snapshot implements storage.Store.
func (l *large) Snapshot(context.Context) (*daemon.Snapshot, error) {
	snap := l.snap
	return &snap, nil
}

// Events implements storage.Store.
func (l *large) Events(_ context.Context, after int64, limit int) (*storage.EventPage, error) {
	page := &storage.EventPage{Head: largeEvents, Oldest: 1}
	for seq := after + 1; seq <= largeEvents && len(page.Events) < limit; seq++ {
		u := l.snap.Units[seq%int64(len(l.snap.Units))]
		page.Events = append(page.Events, daemon.Event{
			Seq: seq, At: l.snap.Now.Add(time.Duration(seq-largeEvents) * time.Second), Kind: daemon.AssignmentActive,
			Node: u.Holder.Name, NodeID: u.Holder.ID, Unit: u.Unit, Generation: u.Generation, Term: l.snap.Term.Number,
		})
	}
	return page, nil
}

func newLarge() *large {
	now := time.Now()
	advert := &daemon.Advert{Kinds: []daemon.Kind{}}
	l := &large{Store: memory.Open(memory.Config{}), snap: daemon.Snapshot{Now: now, StoreID: "large", Head: largeEvents, Adverts: map[string]*daemon.Advert{"x": advert}}}
	for i := range 100 {
		id := daemon.ID(fmt.Sprintf("acme:daemon-%03d", i))
		advert.Kinds = append(advert.Kinds, daemon.Kind(id))
		advert.Specs = append(advert.Specs, daemon.Spec{ID: id, Instances: 100})
	}
	for i := range 1000 {
		l.snap.Nodes = append(l.snap.Nodes, node.Member{
			Identity: node.Identity{Name: fmt.Sprintf("node-%04d", i), ID: node.ID(fmt.Sprintf("id-%04d", i)), Incarnation: node.Incarnation(fmt.Sprintf("inc-%04d", i))},
			State:    node.Live, Advert: "x", RegisteredAt: now.Add(-time.Hour), LastHeartbeatAt: now, ConfirmedAt: now,
			Traits: node.Traits{Labels: map[string]string{"zone": fmt.Sprintf("z%d", i%3)}, Capacity: 1, FirstRegisteredAt: now.Add(-time.Hour)},
		})
	}
	l.snap.Term = node.Term{Number: 7, Ordinal: 7, Leader: l.snap.Nodes[0].Identity, ElectedAt: now.Add(-time.Hour)}
	l.snap.Lease = node.Lease{ExpiresAt: now.Add(time.Minute), LastPassAt: now}
	for i := range 10_000 {
		l.snap.Units = append(l.snap.Units, daemon.Record{
			Unit: daemon.Unit{Daemon: daemon.ID(fmt.Sprintf("acme:daemon-%03d", i/100)), Index: i % 100}, State: daemon.Active,
			Holder: l.snap.Nodes[i%1000].Identity, Generation: int64(i + 1), Since: now.Add(-time.Hour), Reason: "least loaded",
		})
	}
	return l
}
