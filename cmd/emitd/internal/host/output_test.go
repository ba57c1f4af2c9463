package host

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/emitd/emitd/cmd/emitd/internal/config"
	"github.com/emitd/emitd/cmd/emitd/internal/nodeapi"
	"github.com/emitd/emitd/cmd/emitd/internal/runlog"
	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/internal/admin/fault"
	"github.com/emitd/emitd/node"
)

// outputCluster is a snapshot with two nodes, one that is gone, and units in all places.
func outputCluster() *daemon.Snapshot {
	identity := func(name string) node.Identity {
		return node.Identity{Name: name, ID: node.ID("id-" + name), Incarnation: node.Incarnation("inc-" + name)}
	}
	member := func(name string, s node.State) node.Member {
		return node.Member{Identity: identity(name), State: s, Traits: node.Traits{Address: name + ":7070"}}
	}
	unit := func(id daemon.ID, i int, s daemon.State, holder string) daemon.Record {
		r := daemon.Record{Unit: daemon.Unit{Daemon: id, Index: i}, State: s}
		if holder != "" {
			r.Holder = identity(holder)
		}
		return r
	}
	return &daemon.Snapshot{
		Nodes: []node.Member{member("a", node.Live), member("b", node.Live), member("gone", node.Removed)},
		Units: []daemon.Record{
			unit("acme:one", 0, daemon.Active, "b"),
			unit("acme:two", 0, daemon.Active, "a"),
			unit("acme:two", 1, daemon.Unassigned, "gone"),
			unit("acme:never", 0, daemon.Unassigned, ""),
			unit("acme:ended", 0, daemon.Unassigned, "b"),
			unit("emit:sweeper", 0, daemon.Active, "a"),
		},
	}
}

// TestWhereIs checks which node is asked for the output of a unit, and what is said if there is none.
func TestWhereIs(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		unit, node string
		at         string // name of the node
		code       fault.Code
		message    string
	}{
		{"acme:one", "", "b", "", ""},
		{"acme:one/0", "", "b", "", ""},
		{"acme:two/0", "", "a", "", ""},
		{"acme:ended", "", "b", "", ""},
		{"acme:one", "a", "a", "", ""},
		{"acme:one", "id-a", "a", "", ""},
		{"acme:one", "gone", "", fault.NoNode, `there is no node "gone"`},
		{"acme:two", "", "", fault.Usage, "acme:two has 2 units"},
		{"acme:two/1", "", "", fault.NoOutput, "gone, where acme:two/1 ran last, is gone"},
		{"acme:never", "", "", fault.NoOutput, "acme:never/0 has not run on any node yet"},
		{"acme:on", "", "", fault.NoDaemon, `there is no daemon or unit "acme:on"`},
		{"", "", "", fault.NoDaemon, `there is no daemon or unit ""`},
		{"emit:sweeper", "", "", fault.Usage, "emit:sweeper is not a command"},
	} {
		q := outputQuery{unit: tt.unit, node: tt.node}
		m, err := whereIs(outputCluster(), &q)
		switch {
		case tt.code == "" && (err != nil || m.Name != tt.at || !strings.HasPrefix(q.unit, tt.unit) || !strings.HasSuffix(q.unit, "/0")):
			t.Errorf("%+v: %v, %v, %v", tt, m, q, err)
		case tt.code != "" && (err == nil || fault.Of(err)[0].Code != tt.code || !strings.Contains(err.Error(), tt.message)):
			t.Errorf("%+v: %v", tt, err)
		}
	}
}

// TestOutputQuery checks that a call that is passed on asks for the same, and that mistakes are refused.
func TestOutputQuery(t *testing.T) {
	t.Parallel()
	for _, text := range []string{
		"unit=u", "previous=true&unit=u", "tail=3&unit=u", "after=1.2.3&unit=u&wait=5s", "after=1.2.3.end&unit=u&wait=0s",
	} {
		v, _ := url.ParseQuery(text)
		q, err := parseOutputQuery(v)
		if got := q.values().Encode(); err != nil || got != text {
			t.Errorf("%s became %s, %v", text, got, err)
		}
	}
	for _, text := range []string{"previous=maybe", "tail=-1", "tail=x", "wait=x", "wait=-1s", "after=x"} {
		v, _ := url.ParseQuery(text)
		if _, err := parseOutputQuery(v); err == nil || fault.Of(err)[0].Code != fault.Usage {
			t.Errorf("%s: %v", text, err)
		}
	}
	if q, err := parseOutputQuery(url.Values{"wait": {"1h"}}); err != nil || q.wait != mostWait {
		t.Errorf("an hour became %v, %v", q.wait, err)
	}
}

// outputHost is a process that keeps the output of acme:one/0.
func outputHost(t *testing.T, ending chan struct{}) *host {
	t.Helper()
	cfg := &config.Loaded{Config: config.Defaults("fast")}
	cfg.Daemons.Exec = []config.Exec{{ID: "acme:one"}}
	g, err := newGuard(cfg.API, quiet)
	if err != nil {
		t.Fatal(err)
	}
	h := &host{
		Options: Options{Config: cfg}, nodes: []node.Identity{{Name: "a"}}, runs: runlog.New(1 << 10), ending: ending, guard: g,
	}
	r := h.runs.Begin("acme:one/0", "a", 7)
	r.Line("stdout", "hello", false)
	return h
}

