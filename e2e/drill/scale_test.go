package drill

import (
	"context"
	"fmt"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/emitd/emitd/coordinator"
	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/internal/pgtest"
	"github.com/emitd/emitd/node"
	"github.com/emitd/emitd/storage/postgres"
)

// TestDrillManyNodes runs many nodes in one process, on one connection pool to one Postgres, with the
// profile fast. Every heartbeat must be in time.
func TestDrillManyNodes(t *testing.T) {
	const units = 20
	nodes, window := 100, 5*time.Second
	if Full() {
		nodes, window = 1000, 30*time.Second
	}
	server, err := pgtest.Start(pgtest.Config{Durable: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { server.Close() })
	ctx := context.Background()
	store, err := postgres.OpenConfig(ctx, postgres.Config{URL: server.URL("postgres"), AutoMigrate: true, MaxConns: 16})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(store.Close)
	run, cancel := context.WithCancel(ctx)
	var all sync.WaitGroup
	t.Cleanup(func() { cancel(); all.Wait() })
	arrivals := time.NewTicker(30 * time.Millisecond)
	defer arrivals.Stop()
	for i := range nodes {
		c, err := coordinator.New(store, coordinator.Config{
			Node: node.Identity{Name: fmt.Sprintf("n%d", i)}, Profile: coordinator.ProfileFast,
			Logger: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})),
		})
		if err != nil {
			t.Fatal(err)
		}
		spec := daemon.Spec{ID: "drill:idle", Instances: units}
		if err := c.Register(spec, daemon.AgentFunc(func(ctx context.Context, a *daemon.Assignment) error {
			select {
			case <-a.Draining():
			case <-ctx.Done():
			}
			return nil
		})); err != nil {
			t.Fatal(err)
		}
		all.Go(func() {
			if err := c.Run(run); err != nil {
				t.Error(err)
			}
		})
		// A deployment does not start a thousand replicas at the same instant.
		<-arrivals.C
	}
	cluster := New(t, server.URL("postgres"), store)
	snapshot := time.NewTicker(250 * time.Millisecond) // reading the store costs the server time as well
	defer snapshot.Stop()
	cluster.Until(2*time.Minute, "every node is there and every unit active", func() bool {
		<-snapshot.C
		s, err := cluster.Snapshot()
		if err != nil {
			return false
		}
		active, there := 0, 0
		for _, u := range s.Units {
			if u.State == daemon.Active {
				active++
			}
		}
		for _, m := range s.Nodes {
			if m.Present() {
				there++
			}
		}
		return active == units && there == nodes
	})
	s, err := cluster.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	x, term, head := cluster.Timing(), s.Term.Number, s.Head
	cpu, began := serverCPU(t, server), time.Now()
	var oldest []time.Duration
	for time.Since(began) < window {
		<-snapshot.C
		s, err := cluster.Snapshot()
		if err != nil {
			t.Fatal(err)
		}
		worst := time.Duration(0)
		for _, m := range s.Nodes {
			worst = max(worst, s.Now.Sub(m.LastHeartbeatAt))
		}
		oldest = append(oldest, worst)
	}
	used, took := serverCPU(t, server)-cpu, time.Since(began)
	if s, err = cluster.Snapshot(); err != nil {
		t.Fatal(err)
	}
	late := 0
	events, err := cluster.Events(head)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range events {
		if e.Kind == daemon.NodeLate || e.Kind == daemon.NodeRemoved {
			late++
			t.Logf("%s: %s %s", e.Kind, e.Node, e.Reason)
		}
	}
	if s.Term.Number != term {
		t.Errorf("the leader changed")
	}
	what := fmt.Sprintf("postgres: %d nodes in one process on one pool, fast", nodes)
	Never(t, what+", late heartbeats", late)
	Measure(t, what+", oldest heartbeat seen", Bound{Max: x.Late()}, oldest)
	Amount(t, what+", CPU of the server", 100*used.Seconds()/took.Seconds(), "% of one core", 0)
}

// serverCPU returns the CPU time of the server's processes, including ended ones.
func serverCPU(t *testing.T, s *pgtest.Server) time.Duration {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(s.Data(), "postmaster.pid"))
	if err != nil {
		t.Fatal(err)
	}
	master, _, _ := strings.Cut(string(text), "\n")
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	if err != nil {
		t.Fatal(err)
	}
	ticks := 0
	for _, path := range stats {
		text, err := os.ReadFile(path)
		if err != nil {
			continue // it has ended
		}
		pid, _, _ := strings.Cut(string(text), " ")
		// The fields after the name, which may contain spaces: state, parent, …
		f := strings.Fields(string(text[strings.LastIndexByte(string(text), ')')+1:]))
		if pid != master && f[1] != master {
			continue
		}
		last := 13 // utime and stime
		if pid == master {
			last = 15 // and those of ended children
		}
		for _, v := range f[11:last] {
			n, _ := strconv.Atoi(v)
			ticks += n
		}
	}
	return time.Duration(ticks) * 10 * time.Millisecond // the kernel reports hundredths of a second
}

// TestDrillIdle measures what an idle cluster costs, with the profile default.
func TestDrillIdle(t *testing.T) {
	t.Parallel()
	const most = 40.0 // MB resident
	// The sweeper's first round comes within a minute of its start, and is not part of being idle.
	start, window := time.Duration(0), 2*time.Second
	if Full() {
		start, window = time.Minute, 5*time.Minute
	}
	c := onPostgres(t)
	c.Profile, c.Config = "default", ""
	direct, err := url.Parse(c.URL)
	if err != nil {
		t.Fatal(err)
	}
	proxies := map[string]*Proxy{}
	for _, name := range []string{"a", "b", "c"} {
		u := *direct
		proxies[name] = NewProxy(t, u.Host)
		u.Host = proxies[name].Address()
		c.StartOn(name, u.String())
	}
	c.Settled("a", "b", "c")
	c.Pass(start)
	before := map[string]int64{}
	for name, p := range proxies {
		before[name] = p.Trips.Load()
	}
	took := time.Since(c.Pass(window)).Seconds()
	sweeping := ""
	s, err := c.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	for _, u := range s.Units {
		if u.Unit.Daemon == "emit:sweeper" {
			sweeping = u.Holder.Name
		}
	}
	for _, n := range c.nodes {
		role, bound := "follower", 0.1
		if n == c.Leader() {
			role, bound = "leader", 0.3
		}
		if n.Name == sweeping {
			role += " that sweeps"
		}
		rate := float64(proxies[n.Name].Trips.Load()-before[n.Name]) / took
		rss := n.Resident()
		if rss > most { // a node returns the memory of its start only after a while
			c.Until(3*time.Minute, fmt.Sprintf("%s has %v MB resident at most", n.Name, most), func() bool { rss = n.Resident(); return rss <= most })
		}
		Amount(t, "idle, default, "+role, rate, "round trips/s", bound)
		Amount(t, "idle, default, "+role+", resident", rss, "MB", most)
	}
}
