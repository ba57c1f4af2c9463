package admin

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/emitd/emitd/coordinator"
	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/internal/admin/fault"
	"github.com/emitd/emitd/internal/admin/view"
	"github.com/emitd/emitd/internal/openapi"
	"github.com/emitd/emitd/node"
	"github.com/emitd/emitd/queue/queuetest"
	"github.com/emitd/emitd/storage"
	"github.com/emitd/emitd/storage/memory"
)

// inCluster runs a test in virtual time, in a cluster of the nodes a, b and c with four units, where a leads.
func inCluster(t *testing.T, test func(t *testing.T, store storage.Store)) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := memory.Open(memory.Config{})
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 3)
		for _, name := range []string{"a", "b", "c"} {
			runNode(ctx, t, store, name, ended)
			time.Sleep(time.Second)
		}
		time.Sleep(time.Minute)
		test(t, store)
		cancel()
		for range 3 {
			if err := <-ended; err != nil {
				t.Error(err)
			}
		}
	})
}

func runNode(ctx context.Context, t *testing.T, store storage.Store, name string, ended chan<- error) {
	t.Helper()
	began := time.Now()
	c, err := coordinator.New(store, coordinator.Config{
		Cluster: "test", Node: node.Identity{Name: name}, Profile: "fast", MaxMovesPerRound: -1, Logger: slog.New(slog.DiscardHandler),
		Clock: func() time.Duration { return time.Since(began) + time.Hour }, // the bubble's
	})
	if err != nil {
		t.Fatal(err)
	}
	agent := daemon.AgentFunc(func(ctx context.Context, a *daemon.Assignment) error {
		select {
		case <-a.Draining():
		case <-ctx.Done():
		}
		return nil
	})
	for id, units := range map[daemon.ID]int{"acme:reports": 3, "acme:mail/fast": 1} {
		if err := c.Register(daemon.Spec{ID: id, Instances: units}, agent); err != nil {
			t.Fatal(err)
		}
	}
	go func() { ended <- c.Run(ctx) }()
}

// api returns an API of the store.
func api(t *testing.T, store storage.Store, change ...func(*Config)) *API {
	t.Helper()
	c := Config{Store: store, StoreKind: "memory", Logger: slog.New(slog.DiscardHandler)}
	for _, f := range change {
		f(&c)
	}
	a, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// request makes a call as a program does. The header has names and values in turn.
func request(t *testing.T, method, path, body string, header ...string) *http.Request {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), method, path, strings.NewReader(body))
	if body != "" {
		r.Header.Set("Content-Type", "application/json")
	}
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	return r
}

// do makes a call, and decodes the answer into to unless that is nil.
func do(t *testing.T, h http.Handler, r *http.Request, to any) *httptest.ResponseRecorder {
	t.Helper()
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	if to != nil {
		if err := json.Unmarshal(w.Body.Bytes(), to); err != nil {
			t.Fatalf("%s %s: %d %s: %v", r.Method, r.URL, w.Code, w.Body, err)
		}
	}
	return w
}

