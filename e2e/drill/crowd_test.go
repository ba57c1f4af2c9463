package drill

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/emitd/emitd/coordinator"
	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/internal/coordinator/lease"
	"github.com/emitd/emitd/internal/pgtest"
	"github.com/emitd/emitd/internal/testproc"
	"github.com/emitd/emitd/node"
	"github.com/emitd/emitd/storage/postgres"
)

// crowd is many nodes in this process, on one connection pool to one Postgres, with the profile fast.
type crowd struct {
	t      *testing.T
	nodes  int
	units  int
	store  *postgres.Store // of the nodes
	direct *postgres.Store // of the drill
	server *pgtest.Server
	began  time.Time
}

// newCrowd starts the server.
func newCrowd(t *testing.T, nodes, units int) *crowd {
	t.Helper()
	server, err := pgtest.Start(pgtest.Config{Durable: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { server.Close() })
	store := openCrowd(t, server.URL("postgres"))
	return &crowd{t: t, nodes: nodes, units: units, store: store, direct: store, server: server}
}

// openCrowd opens a store with the one pool that all nodes share.
func openCrowd(t *testing.T, url string) *postgres.Store {
	t.Helper()
	store, err := postgres.OpenConfig(context.Background(), postgres.Config{URL: url, AutoMigrate: true, MaxConns: 16})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(store.Close)
	return store
}

// hold makes the nodes call the store through a proxy, which holds them to a rate.
func (c *crowd) hold(callsPerSecond int) *Proxy {
	c.t.Helper()
	proxy, through := behindProxy(c.t, c.server.URL("postgres"))
	proxy.HoldTo(callsPerSecond)
	c.store = openCrowd(c.t, through)
	return proxy
}

// start starts all nodes at the same moment.
func (c *crowd) start() {
	c.t.Helper()
	run, cancel := context.WithCancel(context.Background())
	var all sync.WaitGroup
	c.t.Cleanup(func() { cancel(); all.Wait() })
	coordinators := make([]*coordinator.Coordinator, c.nodes)
	for i := range coordinators {
		n, err := coordinator.New(c.store, coordinator.Config{
			Node: node.Identity{Name: fmt.Sprintf("n%d", i)}, Profile: coordinator.ProfileFast,
			Logger: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})),
		})
		if err != nil {
			c.t.Fatal(err)
		}
		idle := daemon.AgentFunc(func(ctx context.Context, a *daemon.Assignment) error {
			select {
			case <-a.Draining():
			case <-ctx.Done():
			}
			return nil
		})
		if err := n.Register(daemon.Spec{ID: "drill:idle", Instances: c.units}, idle); err != nil {
			c.t.Fatal(err)
		}
		coordinators[i] = n
	}
	c.began = time.Now()
	for _, n := range coordinators {
		all.Go(func() {
			if err := n.Run(run); err != nil {
				c.t.Error(err)
			}
		})
	}
}

// until waits until the condition is true of the cluster, and returns how long that took since the start.
func (c *crowd) until(most time.Duration, what string, is func(*daemon.Snapshot) bool) time.Duration {
	c.t.Helper()
	cluster := New(c.t, c.server.URL("postgres"), c.direct)
	snapshot := time.NewTicker(250 * time.Millisecond) // reading the store costs the server time as well
	defer snapshot.Stop()
	cluster.Until(most, what, func() bool {
		<-snapshot.C
		s, err := cluster.Snapshot()
		return err == nil && is(s)
	})
	return time.Since(c.began)
}

// history counts the events by kind.
func (c *crowd) history() map[daemon.EventKind]int {
	c.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	count := map[daemon.EventKind]int{}
	for after := int64(0); ; {
		page, err := c.direct.Events(ctx, after, 5000)
		if err != nil {
			c.t.Fatal(err)
		}
		for _, e := range page.Events {
			count[e.Kind]++
			after = e.Seq
		}
		if len(page.Events) == 0 {
			return count
		}
	}
}

