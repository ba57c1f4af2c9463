package console

import (
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/emitd/emitd/coordinator/admin"
	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/node"
	"github.com/emitd/emitd/queue"
	"github.com/emitd/emitd/storage"
	"github.com/emitd/emitd/storage/memory"
)

// grown is a store with a small cluster and a history that grows.
type grown struct {
	storage.Store
	snap daemon.Snapshot
	head atomic.Int64
}

// manyEvents are more than one call of the API searches.
const manyEvents = 12_000

// Snapshot implements storage.Store.
func (g *grown) Snapshot(context.Context) (*daemon.Snapshot, error) {
	snap := g.snap
	snap.Now, snap.Head = time.Now(), g.head.Load()
	return &snap, nil
}

// Events implements storage.Store. The first event and the last one of many are elections.
func (g *grown) Events(_ context.Context, after int64, limit int) (*storage.EventPage, error) {
	page := &storage.EventPage{Head: g.head.Load(), Oldest: 1}
	for seq := after + 1; seq <= page.Head && len(page.Events) < limit; seq++ {
		e := daemon.Event{Seq: seq, At: g.snap.Now, Kind: daemon.AssignmentActive, Node: "a", Unit: g.snap.Units[0].Unit}
		switch seq {
		case 1, manyEvents:
			e.Kind, e.Unit = daemon.LeaderElected, daemon.Unit{}
		case 2:
			e.Kind, e.Unit = daemon.CommandPause.Event(), daemon.Unit{}
			e.Detail = []byte(`{"command": "1", "actor": "alice", "args": {"daemon": "acme:tenants", "key": "globex eu"}}`)
		}
		page.Events = append(page.Events, e)
	}
	return page, nil
}

func newGrown() *grown {
	now := time.Now()
	a := node.Identity{Name: "a", ID: "id-a", Incarnation: "inc-a"}
	g := &grown{Store: memory.Open(memory.Config{}), snap: daemon.Snapshot{
		Now: now, StoreID: "grown", Term: node.Term{Number: 1, Ordinal: 1, Leader: a, ElectedAt: now}, Lease: node.Lease{ExpiresAt: now.Add(time.Hour), LastPassAt: now},
		Nodes:   []node.Member{{Identity: a, State: node.Live, Advert: "x", RegisteredAt: now, LastHeartbeatAt: now.Add(time.Hour), ConfirmedAt: now.Add(time.Hour)}},
		Adverts: map[string]*daemon.Advert{"x": {Kinds: []daemon.Kind{"acme:tenants"}, Specs: []daemon.Spec{{ID: "acme:tenants", Instances: daemon.Keyed}}}},
		Units: []daemon.Record{{
			Unit: daemon.Unit{Daemon: "acme:tenants", Key: "globex eu"}, State: daemon.Active, Holder: a, Generation: 1, Since: now,
			Failures: 9, FailingSince: now.Add(-time.Hour), RetryAt: now.Add(time.Hour), Error: "no disk",
		}},
	}}
	g.head.Store(2)
	return g
}

// TestOwnLogin looks at a program that embeds the API with its own login, which has expired, and at a history of which a
// filter selects little.
func TestOwnLogin(t *testing.T) {
	t.Parallel()
	store := newGrown()
	var in atomic.Bool
	api, err := admin.New(admin.Config{
		Store: store, StoreKind: "memory", Logger: slog.New(slog.DiscardHandler),
		Authorize: func(*http.Request, admin.Access) error {
			if !in.Load() {
				return queue.Refuse(queue.Unauthorized, "your login has expired: log in again")
			}
			return nil
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(api)
	t.Cleanup(server.Close)
	t.Cleanup(api.Close)
	play(t, actions{"in": func() { in.Store(true) }, "grow": func() { store.head.Store(manyEvents) }}, "own.mjs", server.URL)
}
