package drill

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/emitd/emitd/internal/pgtest"
)

// TestDrillKilledAndRestarted kills the only node with SIGKILL, with the timings of profile default, and
// starts it again, as a service manager does. The new process has exit evidence for its predecessor, so
// it must not wait for the lease of 60 s.
func TestDrillKilledAndRestarted(t *testing.T) {
	t.Parallel()
	for name, open := range stores {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := open(t)
			c.Profile = "default"
			restarted(t, c, name+": the only node killed and restarted, default")
		})
	}
}

// TestDrillKilledAndRestartedWithAFixedID does the same for a node with a configured ID: the dead
// process's row must not block the new one.
func TestDrillKilledAndRestartedWithAFixedID(t *testing.T) {
	t.Parallel()
	c := onSQLite(t)
	c.Profile, c.Config = "default", "node: {id: 5f1d7a52-3a0c-4c0b-8a9e-6f4d8d0a7b11}"
	restarted(t, c, "sqlite: the only node with a fixed id killed and restarted, default")
}

func restarted(t *testing.T, c *Cluster, what string) {
	c.Start("only")
	var took []time.Duration
	for range Times(3) {
		c.Settled(c.Others(nil)...)
		l, term := c.Leading()
		l.Kill()
		began := time.Now()
		n := c.Start("only")
		c.Until(2*time.Minute, "it leads", func() bool { return c.Term() > term && c.Leader() == n })
		c.Until(2*time.Minute, "all units run again", func() bool { return c.Running("only") })
		took = append(took, time.Since(began))
	}
	Measure(t, fmt.Sprintf("%s, all units run again", what), Bound{Max: 2 * time.Second}, took)
	c.Check()
}

// TestDrillDatabaseAwayForTwoSeconds stops the database for two of the five seconds of a lease, again and
// again. The leader's passes fail meanwhile, and it must keep its term.
func TestDrillDatabaseAwayForTwoSeconds(t *testing.T) {
	ParallelUnlessMeasured(t)
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
	next := 0
	start := func() {
		next++
		c.Start(fmt.Sprintf("n%d", next))
	}
	for range 3 {
		start()
	}
	gaveUp := 0
	for range Times(10) {
		c.Settled(c.Others(nil)...)
		c.Known(c.Timing().SettleWindow)
		l, _ := c.Leading()
		f := c.Follower()
		f.Freeze() // it becomes late while the database is away, so a pass is due then
		c.Pass(c.Timing().HeartbeatInterval / 2)
		if err := server.Stop(pgtest.Immediate); err != nil {
			t.Fatal(err)
		}
		c.Pass(2 * time.Second)
		if err := server.Start(); err != nil {
			t.Fatal(err)
		}
		c.Until(time.Minute, "its units run elsewhere", func() bool { return c.Running(c.Others(f)...) })
		f.Kill()
		start()
		c.Settled(c.Others(nil)...)
		gaveUp += strings.Count(l.Output(), "passes_failed")
	}
	Never(t, "postgres: database away for 2 s of a lease of 5 s, terms given up for failed passes", gaveUp)
	c.Check()
}