// TestEveryCall: each operation answers as the document says, for a cluster in which something happens, and has an
// example here. What the document does not mention occurs in no answer.
func TestEveryCall(t *testing.T) {
	inCluster(t, func(t *testing.T, store storage.Store) {
		q := &declaredQueues{Queue: queuetest.New(), names: []string{"mail", "reports"}}
		deadJobs(t, q.Queue, 2, 2)
		a := api(t, store, func(c *Config) {
			c.Queues, c.Sessions = q, signIns{}
			c.Outbox = func() (*Outbox, error) { return &Outbox{Kind: "sqlite", Operator: newLetters()}, nil }
			c.Trends = trendsOf
			c.Settings = func() []Setting {
				return []Setting{{Key: "listen", Value: ":7070", Origin: "default", Overrides: []Override{{Layer: "env", Name: "EMITD_LISTEN", Value: ":8080"}}, Note: "x"}}
			}
		})
		order := func(body string) *http.Request { return request(t, "POST", root+"/commands", body) }
		if w := do(t, a, order(`{"kind": "node.cordon", "node": "b", "reason": "new kernel", "actor": "alice"}`), nil); w.Code != 200 {
			t.Fatal(w.Code, w.Body)
		}
		examples := map[string][]*http.Request{
			"doCommand": {
				order(`{"kind": "daemon.pin", "unit": "acme:reports/0", "to": "c"}`),
				order(`{"kind": "node.drain", "node": "a", "dry_run": true}`),
				order(`{"kind": "node.drain", "node": "nobody"}`),
				request(t, "POST", root+"/commands?wait=0s", `{"kind": "daemon.pause", "daemon": "acme:mail/fast"}`),
			},
			"doQueue": {
				request(t, "POST", root+"/queues/mail/actions", `{"action": "redrive", "all": true, "dry_run": true}`),
				request(t, "POST", root+"/queues/mail/actions", `{"action": "redrive", "ids": ["job-00"]}`),
			},
			"doOutbox": {
				request(t, "POST", root+"/outbox/billing/actions", `{"action": "retry", "all": true, "dry_run": true}`),
				request(t, "POST", root+"/outbox/billing/actions", `{"action": "replay", "replay": {"after": 7}}`),
			},
			"signIn": {
				request(t, "POST", root+"/session", `{"token": "good"}`), request(t, "POST", root+"/session", `{"token": "bad"}`),
			},
			"signOut": {request(t, "DELETE", root+"/session", "")},
		}
		for name, paths := range map[string][]string{
			"getOverview":  {"/overview"},
			"getStatus":    {"/status", "/status?all=true"},
			"listNodes":    {"/nodes", "/nodes?limit=1", "/nodes?all=true&state=live"},
			"getNode":      {"/nodes/a", "/nodes/nobody"},
			"listDaemons":  {"/daemons"},
			"getDaemon":    {"/daemons/acme:reports", "/daemons/acme:mail/fast", "/daemons/acme:mail%2Ffast", "/daemons/acme:none"},
			"listUnits":    {"/units", "/units?daemon=acme:reports&state=active&limit=2", "/units?node=a"},
			"getUnit":      {"/units/acme:reports/0", "/units/acme:mail%2Ffast%2F0", "/units/acme:none/0"},
			"getLeader":    {"/leader"},
			"listEvents":   {"/events", "/events?order=oldest&limit=3", "/events?kind=leader.*&since=1h", "/events?kind=["},
			"listTerms":    {"/terms", "/terms?since=1h"},
			"listCommands": {"/commands"}, "listLocks": {"/locks", "/locks?limit=0"},
			"getDocument": {"/openapi.json"},
			"listQueues":  {"/queues"},
			"getQueue":    {"/queues/mail", "/queues/none"},
			"listJobs":    {"/queues/mail/jobs", "/queues/mail/jobs?state=dead&limit=1"},
			"getJob":      {"/queues/mail/jobs/job-00", "/queues/mail/jobs/none"},
			"getOutbox":   {"/outbox"}, "getSubscription": {"/outbox/billing"},
			"listMessages": {"/outbox/billing/messages", "/outbox/billing/messages?kind=held&limit=1"},
			"getMessage":   {"/outbox/billing/messages/1", "/outbox/billing/messages/2"},
			"listSettings": {"/settings"},
			"getPlan":      {"/plan", "/plan?drain=a&drain=b", "/plan?lose=nobody", "/plan?add=2&like=a", "/plan?add=1001"},
			"getTrends":    {"/trends"}, "getQueueTrends": {"/queues/mail/trends", "/queues/none/trends"}, "getSubscriptionTrends": {"/outbox/billing/trends"},
			"getSession": {"/session", "/session?queue=mail", "/session?queue=mail&subscription=billing"},
		} {
			for _, path := range paths {
				examples[name] = append(examples[name], request(t, "GET", root+path, ""))
			}
		}
		examples["reshardQueue"] = []*http.Request{
			request(t, "PUT", root+"/queues/mail/shards", `{"shards": 8}`), request(t, "PUT", root+"/queues/mail/shards", `{"shards": 3}`),
		}
		examples["changeKeys"] = []*http.Request{
			request(t, "POST", root+"/keys", `{"daemon": "acme:tenants", "add": ["globex"], "undeclared": true}`),
			request(t, "POST", root+"/keys", `{"daemon": "acme:reports", "add": ["globex"]}`),
		}
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		examples["stream"] = []*http.Request{request(t, "GET", root+"/stream?after=0&topics=events,overview", "").WithContext(ctx)}
		d := readDocument(t)
		for _, o := range operations() {
			if len(examples[o.name]) == 0 {
				t.Errorf("%s %s has no example", o.method, o.path)
			}
			for _, r := range examples[o.name] {
				check(t, d, o, r, do(t, a, r, nil))
			}
		}
		if len(examples) != len(operations()) {
			t.Errorf("%d operations, and examples of %d", len(operations()), len(examples))
		}
	})
}

