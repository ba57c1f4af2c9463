package drill

import (
	"context"
	"encoding/json"
	"fmt"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/internal/pgtest"
	"github.com/emitd/emitd/storage"
	"github.com/emitd/emitd/storage/postgres"
)

// TestDrillUpgrade upgrades a working cluster from the last commit that had the schema before this one, one node after
// the other, and then goes back. While versions are mixed, the leader is killed, once one of each version. In the end
// the tickers must not have overlapped, and no unit may have been taken from a node that lived. Two programs of this version
// run units with keys meanwhile, of which the former version knows nothing: it must leave them alone.
func TestDrillUpgrade(t *testing.T) {
	t.Parallel()
	former := formerBinary(t, postgres.Version-1)
	server, err := pgtest.Start(pgtest.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = server.Close() })
	c := New(t, server.URL("postgres"), nil)
	start := func(name, program string) *Node {
		c.Program = program
		return c.Start(name)
	}
	report(t, former, "migrate", "up", "--store", c.URL)
	nodes := map[string]*Node{}
	for _, name := range []string{"a", "b", "c"} {
		nodes[name] = start(name, former)
	}
	c.Until(time.Minute, "the former version runs all units", func() bool { return allActive(former, c.URL, c.Instances) })

	// A node of this version refuses the schema of the former one, and says what to do.
	early := start("early", Binary(t))
	c.Until(time.Minute, "it ends", func() bool { return !early.Alive() })
	if !strings.Contains(early.Output(), "E5103") || !strings.Contains(early.Output(), "emitd migrate up") {
		t.Errorf("before the migration a node of this version says\n%s", early.Output())
	}

	report(t, Binary(t), "migrate", "up", "--store", c.URL)
	store, err := postgres.Open(context.Background(), c.URL)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(store.Close)
	c.Store = store
	c.Settled("a", "b", "c")
	term := c.Term()
	keys := startKeys(c)

	replace := func(name, program string) {
		nodes[name].Stop()
		nodes[name] = start(name, program)
		c.Settled("a", "b", "c")
	}
	kill := func(program string) {
		c.Known(2 * c.Timing().NodeRegistrationTTL)
		l, before := c.Leading()
		l.Kill()
		c.Until(time.Minute, "a new leader", func() bool { return c.Term() > before && c.Leader() != nil })
		nodes[l.Name] = start(l.Name, program)
		c.Settled("a", "b", "c")
	}
	replace("a", Binary(t))
	kill(former) // whoever leads now, of either version
	replace("b", Binary(t))
	kill(Binary(t))
	for _, name := range []string{"a", "b", "c"} {
		replace(name, Binary(t))
	}
	keys.run()
	t.Log("and back")
	for _, name := range []string{"a", "b", "c"} {
		replace(name, former)
	}
	keys.stay()
	if c.Term() <= term {
		t.Errorf("term %d at the end, %d at the beginning", c.Term(), term)
	}
	c.Check()
}

// mixedKeys are units with keys in a cluster that a former version leads at times.
type mixedKeys struct {
	*Cluster
	before map[daemon.Unit]daemon.Record // the rows while all nodes had this version
}

// startKeys starts two keepers, which never lead, and adds keys while the former version leads. It knows no keys, so they
// wait; it must not remove their rows either.
func startKeys(c *Cluster) *mixedKeys {
	c.T.Helper()
	k := &mixedKeys{Cluster: c, before: map[daemon.Unit]daemon.Record{}}
	execute(c.T.(*testing.T), c.URL, keepingTable)
	for _, name := range []string{"k1", "k2"} {
		n := c.StartKeeper(name, time.Second, keeperFollowEnv+"=yes")
		c.Until(time.Minute, name+" has joined", func() bool { m, ok := n.Member(); return ok && m.Present() })
	}
	k.add("globex", "initech", "hooli", "umbrella")
	c.Pass(c.Timing().RetireAfter() + 3*time.Second) // units of other daemons that nobody declares are gone by then
	for _, r := range k.rows() {
		if r.State != daemon.Unassigned || r.Retired {
			c.T.Errorf("the former version leads, and %s is %s, retired %v", r.Unit, r.State, r.Retired)
		}
	}
	return k
}

