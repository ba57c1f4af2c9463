package cli

import (
	"bytes"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/emitd/emitd/coordinator/admin"
	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/internal/admin/fault"
	"github.com/emitd/emitd/node"
	"github.com/emitd/emitd/storage"
	"github.com/emitd/emitd/storage/sqlite"
)

// oneNodeCluster makes a store with the node a, which leads, and a unit that it runs, another one that it has not
// acknowledged, and a third one that no node can take. Somebody has a lock.
func oneNodeCluster(t *testing.T) (*sqlite.Store, string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "emitd.db")
	if _, err := sqlite.Migrate(t.Context(), sqlite.Config{Path: path}); err != nil {
		t.Fatal(err)
	}
	s, err := sqlite.Open(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	a := node.Identity{Name: "a", ID: "0190b8a0-0000-7000-8000-000000000001", Incarnation: "0190b8a0-0000-7000-8000-000000000002"}
	advert := daemon.Advert{Kinds: []daemon.Kind{"acme:reports"}, Specs: []daemon.Spec{{ID: "acme:reports", Instances: 3}, {ID: "acme:gpu", Requires: map[string]string{"gpu": "yes"}}}}
	advert.Traits = node.Traits{Version: "1.2.3", Labels: map[string]string{"zone": "eu-1"}, Capacity: 2}
	for seq, campaign := range []bool{false, true} {
		if _, err := s.Heartbeat(t.Context(), storage.Heartbeat{Node: a, Seq: uint64(seq + 1), Advert: &advert, TTL: time.Hour, TermRequest: storage.TermRequest{Lease: time.Hour, Campaign: campaign}}); err != nil {
			t.Fatal(err)
		}
	}
	snap, err := s.Snapshot(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	commit := storage.Commit{Term: snap.Term.Ref()}
	for i := range 3 {
		u := daemon.Unit{Daemon: "acme:reports", Index: i}
		commit.Changes = append(commit.Changes, storage.Change{Unit: u}, storage.Change{Unit: u, Step: daemon.Assign, State: daemon.Unassigned, To: a, Reason: "least loaded"})
	}
	commit.Changes = append(commit.Changes, storage.Change{Unit: daemon.Unit{Daemon: "acme:gpu"}})
	if _, err := s.Commit(t.Context(), commit); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Submit(t.Context(), storage.Command{ID: "c1", Kind: daemon.CommandPause, Actor: "alice", Reason: "new schema", Args: daemon.CommandArgs{Daemon: "acme:reports"}.Encode()}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Acquire(t.Context(), "nightly report", "web-1:7/0190b8a0-0000-7000-8000-000000000003", time.Hour, storage.Lock{}); err != nil {
		t.Fatal(err)
	}
	return s, path
}

// clock matches what differs from one read to the next: ages, and times of the present.
var clock = regexp.MustCompile(`"(at|held_seconds)": [^\n]*|"at":"[^"]*"|"held_seconds":[0-9.e-]+|\bat: "[^"]*"|held_seconds: [^\n]*|\b\d+(\.\d)?[smh]\d*m?s?\b`)

// TestNodeAnswersAsStore checks that every read prints the same, in every format, whether it reads the store or asks a
// node, and ends with the same code.
func TestNodeAnswersAsStore(t *testing.T) {
	t.Parallel()
	s, path := oneNodeCluster(t)
	api, err := admin.New(admin.Config{Store: s, StoreKind: "sqlite", Cluster: "default"})
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(http.StripPrefix("/ops", api))
	defer server.Close()
	run := func(args ...string) (int, string, string) {
		var o, e bytes.Buffer
		code := Main(t.Context(), args, Streams{In: strings.NewReader(""), Out: &o, Err: &e})
		return code, clock.ReplaceAllString(o.String(), "…"), clock.ReplaceAllString(e.String(), "…")
	}
	for _, read := range []string{
		"status", "status --exit-code", "node ls", "node ls --all", "daemon ls", "daemon explain acme:reports", "daemon explain acme:reports/1 --node a",
		"daemon explain acme:gpu", "daemon explain acme:none", "leader show", "leader history", "lock ls", "plan", "plan --lose a", "events", "events --kind leader.* --since 1h", "events --node nobody",
	} {
		for _, format := range []string{"table", "wide", "json", "jsonl", "yaml", "name"} {
			args := append(strings.Fields(read), "-o", format)
			code, out, problem := run(append(args, "--store", "sqlite://"+path)...)
			code2, out2, problem2 := run(append(args, "--addr", server.URL+"/ops")...)
			if code != code2 || out != out2 || problem != problem2 {
				t.Errorf("%s: the store gives %d\n%s%s\nthe node %d\n%s%s", strings.Join(args, " "), code, out, problem, code2, out2, problem2)
			}
		}
	}
}

// TestNodeDoesNotAnswer checks what is said about a node that is down, refuses, or is something else.
func TestNodeDoesNotAnswer(t *testing.T) {
	t.Parallel()
	answer := http.NotFoundHandler()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { answer.ServeHTTP(w, r) }))
	defer server.Close()
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte("# mine\nabcdefghijklmnopqrst\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	down := httptest.NewServer(nil)
	down.Close()
	run := func(args ...string) (int, string) {
		var e bytes.Buffer
		code := Main(t.Context(), append([]string{"node", "ls"}, args...), Streams{In: strings.NewReader(""), Out: new(bytes.Buffer), Err: &e})
		return code, e.String()
	}
	for _, c := range []struct {
		name   string
		answer http.HandlerFunc
		args   []string
		code   int
		text   string
	}{
		{"not emitd", http.NotFound, []string{"--addr", server.URL}, fault.ExitUnreachable, "E2305"},
		{"down", nil, []string{"--addr", down.URL}, fault.ExitUnreachable, "E2305"},
		{"no address", nil, []string{"--addr", "http://"}, fault.ExitUsage, "E1001"},
		{"broken off", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			w.Write([]byte(`{"nodes": [`))
		}, []string{"--addr", server.URL}, fault.ExitUnreachable, "E2305"},
		{"refused", func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", fault.ProblemType)
			w.WriteHeader(http.StatusServiceUnavailable)
			w.Write([]byte(`{"code": "E5101", "detail": "the store of ` + r.Header.Get("Authorization") + `", "hint": "wait"}`))
		}, []string{"--addr", server.URL, "--token-file", file}, fault.ExitUnreachable, "E5101: the store of Bearer abcdefghijklmnopqrst"},
	} {
		if answer = http.NotFoundHandler(); c.answer != nil {
			answer = c.answer
		}
		if code, text := run(c.args...); code != c.code || !strings.Contains(text, c.text) {
			t.Errorf("%s: %d %s", c.name, code, text)
		}
	}
}