func readDocument(t *testing.T) *openapi.Document {
	t.Helper()
	d, err := openapi.Read(document)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// check compares an answer with the document.
func check(t *testing.T, d *openapi.Document, o operation, r *http.Request, w *httptest.ResponseRecorder) {
	t.Helper()
	op := d.Paths[strings.ReplaceAll(o.path, "...}", "}")][strings.ToLower(o.method)]
	schema, messages, ok := op.Response(w.Code, w.Header().Get("Content-Type"))
	if !ok || op.OperationID != o.name {
		t.Errorf("%s %s: %d %s of %q is not in the document", r.Method, r.URL, w.Code, w.Header().Get("Content-Type"), op.OperationID)
		return
	}
	if o.messages != nil && w.Code == http.StatusOK {
		checkStream(t, d, messages, w.Body.String())
		return
	}
	var body any
	if err := json.Unmarshal(w.Body.Bytes(), &body); err != nil {
		t.Errorf("%s %s: %v", r.Method, r.URL, err)
		return
	}
	if wrong := d.Invalid(schema, body, "answer"); wrong != "" && o.out != nil {
		t.Errorf("%s %s: %s\n%s", r.Method, r.URL, wrong, w.Body)
	}
}

// checkStream compares the messages of a stream with the document.
func checkStream(t *testing.T, d *openapi.Document, schemas map[string]map[string]any, text string) {
	t.Helper()
	seen := map[string]bool{}
	for part := range strings.SplitSeq(text, "\n\n") {
		_, message, ok := strings.Cut(part, "event: ")
		kind, data, _ := strings.Cut(message, "\ndata: ")
		if !ok {
			continue
		}
		seen[kind] = true
		var body any
		if err := json.Unmarshal([]byte(data), &body); err != nil || schemas[kind] == nil {
			t.Errorf("message %q: %v", part, err)
		} else if wrong := d.Invalid(schemas[kind], body, kind); wrong != "" {
			t.Errorf("%s\n%s", wrong, data)
		}
	}
	if !seen[beginMessage] || !seen[eventMessage] || !seen[overviewMessage] {
		t.Errorf("the stream has only %v", seen)
	}
}

// TestRefusals: a call that is wrong in any way is refused with a status, a code and a hint, and nothing is done.
func TestRefusals(t *testing.T) {
	inCluster(t, func(t *testing.T, store storage.Store) {
		a := api(t, store)
		post := func(body string, header ...string) *http.Request {
			return request(t, "POST", root+"/commands", body, header...)
		}
		before := head(t, store)
		for _, tc := range []struct {
			r      *http.Request
			status int
			code   string
			detail string
		}{
			{request(t, "GET", root+"/nothing", ""), 404, "E1401", "/nothing"},
			{request(t, "GET", "/none", ""), 404, "E1401", ""},
			{request(t, "DELETE", root+"/nodes", ""), 405, "E1401", "GET, HEAD"},
			{request(t, "GET", root+"/nodes?limits=3", ""), 400, "E1401", "cursor, limit"},
			{request(t, "GET", root+"/nodes?limit=0", ""), 400, "E1401", "1 to 1000"},
			{request(t, "GET", root+"/nodes?limit=1&limit=2", ""), 400, "E1401", "2 times"},
			{request(t, "GET", root+"/nodes?all=maybe", ""), 400, "E1401", "true or false"},
			{request(t, "GET", root+"/nodes?cursor=x", ""), 400, "E1401", "cursor"},
			{request(t, "GET", root+"/nodes?cursor="+*cursor("units", daemon.Unit{}), ""), 400, "E1401", "cursor"},
			{request(t, "GET", root+"/nodes?%zz", ""), 400, "E1401", "malformed"},
			{request(t, "GET", root+"/events?since=yesterday", ""), 400, "E1401", "90s"},
			{request(t, "GET", root+"/events?order=random", ""), 400, "E1401", "newest,oldest"},
			{request(t, "GET", root+"/nodes/nobody", ""), 404, "E2202", "nobody"},
			{request(t, "GET", root+"/units/acme:reports", ""), 400, "E1401", "index"},
			{request(t, "GET", root+"/units/acme:reports/7", ""), 404, "E2201", "acme:reports/7"},
			{post(`{"kind": "node.cordon", "node": "a"}`, "Content-Type", "text/plain"), 415, "E1401", "application/json"},
			{post(`{"kind": "node.cordon", "node": "a"} x`), 400, "E1401", "more than one"},
			{post(`{"kind": "node.cordon", "nod": "a"}`), 400, "E1401", "nod"},
			{post(`{"kind": "node.cordon", "node": "` + strings.Repeat("a", longestBody) + `"}`), 413, "E1401", "65536"},
			{post(`{"kind": "node.explode", "node": "a"}`), 400, "E1401", "node.drain"},
			{post(`{"kind": "node.cordon"}`), 400, "E1401", "needs node"},
			{post(`{"kind": "node.cordon", "node": "a", "to": "b"}`), 400, "E1401", "has no to"},
			{post(`{"kind": "daemon.move", "unit": "acme:reports/0"}`), 400, "E1401", "needs to"},
			{post(`{"kind": "daemon.pin", "unit": "acme:reports/0", "to": "b", "generation": 3}`), 400, "E1401", "has no generation"},
			{post(`{"kind": "daemon.pause"}`), 400, "E1401", "needs daemon"},
			{post(`{"kind": "daemon.pause", "daemon": "acme:none"}`), 404, "E2201", "acme:none"},
			{post(`{"kind": "daemon.move", "unit": "acme:reports/0", "to": "nobody"}`), 404, "E2202", "nobody"},
			{post(`{"kind": "leader.resign", "cooldown_ms": -1}`), 400, "E1401", "at least 0"},
			{post(`{"kind": "node.cordon", "node": "a"}`, "Idempotency-Key", "a b"), 400, "E1401", "letters"},
			{post(`{"kind": "node.cordon", "node": "a"}`, "Sec-Fetch-Site", "cross-site"), 403, "E1401", "origin"},
			{post(`{"kind": "node.cordon", "node": "a"}`, "Origin", "https://evil.example"), 403, "E1401", "origin"},
		} {
			var p fault.Problem
			w := do(t, a, tc.r, &p)
			if w.Code != tc.status || p.Status != tc.status || string(p.Code) != tc.code || !strings.Contains(p.Detail, tc.detail) || p.Hint == "" {
				t.Errorf("%s %.80s: %d %s, want %d %s with %q", tc.r.Method, tc.r.URL, w.Code, w.Body, tc.status, tc.code, tc.detail)
			}
			if w.Header().Get("Content-Type") != "application/problem+json" || w.Header().Get("Cache-Control") != "no-store" {
				t.Errorf("%s %.80s: %v", tc.r.Method, tc.r.URL, w.Header())
			}
		}
		if now := head(t, store); now != before {
			t.Errorf("a refused call has changed something: event %d after %d", now, before)
		}
	})
}

func head(t *testing.T, store storage.Store) int64 {
	t.Helper()
	p, err := store.Events(t.Context(), 0, 1)
	if err != nil {
		t.Fatal(err)
	}
	return p.Head
}

// TestMounted: the API works below a prefix, answers HEAD, and passes on what goes wrong in the store.
func TestMounted(t *testing.T) {
	t.Parallel()
	a := api(t, broken{memory.Open(memory.Config{})})
	mux := http.NewServeMux()
	mux.Handle("/ops/", http.StripPrefix("/ops", a))
	server := httptest.NewServer(mux)
	defer server.Close()
	resp, err := server.Client().Head(server.URL + "/ops/api/v1/openapi.json")
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatal(resp, err)
	}
	resp.Body.Close()
	resp, err = server.Client().Get(server.URL + "/ops/api/v1/units/acme:mail%2Ffast%2F0")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	text, _ := io.ReadAll(resp.Body)
	if resp.StatusCode != http.StatusServiceUnavailable || resp.Header.Get("Retry-After") != "1" || !bytes.Contains(text, []byte("E5101")) {
		t.Errorf("%d %s", resp.StatusCode, text)
	}
}