// TestDrillManyUnits gives 50 nodes, which start at the same moment, ten thousand units. In the end every one must be
// active. How long that takes, and how many events and terms, depends on the machine.
func TestDrillManyUnits(t *testing.T) {
	nodes, units := 10, 500
	if Full() {
		nodes, units = 50, 10_000
	}
	newCrowd(t, nodes, units).placed(fmt.Sprintf("postgres: %d new units on %d nodes on one pool, fast", units, nodes), 10*time.Second)
}

// TestDrillManyUnitsHeld does the same while all nodes together may make 500 calls a second.
func TestDrillManyUnitsHeld(t *testing.T) {
	const calls = 500
	nodes, units := 10, 500
	if Full() {
		nodes, units = 50, 10_000
	}
	c := newCrowd(t, nodes, units)
	proxy := c.hold(calls)
	c.placed(fmt.Sprintf("postgres: %d new units on %d nodes held to %d calls/s, fast", units, nodes, calls), time.Minute)
	t.Logf("%d calls in %v", proxy.Trips.Load(), time.Since(c.began).Round(time.Second))
}

// placed starts the nodes and measures until every unit is active.
func (c *crowd) placed(what string, wanted time.Duration) {
	c.t.Helper()
	c.start()
	took := c.until(5*time.Minute, "every unit is active", func(s *daemon.Snapshot) bool {
		return countUnits(s, func(u daemon.Record) bool { return u.State == daemon.Active }) == c.units
	})
	kinds := c.history()
	c.t.Logf("events: %v", kinds)
	all := 0
	for kind, n := range kinds {
		if kind != daemon.NodeRegistered && kind != daemon.LeaderElected {
			all += n
		}
	}
	Measure(c.t, what+", all active", Bound{Other: fmt.Sprintf("wanted: %v on a quiet machine", wanted)}, []time.Duration{took})
	Amount(c.t, what+", events", float64(all)/float64(c.units), "a unit", 0)
	Count(c.t, what+", terms", kinds[daemon.LeaderElected], "wanted: 1")
}

// TestDrillCrowd starts a thousand nodes at the same moment, without pacing them as TestDrillManyNodes does. In the end all
// must be registered and every unit active.
func TestDrillCrowd(t *testing.T) {
	const units = 20
	nodes := 100
	if Full() {
		nodes = 1000
	}
	c := newCrowd(t, nodes, units)
	own, server := testproc.ProcessTime(), serverCPU(t, c.server)
	c.start()
	there := c.until(5*time.Minute, "every node is there", func(s *daemon.Snapshot) bool {
		n := 0
		for _, m := range s.Nodes {
			if m.Present() {
				n++
			}
		}
		return n == nodes
	})
	own, server = testproc.ProcessTime()-own, serverCPU(t, c.server)-server
	took := c.until(5*time.Minute, "every unit is active", func(s *daemon.Snapshot) bool {
		return countUnits(s, func(u daemon.Record) bool { return u.State == daemon.Active }) == units
	})
	calm := lease.Fast().NodeRegistrationTTL
	c.until(5*time.Minute, "a TTL has passed", func(s *daemon.Snapshot) bool { return time.Since(c.began) > there+calm })
	kinds := c.history()
	t.Logf("events: %v", kinds)
	what := fmt.Sprintf("postgres: %d nodes start at once on one pool, fast", nodes)
	Measure(t, what+", all registered", Bound{Other: "wanted: 10s on a quiet machine"}, []time.Duration{there})
	Amount(t, what+", CPU of the nodes until then", own.Seconds(), "s", 0)
	Amount(t, what+", CPU of the server until then", server.Seconds(), "s", 0)
	Measure(t, what+", all units active", Bound{Other: "reported"}, []time.Duration{took})
	Count(t, what+", declared dead", kinds[daemon.NodeRemoved], "wanted: 0")
	Count(t, what+", terms", kinds[daemon.LeaderElected], "wanted: 1")
}
