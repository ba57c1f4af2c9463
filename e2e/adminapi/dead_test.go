package adminapi

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/e2e/drill"
	"github.com/emitd/emitd/node"
	"github.com/emitd/emitd/storage/sqlite"
)

func TestMain(m *testing.M) {
	drill.Ticker()
	code := m.Run()
	drill.Cleanup()
	os.Exit(code)
}

// problem is what a refusal says.
type problem struct{ Code, Detail, Why, Hint string }

// TestCallsForANodeThatDied kills the process of one node, and stops that of another so that nothing proves its end. Calls to
// the node that is left which need one of these to act are refused: the answer says what is the matter, that nothing was
// changed and what to do, and indeed nothing was. Both are still shown, with their state.
func TestCallsForANodeThatDied(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "emitd.db")
	store, err := sqlite.Open(context.Background(), path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { store.Close() })
	c := drill.New(t, "sqlite://"+path, store)
	c.Instances, c.Config = 4, "coordinator: {node_registration_ttl: 10m}" // the stopped one stays late
	a, killed, stopped := c.Start("a"), c.Start("killed"), c.Start("stopped")
	c.Settled("a", "killed", "stopped")
	base := "http://" + a.Address() + "/api/v1"
	state := func(name string) node.State {
		_, _, answer := call(t, "GET", base+"/nodes/"+name, "")
		var out struct{ Node struct{ State node.State } }
		if err := json.Unmarshal(answer, &out); err != nil {
			t.Fatalf("%v: %s", err, answer)
		}
		return out.Node.State
	}

	killed.Kill()
	c.Until(4*time.Minute, "the killed node is removed", func() bool { return state("killed") == node.Removed })
	stopped.Signal(syscall.SIGSTOP)
	c.Until(4*time.Minute, "the stopped node is late, and the one that is left leads", func() bool {
		return state("stopped") == node.Late && c.Leader() == a
	})
	here := unitOn(t, c, "a")
	for _, dead := range []string{"killed is removed", "stopped is late"} {
		name, _, _ := strings.Cut(dead, " ")
		for _, body := range []string{
			`{"kind": "daemon.move", "unit": %q, "to": %q}`,
			`{"kind": "daemon.move", "unit": %q, "to": %q, "dry_run": true}`,
			`{"kind": "daemon.pin", "unit": %q, "to": %q}`,
			`{"kind": "leader.resign", "to": %[2]q}`,
		} {
			refuses(t, c, base, fmt.Sprintf(body, here, name), "409 E2111 refused: "+dead)
		}
	}
	refuses(t, c, base, `{"kind": "node.forget", "node": "stopped"}`, "409 E2111 refused: stopped is late: stop it, or wait until it was removed")
	refuses(t, c, base, `{"kind": "node.uncordon", "node": "killed"}`, "409 E2111 refused: killed is not cordoned")
	refuses(t, c, base, fmt.Sprintf(`{"kind": "daemon.move", "unit": %q, "to": "never-seen"}`, here), `404 E2202 there is no node "never-seen"`)
	if status, _, answer := call(t, "GET", base+"/plan?lose=killed", ""); status != http.StatusNotFound || !strings.Contains(string(answer), "killed") {
		t.Errorf("a plan without the node that is gone: %d %s", status, answer)
	}
}

// refuses gives a command that must be refused, and looks at what has changed.
func refuses(t *testing.T, c *drill.Cluster, base, body, want string) {
	t.Helper()
	before, had := ordered(t, c)
	status, _, answer := call(t, "POST", base+"/commands", body)
	var p problem
	if err := json.Unmarshal(answer, &p); err != nil {
		t.Fatalf("%s: %v: %s", body, err, answer)
	}
	if got := fmt.Sprintf("%d %s %s", status, p.Code, p.Detail); got != want {
		t.Errorf("%s: %s, want %s", body, got, want)
	}
	if p.Hint == "" || status == http.StatusConflict && p.Why != "nothing was changed." {
		t.Errorf("%s: why %q, hint %q", body, p.Why, p.Hint)
	}
	if after, has := ordered(t, c); before != after || !slices.EqualFunc(had, has, func(a, b daemon.Command) bool { return a.ID == b.ID }) {
		t.Errorf("%s was refused, but:\n%s\n%v\nbefore:\n%s\n%v", body, after, has, before, had)
	}
}

// unitOn returns a unit that a node runs.
func unitOn(t *testing.T, c *drill.Cluster, name string) daemon.Unit {
	t.Helper()
	s, err := c.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	for _, u := range s.Units {
		if u.Unit.Daemon == "drill:ticker" && u.Holder.Name == name && u.State == daemon.Active {
			return u.Unit
		}
	}
	t.Fatalf("%s runs nothing", name)
	return daemon.Unit{}
}

// ordered returns what operators have ordered: in the history, and the commands that are open.
func ordered(t *testing.T, c *drill.Cluster) (history string, open []daemon.Command) {
	t.Helper()
	events, err := c.Events(0)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range events {
		if strings.HasPrefix(string(e.Kind), "operator.") {
			history += fmt.Sprintln(e.Seq, e.Kind, e.Reason)
		}
	}
	s, err := c.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	return history, s.Commands
}
