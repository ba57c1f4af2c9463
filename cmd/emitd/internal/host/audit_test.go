package host

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/emitd/emitd/cmd/emitd/internal/backend"
	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/internal/access"
	"github.com/emitd/emitd/internal/admin/audit"
	"github.com/emitd/emitd/internal/storage/mem"
	"github.com/emitd/emitd/node"
	"github.com/emitd/emitd/queue"
	"github.com/emitd/emitd/queue/api"
	"github.com/emitd/emitd/queue/broker"
	"github.com/emitd/emitd/queue/queuetest"
	"github.com/emitd/emitd/storage"
)

// TestQueueChangesAreRecorded: what the queue API changes has an event with the caller. A call that claims to come from a node
// is recorded, unless it does.
func TestQueueChangesAreRecorded(t *testing.T) {
	t.Parallel()
	h := &host{Options: rig(t, nil), log: quiet}
	h.up.Store = backend.Memory()
	if _, err := h.up.Store.Heartbeat(t.Context(), storage.Heartbeat{
		Node: node.Identity{Name: "a", ID: "1", Incarnation: "1"}, Seq: 1, Advert: &daemon.Advert{Traits: node.Traits{Address: "10.0.0.1:7070"}},
	}); err != nil {
		t.Fatal(err)
	}
	q := queuetest.New()
	if _, err := q.Enqueue(t.Context(), queue.DefaultQueue, []queue.Job{{ID: "j", Payload: []byte("1")}}); err != nil {
		t.Fatal(err)
	}
	handler, err := api.New(recorded{q, h}, api.Options{Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		path, from, forwarded string
		want                  []string
	}{
		{"/v1/queues/default/pause", "10.0.0.9:1", "", []string{"queue.pause", `"actor":"ops"`, `"role":"operate"`, `"address":"10.0.0.9"`, `"paused":true`}},
		{"/v1/queues/default/purge", "10.0.0.9:1", "7", []string{"queue.purge", `"forwarded":true`, `"count":1`}},
		{"/v1/queues/default/resume", "10.0.0.1:1", "7", nil},
	} {
		before := newest(t, h)
		r := httptest.NewRequestWithContext(withCaller(t.Context(), &access.Caller{Name: "ops", Kind: access.Token, Grants: access.Everything()}), http.MethodPost, c.path, strings.NewReader("{}"))
		r.RemoteAddr = c.from
		if c.forwarded != "" {
			r.Header.Set(api.HeaderForwarded, c.forwarded)
		}
		w := httptest.NewRecorder()
		if withBy(handler).ServeHTTP(w, r); w.Code != http.StatusOK {
			t.Errorf("%s: %d %s", c.path, w.Code, w.Body)
		}
		e := newest(t, h)
		if (e.Seq != before.Seq) != (c.want != nil) {
			t.Errorf("%+v: %s %s", c, e.Kind, e.Detail)
		}
		for _, want := range c.want {
			if !strings.Contains(string(e.Kind)+string(e.Detail), want) {
				t.Errorf("%s: %s %s, want %s", c.path, e.Kind, e.Detail, want)
			}
		}
	}
}

// TestReshardIsRecorded: a change of the number of shards by the queue API has an event, and one that changes nothing has none.
func TestReshardIsRecorded(t *testing.T) {
	t.Parallel()
	h := &host{Options: rig(t, nil), log: quiet}
	h.up.Store = backend.Memory()
	list := broker.NewRegistry(mem.New(mem.Config{}), "")
	if _, err := list.Declare(t.Context(), queue.Settings{Name: "mail", Shards: 2}); err != nil {
		t.Fatal(err)
	}
	d := recordedDirectory{list, h}
	ctx := withCaller(t.Context(), &access.Caller{Name: "ops", Kind: access.Token, Grants: access.Everything()})
	for range 2 {
		if _, err := d.Reshard(ctx, "mail", 8); err != nil {
			t.Fatal(err)
		}
	}
	page, err := h.up.Store.Events(ctx, 0, 100)
	if err != nil || len(page.Events) != 1 {
		t.Fatalf("%+v, %v", page, err)
	}
	for _, want := range []string{`"actor":"ops"`, `"role":"admin"`, `"args":{"shards":8}`, `"resharding":{"stage":"preparing","from":2,"to":8}`} {
		if e := page.Events[0]; e.Kind != audit.Reshard || !strings.Contains(string(e.Detail), want) {
			t.Errorf("%s %s, want %s", e.Kind, e.Detail, want)
		}
	}
}

// newest returns the newest event.
func newest(t *testing.T, h *host) daemon.Event {
	t.Helper()
	page, err := h.up.Store.Events(context.WithoutCancel(t.Context()), 0, 100)
	if err != nil || len(page.Events) == 0 {
		t.Fatal(err)
	}
	return page.Events[len(page.Events)-1]
}
