package drill

import (
	"fmt"
	"maps"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/internal/pgtest"
)

// massSize is how many nodes and units the drills with many nodes have.
func massSize() (nodes, units int) {
	if Full() {
		return 10, 30
	}
	return 5, 10
}

// many starts so many nodes with light tickers, and waits until all units run.
func (c *Cluster) many(nodes, units int) {
	c.T.Helper()
	c.lightTickers(units)
	for i := range nodes {
		c.Start(fmt.Sprintf("n%d", i))
	}
	c.Until(time.Minute, "all nodes are live and all units run", func() bool {
		s, err := c.Snapshot()
		return err == nil && c.leader(s) != nil && len(present(s)) == nodes && len(held(s)) == units
	})
}

// present returns the names of the nodes that the store has for members.
func present(s *daemon.Snapshot) (names []string) {
	for _, m := range s.Nodes {
		if m.Present() {
			names = append(names, m.Name)
		}
	}
	return names
}

// held returns the nodes on which the tickers are active.
func held(s *daemon.Snapshot) map[daemon.Unit]string {
	out := map[daemon.Unit]string{}
	for _, u := range s.Units {
		if u.Unit.Daemon == "drill:ticker" && u.State == daemon.Active {
			out[u.Unit] = u.Holder.Name
		}
	}
	return out
}

// happened counts the events of a kind after a number.
func (c *Cluster) happened(after int64, kind daemon.EventKind) (n int) {
	c.T.Helper()
	events, err := c.Events(after)
	if err != nil {
		return 0 // the store may be away: the caller asks again
	}
	for _, e := range events {
		if e.Kind == kind {
			n++
		}
	}
	return n
}

// heldBy returns how many tickers are active on the node.
func (c *Cluster) heldBy(n *Node) (count int) {
	s, err := c.Snapshot()
	if err != nil {
		return 0
	}
	for name := range maps.Values(held(s)) {
		if name == n.Name {
			count++
		}
	}
	return count
}

// TestDrillMassDeath stops all nodes but one with SIGSTOP, as if their hosts were lost, and in another cluster kills them.
// Nobody can prove the first, so the brake holds, says so, and releases. The second is proven at once.
func TestDrillMassDeath(t *testing.T) {
	t.Parallel()
	nodes, units := massSize()
	t.Run("lost", func(t *testing.T) {
		t.Parallel()
		c := onPostgres(t)
		c.many(nodes, units)
		stays, _ := c.Leading()
		before := c.heldBy(stays)
		s, err := c.Snapshot()
		if err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		for _, n := range c.Nodes() {
			if n != stays {
				n.Freeze()
			}
		}
		c.Until(time.Minute, "the brake holds", func() bool { return c.happened(s.Head, daemon.BrakeHeld) == 1 })
		held := time.Since(began)
		out, err := exec.Command(Binary(t), "status", "--store", c.URL).CombinedOutput()
		n := c.heldBy(stays)
		if c.happened(s.Head, daemon.BrakeReleased) == 0 { // not so on a machine that needed seconds for the command
			if err != nil || !strings.Contains(string(out), "nodes look dead at once") {
				t.Errorf("emitd status does not say that the brake holds: %v\n%s", err, out)
			}
			if n != before {
				t.Errorf("the node that is left runs %d units while the brake holds, before %d", n, before)
			}
		}
		c.Until(time.Minute, "the one that is left runs everything", func() bool { return c.heldBy(stays) == units })
		took := time.Since(began)
		x := c.Timing()
		if least := 2 * (x.NodeRegistrationTTL - x.Late()); took < least {
			t.Errorf("everything ran on the one node after %v: the brake did not hold for %v", took, least)
		}
		if n := c.happened(s.Head, daemon.BrakeReleased); n != 1 {
			t.Errorf("the brake was released %d times", n)
		}
		what := fmt.Sprintf("postgres: %d of %d hosts lost at once, fast", nodes-1, nodes)
		Measure(t, what+", the brake holds", Bound{Max: x.NodeRegistrationTTL + x.Late()}, []time.Duration{held})
		Measure(t, what+", the node that is left runs everything", Bound{Max: 2*x.NodeRegistrationTTL + 2*x.HeartbeatInterval + time.Second}, []time.Duration{took})
		c.Check()
	})
	t.Run("killed", func(t *testing.T) {
		t.Parallel()
		c := onPostgres(t)
		c.many(nodes, units)
		stays, _ := c.Leading()
		s, err := c.Snapshot()
		if err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		for _, n := range c.Nodes() {
			if n != stays {
				n.Kill()
			}
		}
		c.Until(time.Minute, "the one that is left runs everything", func() bool { return c.heldBy(stays) == units })
		what := fmt.Sprintf("postgres: %d of %d processes killed at once, fast", nodes-1, nodes)
		Measure(t, what+", the node that is left runs everything", Bound{Max: 4 * time.Second}, []time.Duration{time.Since(began)})
		Count(t, what+", brake held", c.happened(s.Head, daemon.BrakeHeld), "0: their end is proven")
		c.Check()
	})
}

// TestDrillStoreAway stops the database for all nodes, for five minutes with the full counts. Every node stops its units by
// itself. Then each has the same units again, and none was assigned anew.
func TestDrillStoreAway(t *testing.T) {
	t.Parallel()
	nodes, units := massSize()
	server, err := pgtest.Start(pgtest.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { server.Close() })
	c := onServer(t, server)
	c.many(nodes, units)
	s, err := c.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	away := 2 * c.Timing().NodeRegistrationTTL
	if Full() {
		away = 5 * time.Minute
	}
	if err := server.Stop(pgtest.Immediate); err != nil {
		t.Fatal(err)
	}
	c.Pass(away)
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	c.Until(time.Minute, "all units run again", func() bool {
		now, err := c.Snapshot()
		if err != nil || c.leader(now) == nil || len(held(now)) < units {
			return false
		}
		return countUnits(now, func(u daemon.Record) bool { return u.Generation > generationOf(s, u.Unit) }) == units
	})
	took := time.Since(began)
	now, err := c.Snapshot()
	if err != nil {
		t.Fatal(err)
	}
	elsewhere := 0
	for unit, name := range held(s) {
		if held(now)[unit] != name {
			elsewhere++
		}
	}
	what := fmt.Sprintf("postgres: database away for %v for %d nodes, fast", away, nodes)
	neverIfFull(t, what+", units assigned anew", c.happened(s.Head, daemon.AssignmentAssigned))
	neverIfFull(t, what+", units on another node", elsewhere)
	neverIfFull(t, what+", nodes removed", c.happened(s.Head, daemon.NodeRemoved))
	Measure(t, what+", all units run again", Bound{Max: 2*c.Timing().HeartbeatInterval + time.Second}, []time.Duration{took})
	c.Check()
}

// generationOf returns the unit's generation in the snapshot.
func generationOf(s *daemon.Snapshot, unit daemon.Unit) int64 {
	for _, u := range s.Units {
		if u.Unit == unit {
			return u.Generation
		}
	}
	return 0
}

// neverIfFull records what must not happen on a machine that has time for its nodes. Without the full counts, drills run
// beside other load, which may keep a node from its heartbeats for seconds.
func neverIfFull(t *testing.T, what string, n int) {
	t.Helper()
	if Full() {
		Never(t, what, n)
		return
	}
	Count(t, what, n, "0 with the full counts")
}
