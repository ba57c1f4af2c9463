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

// TestReshard: a change of the number of shards needs the role admin and has an event. A call that changes nothing has none,
// and neither has one that is refused, because another change has not ended (409) or because of its number.
func TestReshard(t *testing.T) {
	t.Parallel()
	store := memory.Open(memory.Config{})
	q := &declaredQueues{Queue: queuetest.New(), names: []string{"mail"}}
	var need Access
	a := api(t, store, func(c *Config) {
		c.Queues = q
		c.Authorize = func(_ *http.Request, n Access) error { need = n; return nil }
	})
	for _, c := range []struct {
		path, body string
		status     int
		answer     string // is part of it
		recorded   bool
	}{
		{"/queues/mail/shards", `{"shards": 8}`, 200, `"resharding":{"stage":"preparing","from":1,"to":8}`, true},
		{"/queues/mail/shards", `{"shards": 8}`, 200, `"to":8`, false},
		{"/queues/mail/shards", `{"shards": 3}`, 409, `"E3112"`, false},
		{"/queues/mail/shards", `{"shards": 1}`, 200, `"shards":1`, true},
		{"/queues/mail/shards", `{"shards": 0}`, 400, `"E3107"`, false},
		{"/queues/mail/shards", `{}`, 400, `"E3107"`, false},
		{"/queues/none/shards", `{"shards": 8}`, 404, `"E3102"`, false},
	} {
		before := lastEvent(t, store).Seq
		w := do(t, a, request(t, "PUT", root+c.path, c.body), nil)
		e := lastEvent(t, store)
		if w.Code != c.status || !strings.Contains(w.Body.String(), c.answer) {
			t.Errorf("%s: %d %s", c.body, w.Code, w.Body)
		}
		if need != (Access{Role: RoleAdmin, Queue: strings.Split(c.path, "/")[2]}) {
			t.Errorf("%s needed %+v", c.path, need)
		}
		if c.recorded != (e.Seq == before+1) || c.recorded && (e.Kind != "queue.reshard" || !strings.Contains(string(e.Detail), `"role":"admin"`)) {
			t.Errorf("%s: event %+v %s", c.body, e, e.Detail)
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
