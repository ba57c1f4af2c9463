package admin

import (
	"bytes"
	"context"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/internal/admin/body"
	"github.com/emitd/emitd/internal/admin/fault"
	"github.com/emitd/emitd/node"
	"github.com/emitd/emitd/storage"
	"github.com/emitd/emitd/storage/memory"
)

// give gives a command.
func give(t *testing.T, a *API, text string, header ...string) (int, body.CommandAnswer, fault.Problem) {
	t.Helper()
	var answer struct {
		body.CommandAnswer
		fault.Problem
	}
	w := do(t, a, request(t, "POST", root+"/commands", text, header...), &answer)
	return w.Code, answer.CommandAnswer, answer.Problem
}

func unitOf(t *testing.T, store storage.Store, u daemon.Unit) daemon.Record {
	t.Helper()
	snap, err := store.Snapshot(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range snap.Units {
		if r.Unit == u {
			return r
		}
	}
	t.Fatalf("no unit %s", u)
	return daemon.Record{}
}

// TestCommands: an operator's evening by the API. A dry run changes nothing, a command is carried out, and its effect is
// seen; who gave it and why is in the history.
func TestCommands(t *testing.T) {
	inCluster(t, func(t *testing.T, store storage.Store) {
		a := api(t, store)
		code, dry, _ := give(t, a, `{"kind": "node.drain", "node": "a", "dry_run": true}`)
		if code != 200 || dry.Command != nil || dry.Done || len(dry.Moves) == 0 {
			t.Fatalf("%d %+v", code, dry)
		}
		if snap, err := store.Snapshot(t.Context()); err != nil || len(snap.Commands) != 0 {
			t.Fatalf("a dry run has stored %+v, %v", snap.Commands, err)
		}
		code, drain, _ := give(t, a, `{"kind": "node.drain", "node": "a", "actor": "alice", "reason": "new kernel"}`)
		if code != 200 || !drain.Done || drain.Command.Actor != "alice" {
			t.Fatalf("%d %+v", code, drain)
		}
		var open commandPage
		if do(t, a, request(t, "GET", root+"/commands", ""), &open); len(open.Commands) != 1 || open.Commands[0].ID != drain.Command.ID {
			t.Errorf("open commands: %+v", open)
		}
		if code, lifted, _ := give(t, a, `{"kind": "node.uncordon", "node": "a"}`); code != 200 || lifted.Command.Actor != "api" {
			t.Errorf("%d %+v", code, lifted)
		}
		var events eventPage
		do(t, a, request(t, "GET", root+"/events?kind=operator.drain", ""), &events)
		if len(events.Events) == 0 || !strings.Contains(string(events.Events[0].Detail)+events.Events[0].Reason, "new kernel") {
			t.Errorf("the history has %+v", events.Events)
		}
		u := daemon.Unit{Daemon: "acme:reports", Index: 0}
		if code, moved, p := give(t, a, `{"kind": "daemon.move", "unit": "acme:reports/0", "to": "`+another(unitOf(t, store, u))+`"}`); code != 200 || !moved.Done {
			t.Errorf("%d %+v %+v", code, moved, p)
		}
	})
}

// TestNodesWithoutARow: what is in force about a node whose row is gone can be ended. Nothing new can be ordered about it.
func TestNodesWithoutARow(t *testing.T) {
	t.Parallel()
	snap := &daemon.Snapshot{Commands: []daemon.Command{
		{Kind: daemon.CommandDrain, Args: daemon.CommandArgs{Node: "gone"}.Encode()},
		{Kind: daemon.CommandPin, Args: daemon.CommandArgs{To: "lost"}.Encode()},
		{Kind: daemon.CommandUncordon, Args: daemon.CommandArgs{Node: "other"}.Encode()},
	}}
	for kind, want := range map[daemon.CommandKind]string{
		daemon.CommandUncordon: "gone lost", daemon.CommandForget: "gone lost", daemon.CommandCordon: "", daemon.CommandDrain: "",
	} {
		var known []string
		for _, name := range []string{"gone", "lost", "other"} {
			if (given{CommandRequest: body.CommandRequest{Kind: kind, Node: name}}).check(snap) == nil {
				known = append(known, name)
			}
		}
		if got := strings.Join(known, " "); got != want {
			t.Errorf("%s accepts %q, want %q", kind, got, want)
		}
	}
}

// another returns a node other than the one that holds the unit.
func another(r daemon.Record) string {
	if r.Holder.Name == "b" {
		return "c"
	}
	return "b"
}

// TestExpectations: a command that expects another term or generation than the present one is refused with 409 and the
// code for which the command line exits with 5, and nothing is changed.
func TestExpectations(t *testing.T) {
	inCluster(t, func(t *testing.T, store storage.Store) {
		a := api(t, store)
		u := daemon.Unit{Daemon: "acme:reports", Index: 0}
		r := unitOf(t, store, u)
		for _, body := range []string{
			`{"kind": "daemon.move", "unit": "acme:reports/0", "to": "` + another(r) + `", "generation": 1}`,
			`{"kind": "daemon.restart", "unit": "acme:reports/0", "generation": 1}`,
			`{"kind": "node.cordon", "node": "b", "term": 1}`,
			`{"kind": "leader.resign", "term": 1}`,
		} {
			for _, header := range [][]string{nil, {"Idempotency-Key", "k" + body[10:22]}} {
				if code, _, p := give(t, a, body, header...); code != http.StatusConflict || p.Code != "E2110" || !strings.Contains(p.Why, "nothing was changed") {
					t.Errorf("%s %v: %d %+v", body, header, code, p)
				}
			}
		}
		if now := unitOf(t, store, u); now.Generation != r.Generation {
			t.Errorf("the unit has moved: %+v", now)
		}
		if code, _, p := give(t, a, `{"kind": "daemon.pin", "unit": "acme:reports/0", "to": "`+another(r)+`", "term": `+term(t, store)+`}`); code != 200 {
			t.Errorf("the right term: %d %+v", code, p)
		}
		if code, _, p := give(t, a, `{"kind": "daemon.move", "unit": "acme:reports/0", "to": "a"}`); code != http.StatusConflict || p.Code != "E2111" {
			t.Errorf("a move of a pinned unit: %d %+v", code, p)
		}
	})
}

func term(t *testing.T, store storage.Store) string {
	t.Helper()
	snap, err := store.Snapshot(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return strconv.FormatInt(snap.Term.Number, 10)
}

// TestIdempotency: calls with one key give one command, also when it was carried out long ago and would be refused today.
// Another command under the same key is refused.
func TestIdempotency(t *testing.T) {
	inCluster(t, func(t *testing.T, store storage.Store) {
		a := api(t, store)
		u := daemon.Unit{Daemon: "acme:reports", Index: 1}
		move := `{"kind": "daemon.move", "unit": "acme:reports/1", "to": "` + another(unitOf(t, store, u)) + `", "actor": "alice"}`
		code, first, p := give(t, a, move, "Idempotency-Key", "maintenance-7")
		if code != 200 || first.Command.ID != "maintenance-7" {
			t.Fatalf("%d %+v %+v", code, first, p)
		}
		moved := unitOf(t, store, u)
		for _, key := range []string{"maintenance-7", `"maintenance-7"`} {
			if code, again, p := give(t, a, move, "Idempotency-Key", key); code != 200 || !again.Done || !again.Command.CreatedAt.Equal(first.Command.CreatedAt) {
				t.Errorf("%d %+v %+v", code, again, p)
			}
		}
		if now := unitOf(t, store, u); now.Generation != moved.Generation {
			t.Errorf("the unit was moved twice: %+v", now)
		}
		for _, other := range []string{
			strings.Replace(move, "reports/1", "reports/2", 1),
			strings.Replace(move, "alice", "bob", 1),
			`{"kind": "node.cordon", "node": "a", "actor": "alice"}`,
			strings.Replace(move, `"actor"`, `"generation": 1, "actor"`, 1),
		} {
			if code, _, p := give(t, a, other, "Idempotency-Key", "maintenance-7"); code != http.StatusUnprocessableEntity || p.Code != "E1401" {
				t.Errorf("%s: %d %+v", other, code, p)
			}
		}
	})
}

// TestRepeatedWhenGone: a command that is repeated with its key has the answer of the first time, also when what it was
// about is gone by now: the leader has resigned, the unit's node has died. Another command under the key is refused, and
// so is a command that was never given.
func TestRepeatedWhenGone(t *testing.T) {
	inCluster(t, func(t *testing.T, store storage.Store) {
		resign, pin := `{"kind": "leader.resign", "actor": "alice"}`, `{"kind": "daemon.pin", "unit": "acme:reports/0", "to": "b", "actor": "alice"}`
		a := api(t, store)
		_, resigned, _ := give(t, a, resign, "Idempotency-Key", "k-resign")
		_, pinned, _ := give(t, a, pin, "Idempotency-Key", "k-pin")
		gone := api(t, emptied{store})
		for _, c := range []struct {
			body, key string
			code      int
			first     *daemon.Command
		}{
			{resign, "k-resign", 200, resigned.Command},
			{pin, "k-pin", 200, pinned.Command},
			{resign, "k-other", 503, nil},
			{pin, "k-other", 404, nil},
			{pin, "", 404, nil},
			{strings.Replace(pin, `"b"`, `"c"`, 1), "k-pin", 422, nil},
		} {
			var header []string
			if c.key != "" {
				header = []string{"Idempotency-Key", c.key}
			}
			code, answer, p := give(t, gone, c.body, header...)
			if code != c.code || c.first != nil && (answer.Command == nil || !answer.Command.CreatedAt.Equal(c.first.CreatedAt)) {
				t.Errorf("%s with %q: %d %+v %+v", c.body, c.key, code, answer, p)
			}
		}
	})
}

// emptied is a store whose cluster has neither nodes nor units nor a leader any more, but its history.
type emptied struct{ storage.Store }

func (s emptied) Snapshot(ctx context.Context) (*daemon.Snapshot, error) {
	snap, err := s.Store.Snapshot(ctx)
	if err != nil {
		return nil, err
	}
	return &daemon.Snapshot{Now: snap.Now, StoreID: snap.StoreID, Head: snap.Head}, nil
}

// TestWithoutLeader: a command that no leader carries out in time is stored, and the answer says so. A call with its ID
// waits for it again. If it is not known whether it was stored, the answer says that.
func TestWithoutLeader(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		store := memory.Open(memory.Config{})
		if _, err := store.Heartbeat(t.Context(), storage.Heartbeat{
			Node: node.Identity{Name: "a", ID: "1", Incarnation: "1"}, Seq: 1, Advert: &daemon.Advert{},
		}); err != nil {
			t.Fatal(err)
		}
		a := api(t, store, func(c *Config) { c.Actor = func(*http.Request) string { return "bob" } })
		for range 2 {
			code, answer, p := give(t, a, `{"kind": "node.cordon", "node": "a", "actor": "mallory"}`, "Idempotency-Key", "k1")
			if code != http.StatusAccepted || answer.Done || answer.Command.Actor != "bob" {
				t.Errorf("%d %+v %+v", code, answer, p)
			}
		}
		if code, _, p := give(t, a, `{"kind": "leader.resign"}`); code != http.StatusServiceUnavailable || p.Code != "E2103" {
			t.Errorf("%d %+v", code, p)
		}
		a = api(t, deafStore{store})
		if code, _, p := give(t, a, `{"kind": "node.cordon", "node": "a"}`, "Idempotency-Key", "k2"); code != http.StatusServiceUnavailable || p.Code != "E2106" || !strings.Contains(p.Detail, "k2") {
			t.Errorf("%d %+v", code, p)
		}
	})
}

// deafStore is a store whose answer to a command is lost.
type deafStore struct{ storage.Store }

func (d deafStore) Submit(ctx context.Context, c storage.Command) (*storage.Command, error) {
	if _, err := d.Store.Submit(ctx, c); err != nil {
		return nil, err
	}
	return nil, storage.ErrUnavailable
}

// TestAllKinds: the API gives every kind of command that there is, and says so.
func TestAllKinds(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile(filepath.Join("..", "..", "daemon", "command.go"))
	if err != nil {
		t.Fatal(err)
	}
	found := regexp.MustCompile(`CommandKind = "([a-z.]+)"`).FindAllSubmatch(text, -1)
	if len(found) < 13 {
		t.Errorf("only %d kinds were found: this test looks in the wrong place", len(found))
	}
	for _, kind := range found {
		if _, ok := kinds[daemon.CommandKind(kind[1])]; !ok {
			t.Errorf("the API does not know %s", kind[1])
		}
		if !bytes.Contains(document, kind[1]) {
			t.Errorf("the document does not mention %s", kind[1])
		}
	}
}