// broken is a store that does not answer.
type broken struct{ storage.Store }

func (broken) Snapshot(context.Context) (*daemon.Snapshot, error) {
	return nil, fmt.Errorf("snapshot: %w", storage.ErrUnavailable)
}

// counted counts the reads of a store.
type counted struct {
	storage.Store
	snapshots int
	slow      time.Duration
}

func (c *counted) Snapshot(ctx context.Context) (*daemon.Snapshot, error) {
	c.snapshots++
	time.Sleep(c.slow)
	return c.Store.Snapshot(ctx)
}

// TestShared: calls that come together cost one read of the store, and the one after a command sees its effect.
func TestShared(t *testing.T) {
	inCluster(t, func(t *testing.T, inner storage.Store) {
		store := &counted{Store: inner, slow: 100 * time.Millisecond}
		a := api(t, store)
		done := make(chan int)
		for range 50 {
			go func() { done <- do(t, a, request(t, "GET", root+"/nodes/b", ""), nil).Code }()
		}
		for range 50 {
			if code := <-done; code != 200 {
				t.Error(code)
			}
		}
		if store.snapshots != 1 {
			t.Errorf("%d reads", store.snapshots)
		}
		store.slow = 0 // a command then takes less time than a read counts for
		time.Sleep(stateAge + time.Millisecond)
		var before, after nodeAnswer
		do(t, a, request(t, "GET", root+"/nodes/b", ""), &before)
		do(t, a, request(t, "POST", root+"/commands", `{"kind": "node.cordon", "node": "b"}`), nil)
		do(t, a, request(t, "GET", root+"/nodes/b", ""), &after)
		if len(before.Node.Orders) != 0 || len(after.Node.Orders) != 1 {
			t.Errorf("the cordon is not seen: %+v, %+v", before.Node, after.Node)
		}
		reads := store.snapshots
		time.Sleep(stateAge + time.Millisecond)
		do(t, a, request(t, "GET", root+"/nodes/b", ""), nil)
		if store.snapshots != reads+1 {
			t.Errorf("a read of %v ago is used", stateAge)
		}
	})
}

