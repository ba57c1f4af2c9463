package cli

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/internal/admin/body"
	"github.com/emitd/emitd/internal/admin/fault"
	"github.com/emitd/emitd/internal/admin/view"
)

// cannedNode is a node that answers commands as the test says, the last answer for ever.
type cannedNode struct {
	answers []canned
	keys    map[string]int // how often each Idempotency-Key was sent
}

type canned struct {
	status int // 0: err
	body   string
	err    error
}

func (w *cannedNode) RoundTrip(r *http.Request) (*http.Response, error) {
	w.keys[r.Header.Get("Idempotency-Key")]++
	a := w.answers[0]
	if len(w.answers) > 1 {
		w.answers = w.answers[1:]
	}
	if a.status == 0 {
		return nil, a.err
	}
	kind := "application/json"
	if a.status >= 400 {
		kind = fault.ProblemType
	}
	return &http.Response{StatusCode: a.status, Header: http.Header{"Content-Type": {kind}}, Body: io.NopCloser(strings.NewReader(a.body)), Request: r}, nil
}

// TestLiftedDrainOfANode: a drain that was lifted while the command waited for its end is no success.
func TestLiftedDrainOfANode(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		command := `{"command": {"id": "c1", "kind": "node.drain", "created_at": "2026-01-01T00:00:00Z", `
		w := &cannedNode{keys: map[string]int{}, answers: []canned{
			{status: 200, body: command + `"result": "in force"}, "done": true, "moves": []}`},
			{status: 200, body: command + `"result": "lifted: by command c2 by bob", "done_at": "2026-01-01T00:01:00Z"}, "done": true, "moves": []}`},
			{status: 200, body: `{}`}, // the status
		}}
		var out bytes.Buffer
		a := &app{Streams: Streams{Out: &out, Err: io.Discard}, output: string(view.TableFormat)}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		in := &cluster{node: &remote{base: "http://node/api/v1", http: &http.Client{Transport: w}}}
		err := a.orderNode(ctx, in, order{kind: daemon.CommandDrain, wait: true}, daemon.CommandArgs{Node: "node-1"}, "node-1")
		if f := (*fault.Fault)(nil); !errors.As(err, &f) || f.Code != fault.CommandConflict || !strings.Contains(f.What, "lifted: by command c2 by bob") {
			t.Errorf("%v, want that bob has lifted it; printed %q", err, out.String())
		}
	})
}

// TestRequest: a command about one unit names that unit and no daemon, whatever names the unit.
func TestRequest(t *testing.T) {
	t.Parallel()
	for _, text := range []string{"acme:reports/2", "acme:tenants~globex"} {
		u, err := daemon.ParseUnit(text)
		if err != nil {
			t.Fatal(err)
		}
		var args daemon.CommandArgs
		args.SetUnit(u)
		if r := (order{kind: daemon.CommandPause}).request(args); r.Unit != u || r.Daemon != "" {
			t.Errorf("%s: %+v", text, r)
		}
	}
	if r := (order{kind: daemon.CommandPause}).request(daemon.CommandArgs{Daemon: "acme:reports"}); r.Daemon != "acme:reports" || !r.Unit.IsZero() {
		t.Errorf("a daemon: %+v", r)
	}
}

// TestKnownNodes: what is in force about a node whose row is gone can be ended. Nothing new can be ordered about it.
func TestKnownNodes(t *testing.T) {
	t.Parallel()
	s := view.Status{Orders: []view.Order{
		{Kind: daemon.CommandDrain, Subject: "gone"}, {Kind: daemon.CommandPin, Subject: "acme:reports/0", To: "lost"}, {Kind: daemon.CommandPause, Subject: "acme:reports"},
	}}
	for kind, want := range map[daemon.CommandKind]string{
		daemon.CommandUncordon: "gone lost", daemon.CommandForget: "gone lost", daemon.CommandCordon: "", daemon.CommandDrain: "",
	} {
		var known []string
		for _, name := range []string{"gone", "lost", "acme:reports", "acme:reports/0", "other"} {
			if args, err := (order{kind: kind}).arguments(s, name); err == nil && args.Node == name {
				known = append(known, name)
			}
		}
		if got := strings.Join(known, " "); got != want {
			t.Errorf("%s accepts %q, want %q", kind, got, want)
		}
	}
}

// TestNodeIsCalledAgain: a command is given to a node until it is answered, always with the same key; what is certain is said
// at once.
func TestNodeIsCalledAgain(t *testing.T) {
	t.Parallel()
	command := `"command": {"id": "c1", "kind": "node.cordon", "result": "cordoned", "created_at": "2026-01-01T00:00:00Z"}`
	done := canned{status: 200, body: `{"done": true, ` + command + `, "moves": []}`}
	waits := canned{status: 202, body: `{"done": false, ` + command + `, "moves": []}`}
	broke := canned{err: errors.New("connection reset by peer")}
	away := canned{status: 503, body: `{"code": "E5101", "detail": "store unreachable"}`}
	unknown := canned{status: 503, body: `{"code": "E2106", "detail": "it is not known"}`}
	refused := canned{status: 409, body: `{"code": "E2111", "detail": "refused: node-1 is cordoned already"}`}
	noRoute := canned{err: &net.OpError{Op: "dial", Err: errors.New("connection refused")}}
	for name, tt := range map[string]struct {
		answers []canned
		code    fault.Code // "" means no fault
		prints  string
		calls   int // at least
	}{
		"done at once":             {[]canned{done}, "", "", 1},
		"done later":               {[]canned{waits, waits, done}, "", "", 3},
		"the answer was lost":      {[]canned{broke, done}, "", "", 2},
		"the store was away":       {[]canned{away, unknown, waits, done}, "", "", 4},
		"refused":                  {[]canned{refused}, fault.CommandRefused, "cordoned already", 1},
		"refused later":            {[]canned{waits, broke, refused}, fault.CommandRefused, "cordoned already", 3},
		"nobody is there":          {[]canned{noRoute}, fault.NodeUnreachable, "connection refused", 1},
		"it went away":             {[]canned{waits, noRoute}, fault.CommandUnknown, "connection refused", 20},
		"never done":               {[]canned{waits}, fault.CommandWaits, "is stored, but not carried out yet", 20},
		"never an answer":          {[]canned{broke}, fault.CommandUnknown, "connection reset", 20},
		"something else is there":  {[]canned{{status: 404, body: "no"}}, fault.CommandUnknown, "404", 20},
		"it has no such parameter": {[]canned{{status: 400, body: `{"code": "E1001", "detail": "unknown"}`}}, fault.Usage, "unknown", 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				w := &cannedNode{answers: tt.answers, keys: map[string]int{}}
				r := &remote{base: "http://node/api/v1", http: &http.Client{Transport: w}}
				ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
				defer cancel()
				answer, err := r.order(ctx, body.CommandRequest{Kind: daemon.CommandCordon, Node: "node-1"})
				switch f := (*fault.Fault)(nil); {
				case tt.code == "" && (err != nil || answer.Command.Result != "cordoned"):
					t.Errorf("%+v, %v", answer, err)
				case tt.code != "" && (!errors.As(err, &f) || f.Code != tt.code || !strings.Contains(f.What, tt.prints)):
					t.Errorf("%v, want %s with %q", err, tt.code, tt.prints)
				}
				for key, n := range w.keys {
					if len(w.keys) != 1 || len(key) != 36 || n < tt.calls {
						t.Errorf("the calls were %v, want one key and %d calls", w.keys, tt.calls)
					}
				}
			})
		})
	}
}
