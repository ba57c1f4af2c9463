package drill

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/emitd/emitd/internal/pgtest"
	"github.com/emitd/emitd/storage/postgres"
	"github.com/emitd/emitd/storage/sqlite"
)

func TestMain(m *testing.M) {
	Ticker()
	Writer()
	Keeper()
	os.Exit(run(m))
}

func run(m *testing.M) int {
	defer Cleanup()
	code := pgtest.Run(m)
	if err := WriteMeasurements(filepath.Join("..", "..", "docs", "measurements.md"), "drills"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return code
}

// onSQLite returns a cluster on a new store, onPostgres likewise.
func onSQLite(t *testing.T) *Cluster {
	t.Helper()
	path := filepath.Join(t.TempDir(), "emitd.db")
	store, err := sqlite.Open(context.Background(), path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { store.Close() })
	return New(t, "sqlite://"+path, store)
}

func onPostgres(t *testing.T) *Cluster {
	t.Helper()
	server, err := pgtest.Start(pgtest.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Close(); err != nil {
			t.Error(err)
		}
	})
	return onServer(t, server)
}

func onServer(t *testing.T, server *pgtest.Server) *Cluster {
	t.Helper()
	url := server.URL("postgres")
	ctx := context.Background()
	if _, err := postgres.Migrate(ctx, postgres.Config{URL: url}, postgres.Version); err != nil {
		t.Fatal(err)
	}
	store, err := postgres.Open(ctx, url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(store.Close)
	t.Cleanup(func() {
		if t.Failed() {
			t.Log("log of the server, its end:\n" + server.Log())
		}
	})
	return New(t, url, store)
}

var stores = map[string]func(*testing.T) *Cluster{"sqlite": onSQLite, "postgres": onPostgres}

// TestDrillLife goes through the life of a cluster: a cold start, a follower and a leader killed, a
// leader stopped with SIGSTOP beyond its lease and continued, a leader stopped cleanly.
func TestDrillLife(t *testing.T) {
	t.Parallel()
	for name, open := range stores {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			life(t, open(t))
		})
	}
}

func life(t *testing.T, c *Cluster) {
	for _, name := range []string{"a", "b", "c"} {
		c.Start(name)
	}
	c.Settled("a", "b", "c")
	for name, n := range c.Spread() {
		if n != 2 {
			t.Errorf("cold start: %d units on %s, want 2", n, name)
		}
	}
	x := c.Timing()
	timeout := 4 * x.NodeRegistrationTTL

	t.Log("kill -9 of a follower")
	f := c.Follower()
	f.Kill()
	took := c.Until(timeout, "its units run on the others", func() bool { return c.Running(c.Others(f)...) })
	t.Logf("its units ran elsewhere after %v", took)
	c.Start("d")

	t.Log("kill -9 of the leader")
	l, term := c.Leading()
	l.Kill()
	took = c.Until(timeout, "a new leader", func() bool { return c.Term() > term && c.Leader() != nil })
	t.Logf("a new leader after %v", took)
	took += c.Until(timeout, "its units run on the others", func() bool { return c.Running(c.Others(l)...) })
	t.Logf("its units ran elsewhere after %v", took)
	c.Start("e")
	c.Settled(c.Others(nil)...)

	t.Log("SIGSTOP of the leader beyond its lease, then SIGCONT")
	l, term = c.Leading()
	l.Freeze()
	c.Until(timeout, "a new leader", func() bool { return c.Term() > term && c.Leader() != l })
	c.Until(timeout, "its units run on the others", func() bool { return c.Running(c.Others(l)...) })
	l.Signal(syscall.SIGCONT)
	c.Until(timeout, "it says that it lost", func() bool { return strings.Contains(l.Output(), "lost") })
	c.Until(timeout, "it is a member again", func() bool { m, ok := l.Member(); return ok && m.Present() })

	t.Log("SIGTERM of the leader")
	c.Settled(c.Others(nil)...)
	l, term = c.Leading()
	began := time.Now()
	l.Signal(syscall.SIGTERM)
	took = c.Until(timeout, "a new leader", func() bool { return c.Term() > term && c.Leader() != nil })
	all := took + c.Until(timeout, "its units run on the others", func() bool { return c.Running(c.Others(l)...) })
	t.Logf("a new leader after %v, its units elsewhere after %v", took, all)
	l.Ended(began)
	c.Check()
}