// periodic is a store with the state of a periodic daemon, or with none that can be read.
type periodic struct {
	storage.Store
	daemon.StateStore
	broken error
}

func (p periodic) UnitStates(context.Context, daemon.Unit) ([]daemon.UnitState, error) {
	state := daemon.UnitState{Unit: daemon.Unit{Daemon: "acme:reports", Index: 1}, Data: []byte(`{"schedule": "0 3 * * *"}`)}
	return []daemon.UnitState{state}, p.broken
}

// TestSchedules: a unit of a periodic daemon has its schedule, and a notice says so if schedules cannot be read.
func TestSchedules(t *testing.T) {
	inCluster(t, func(t *testing.T, store storage.Store) {
		var units unitPage
		do(t, api(t, periodic{Store: store}), request(t, "GET", root+"/units?daemon=acme:reports", ""), &units)
		if len(units.Units) != 3 || units.Units[0].Schedule != nil || units.Units[1].Schedule == nil || units.Units[1].Schedule.Schedule != "0 3 * * *" {
			t.Errorf("%+v", units.Units)
		}
		var s view.Status
		do(t, api(t, periodic{Store: store, broken: storage.ErrUnavailable}), request(t, "GET", root+"/status", ""), &s)
		if len(s.Attention) != 1 || !strings.Contains(s.Attention[0].Text, "schedules") {
			t.Errorf("%+v", s.Attention)
		}
	})
}