func (k *mixedKeys) add(keys ...string) {
	k.T.Helper()
	change := storage.KeyChange{Daemon: kept, Add: keys, Actor: "drill"}
	if counts, err := k.Store.(storage.KeyStore).ChangeKeys(context.Background(), change); err != nil || counts.Added != len(keys) {
		k.T.Fatalf("%+v, %v", counts, err)
	}
}

// rows returns the rows of the keys.
func (k *mixedKeys) rows() []daemon.Record {
	k.T.Helper()
	s, err := k.Snapshot()
	if err != nil {
		k.T.Fatal(err)
	}
	return slices.DeleteFunc(s.Units, func(r daemon.Record) bool { return r.Unit.Daemon != kept })
}

// run waits until all keys run, and remembers how.
func (k *mixedKeys) run() {
	k.T.Helper()
	k.Until(time.Minute, "this version leads, and all keys run", func() bool {
		for _, r := range k.rows() {
			if r.State != daemon.Active {
				return false
			}
			k.before[r.Unit] = r
		}
		return len(k.before) == 4
	})
}

// stay checks that every key still runs as it did when the former version began to lead, and that a new one waits.
func (k *mixedKeys) stay() {
	k.T.Helper()
	k.add("late")
	k.Pass(k.Timing().RetireAfter() + 3*time.Second)
	rows := k.rows()
	if len(rows) != len(k.before)+1 {
		k.T.Errorf("%d keys, want %d", len(rows), len(k.before)+1)
	}
	for _, r := range rows {
		was, known := k.before[r.Unit]
		if known && (r.State != daemon.Active || r.Retired || r.Generation != was.Generation || r.Holder != was.Holder) {
			k.T.Errorf("%s: %s on %s with generation %d, retired %v; before %s with generation %d", r.Unit, r.State, r.Holder.Name, r.Generation, r.Retired, was.Holder.Name, was.Generation)
		}
		if !known && (r.State != daemon.Unassigned || r.Retired) {
			k.T.Errorf("%s is new under the former version, and %s, retired %v", r.Unit, r.State, r.Retired)
		}
	}
	for _, bad := range outOfOrder(k.kept()) {
		k.T.Error(bad)
	}
}

// formerBinary builds emitd from the newest commit whose schema has that version. It needs the history of the
// repository and git.
func formerBinary(t *testing.T, version int) string {
	t.Helper()
	const file = "storage/postgres/migrate.go"
	root := filepath.Join("..", "..")
	next := strings.Fields(report(t, "git", "-C", root, "log", "--format=%H", "-S", fmt.Sprintf("const Version = %d", version+1), "--", file))
	if len(next) == 0 {
		t.Fatalf("no commit has begun version %d of the schema: this drill needs the history (git fetch --unshallow)", version+1)
	}
	commit := next[len(next)-1] + "^"
	if text := report(t, "git", "-C", root, "show", commit+":"+file); !strings.Contains(text, fmt.Sprintf("const Version = %d\n", version)) {
		t.Fatalf("%s has not version %d of the schema", commit, version)
	}
	dir := t.TempDir()
	archive := filepath.Join(dir, "source.tar")
	report(t, "git", "-C", root, "archive", "-o", archive, commit)
	report(t, "tar", "-x", "-f", archive, "-C", dir)
	cmd := exec.Command("go", "build", "-o", filepath.Join(dir, "former"), "./cmd/emitd")
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("emitd of %s: %v\n%s", commit, err, out)
	}
	t.Logf("the former version is %s", commit)
	return filepath.Join(dir, "former")
}

// report returns what a command prints.
func report(t *testing.T, name string, args ...string) string {
	t.Helper()
	cmd := exec.Command(name, args...)
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s: %v\n%s", cmd, err, out)
	}
	return string(out)
}

// allActive reports whether a program sees that many active units, and no others of the tickers.
func allActive(program, store string, want int) bool {
	out, err := exec.Command(program, "daemon", "ls", "--store", store, "-o", "json").Output()
	var units []struct{ Unit, State string }
	if err != nil || json.Unmarshal(out, &units) != nil {
		return false
	}
	active := 0
	for _, u := range units {
		if strings.HasPrefix(u.Unit, "drill:ticker/") && u.State == "active" {
			active++
		}
	}
	return active == want
}
