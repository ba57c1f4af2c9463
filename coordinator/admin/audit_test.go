package admin

import (
	"encoding/json"
	"net/http"
	"strings"
	"testing"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/queue/queuetest"
	"github.com/emitd/emitd/storage/memory"
)

// TestChangesAreRecorded: each change of a queue or a subscription has an event with who, by which role, from where, before
// and after, and a dry run and a refused call have none.
func TestChangesAreRecorded(t *testing.T) {
	t.Parallel()
	store := memory.Open(memory.Config{})
	q := &declaredQueues{Queue: queuetest.New(), names: []string{"mail"}}
	deadJobs(t, q.Queue, 3, 3)
	a := api(t, store, func(c *Config) {
		c.Queues = q
		c.Outbox = func() (*Outbox, error) { return &Outbox{Kind: "sqlite", Operator: newLetters()}, nil }
		c.Actor = func(*http.Request) string { return "alice" }
		c.Authorize = func(*http.Request, Access) error { return nil }
	})
	for _, c := range []struct{ path, body, kind, before, after string }{
		{"/queues/mail/actions", `{"action": "redrive", "all": true, "dry_run": true}`, "", "", ""},
		{"/queues/mail/actions", `{"action": "redrive"}`, "", "", ""},
		{"/queues/mail/actions", `{"action": "redrive", "all": true}`, "queue.redrive", `"dead":3`, `"dead":0`},
		{"/queues/mail/actions", `{"action": "pause"}`, "queue.pause", `"paused":false`, `"paused":true`},
		{"/queues/mail/actions", `{"action": "purge", "state": "waiting"}`, "queue.purge", `"waiting":6`, `"waiting":0`},
		{"/outbox/billing/actions", `{"action": "retry", "all": true, "dry_run": true}`, "", "", ""},
		{"/outbox/billing/actions", `{"action": "retry", "all": true}`, "outbox.retry", `"dead":`, `"dead":`},
		{"/outbox/billing/actions", `{"action": "replay", "replay": {"after": 7}}`, "outbox.replay", `"pending":`, `"pending":`},
		{"/outbox/none/actions", `{"action": "pause"}`, "", "", ""},
	} {
		before := lastEvent(t, store).Seq
		do(t, a, request(t, "POST", root+c.path, c.body), nil)
		e := lastEvent(t, store)
		var d struct {
			Actor, Role, Address, Result string
			Before, After                json.RawMessage
		}
		switch {
		case c.kind == "":
			if e.Seq != before {
				t.Errorf("%s %s: recorded as %s %s", c.path, c.body, e.Kind, e.Detail)
			}
		case json.Unmarshal(e.Detail, &d) != nil || string(e.Kind) != c.kind || e.Seq != before+1 || d.Actor != "alice" || d.Role != "operate" || d.Address != "192.0.2.1" || d.Result != "done",
			!strings.Contains(string(d.Before), c.before), !strings.Contains(string(d.After), c.after):
			t.Errorf("%s %s: %s %s", c.path, c.body, e.Kind, e.Detail)
		}
	}
}

// lastEvent returns the newest event; the zero value if there is none.
func lastEvent(t *testing.T, store *memory.Store) daemon.Event {
	t.Helper()
	page, err := store.Events(t.Context(), 0, 1000)
	if err != nil {
		t.Fatal(err)
	}
	if len(page.Events) == 0 {
		return daemon.Event{}
	}
	return page.Events[len(page.Events)-1]
}