// call asks a process itself.
func call(h *host, query string) (status int, page runlog.Page, body string) {
	r := httptest.NewRequest(http.MethodGet, nodeapi.Output+"?"+query, nil)
	r.Header.Set(nodeapi.Forwarded, "1")
	w := httptest.NewRecorder()
	h.output(w, r)
	body = w.Body.String()
	_ = json.Unmarshal(w.Body.Bytes(), &page)
	return w.Code, page, body
}

// TestOwnOutput checks the answers of the process that keeps the output.
func TestOwnOutput(t *testing.T) {
	t.Parallel()
	h := outputHost(t, nil)
	for _, tt := range []struct {
		query   string
		status  int
		message string
	}{
		{"unit=acme:one/0", 200, `"text":"hello"`},
		{"unit=acme:one/0&after=7.1.0", 200, `"text":"hello"`},
		{"unit=acme:one/0&after=7.1.1&wait=1ms", 200, `"lines":[]`},
		{"unit=acme:one/0&previous=true", 404, string(fault.NoOutput)},
		{"unit=acme:one/7", 404, "a keeps no run of acme:one/7"},
		{"unit=acme:other/0", 400, "a has no command acme:other"},
		{"unit=nonsense", 404, string(fault.NoDaemon)},
		{"unit=acme:one/0&tail=x", 400, "tail is"},
	} {
		if status, _, body := call(h, tt.query); status != tt.status || !strings.Contains(body, tt.message) {
			t.Errorf("%s: %d %s", tt.query, status, body)
		}
	}
	h.runs = nil
	if status, _, body := call(h, "unit=acme:one/0"); status != 404 || !strings.Contains(body, "daemons.output_buffer is 0") {
		t.Errorf("nothing is kept: %d %s", status, body)
	}
}

// TestStopEndsWaits checks that a process that stops answers those who wait for output.
func TestStopEndsWaits(t *testing.T) {
	t.Parallel()
	ending := make(chan struct{})
	h := outputHost(t, ending)
	time.AfterFunc(10*time.Millisecond, func() { close(ending) })
	begun := time.Now()
	status, page, _ := call(h, "unit=acme:one/0&after=7.1.1&wait=20s")
	if status != 200 || page.Next.String() != "7.1.1" || time.Since(begun) > mostWait/2 {
		t.Errorf("%d, %v after %v", status, page.Next, time.Since(begun))
	}
}

// TestForwardOutput checks that a call goes to the other node with the caller's token and is marked, that its answers and
// refusals come back as they are, and that a node that is dead is named.
func TestForwardOutput(t *testing.T) {
	t.Parallel()
	var requested []string
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		requested = append(requested, r.URL.String()+" "+r.Header.Get("Authorization")+" "+r.Header.Get(nodeapi.Forwarded))
		switch {
		case strings.Contains(r.URL.RawQuery, "previous"):
			nodeapi.Refuse(w, fault.New(fault.NoOutput, "no more").Hint("look elsewhere"))
		case strings.Contains(r.URL.RawQuery, "tail"):
			http.NotFound(w, r)
		default:
			_, _ = w.Write([]byte(`{"x":1}`))
		}
	}))
	h := outputHost(t, nil)
	forward := func(q outputQuery) (string, error) {
		q.unit = "acme:one/0"
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.Header.Set("Authorization", "Bearer t")
		w := httptest.NewRecorder()
		err := h.forwardOutput(w, r, q, &node.Member{Identity: node.Identity{Name: "b"}, Traits: node.Traits{Address: strings.TrimPrefix(other.URL, "http://")}})
		return w.Body.String(), err
	}
	if got, err := forward(outputQuery{}); err != nil || got != `{"x":1}` {
		t.Errorf("%q, %v", got, err)
	}
	if want := []string{nodeapi.Output + "?unit=acme%3Aone%2F0 Bearer t 1"}; !slices.Equal(requested, want) {
		t.Errorf("asked %q, want %q", requested, want)
	}
	_, err := forward(outputQuery{Query: runlog.Query{Previous: true}})
	if f := fault.Of(err); len(f) != 1 || f[0].Code != fault.NoOutput || f[0].What != "no more" || f[0].Do != "look elsewhere" {
		t.Errorf("a refusal: %v", err)
	}
	_, err = forward(outputQuery{Query: runlog.Query{Tail: 1}})
	if err == nil || !strings.Contains(err.Error(), "does not know this call") {
		t.Errorf("an older node: %v", err)
	}
	other.Close()
	_, err = forward(outputQuery{})
	if f := fault.Of(err); len(f) != 1 || f[0].Code != fault.NodeUnreachable || !strings.Contains(f[0].What, "b, which has the output of acme:one/0: the node at 127.0.0.1:") {
		t.Errorf("a dead node: %v", err)
	}
}