// Ended waits for a node that was asked to stop.
func (n *Node) Ended(began time.Time) {
	n.c.T.Helper()
	select {
	case <-n.proc.Done:
	case <-time.After(time.Minute):
		n.c.T.Fatalf("%s does not stop", n.Name)
	}
	if err := n.proc.Err(); err != nil {
		n.c.T.Errorf("%s ended with %v", n.Name, err)
	}
	n.c.T.Logf("%s stopped after %v", n.Name, time.Since(began))
}

// TestDrillDatabase restarts the database, kills its connections, and drops its answers.
func TestDrillDatabase(t *testing.T) {
	t.Parallel()
	server, err := pgtest.Start(pgtest.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := server.Close(); err != nil {
			t.Error(err)
		}
	})
	c := onServer(t, server)
	direct, err := url.Parse(c.URL)
	if err != nil {
		t.Fatal(err)
	}
	proxy := NewProxy(t, direct.Host)
	through := *direct
	through.Host = proxy.Address()
	for _, name := range []string{"a", "b", "c"} {
		c.StartOn(name, through.String())
	}
	c.Settled("a", "b", "c")
	term := c.Term()

	t.Log("every connection killed, again and again")
	for range 5 {
		terminate(t, c.URL)
		c.Settled("a", "b", "c")
	}
	if got := c.Term(); got != term {
		t.Errorf("killed connections changed the leader: term %d became %d", term, got)
	}

	t.Log("answers swallowed: what was asked happens, nobody hears of it")
	for range 5 {
		proxy.DropAnswers(true)
		before := proxy.Swallowed.Load()
		c.Until(time.Minute, "answers are swallowed", func() bool { return proxy.Swallowed.Load() > before+2000 })
		proxy.Cut()
		proxy.DropAnswers(false)
		c.Settled("a", "b", "c")
	}

	t.Log("the database restarted")
	for _, mode := range []pgtest.Mode{pgtest.Fast, pgtest.Immediate} {
		if err := server.Restart(mode); err != nil {
			t.Fatal(err)
		}
		c.Settled("a", "b", "c")
	}
	c.Check()
}

// terminate kills every connection except its own.
func terminate(t *testing.T, url string) {
	t.Helper()
	ctx := context.Background()
	conn, err := pgx.Connect(ctx, url)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close(ctx)
	if _, err := conn.Exec(ctx, `SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND backend_type = 'client backend'`); err != nil {
		t.Fatal(err)
	}
}

// TestChecksFindViolations checks that the judges find violations.
func TestChecksFindViolations(t *testing.T) {
	t.Parallel()
	for name, runs := range map[string][]Run{
		"overlap":       {{Unit: "u/0", Generation: 1, Node: "a", Start: 0, End: 10}, {Unit: "u/0", Generation: 2, Node: "b", Start: 10, End: 20}},
		"order":         {{Unit: "u/0", Generation: 2, Node: "a", Start: 0, End: 10}, {Unit: "u/0", Generation: 1, Node: "b", Start: 11, End: 20}},
		"repeated":      {{Unit: "u/0", Generation: 1, Node: "a", Start: 0, End: 10}, {Unit: "u/0", Generation: 1, Node: "b", Start: 11, End: 20}},
		"inside itself": {{Unit: "u/0", Generation: 1, Node: "a", Start: 0, End: 30}, {Unit: "u/0", Generation: 1, Node: "a", Start: 11, End: 20}},
	} {
		if len(CheckRuns(runs)) == 0 {
			t.Errorf("%s: not found", name)
		}
	}
	if bad := CheckRuns([]Run{{Unit: "u/0", Generation: 1, Node: "a", Start: 0, End: 10}, {Unit: "u/0", Generation: 2, Node: "b", Start: 11, End: 20}}); len(bad) != 0 {
		t.Errorf("a clean hand-over: %v", bad)
	}
	if os.Getenv(tickerEnv) != "" {
		t.Error("the test is a ticker")
	}
}
