package member_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/internal/coordinator/member"
	"github.com/emitd/emitd/node"
	"github.com/emitd/emitd/storage"
)

// A wake-up for all nodes spreads the heartbeats of a large cluster, while those of a few nodes
// follow at once. A node that is named alone does not wait for the spread of many.
func TestHintsSpreadACrowd(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		nodes           int
		everybody, mine time.Duration // at most
	}{
		{3, 10 * time.Millisecond, 10 * time.Millisecond},
		{200, 100 * time.Millisecond, 10 * time.Millisecond},
		{3000, 500 * time.Millisecond, 10 * time.Millisecond},
	} {
		c := newCluster(t, 1)
		p := c.nodes[0]
		for i := range tt.nodes - 1 {
			register(t, c, fmt.Sprint("x", i))
		}
		c.run(500 * time.Millisecond)
		longest := func(w storage.WakeUp) (d time.Duration) {
			for range 100 {
				c.until(2*time.Second, "the next heartbeat is far away", func() bool {
					return len(c.queue) == 0 && p.m.Next().Sub(c.now) > 600*time.Millisecond
				})
				p.step(member.WakeUp{Wake: w})
				d = max(d, p.m.Next().Sub(c.now))
			}
			return d
		}
		if d := longest(storage.WakeUp{}); d > tt.everybody || d < tt.everybody/2 {
			t.Errorf("%d nodes: a wake-up for everybody is followed within %v, want %v", tt.nodes, d, tt.everybody)
		}
		if d := longest(storage.WakeUp{Nodes: []node.Incarnation{p.id.Incarnation, "other"}}); d > tt.mine {
			t.Errorf("%d nodes: a wake-up for two is followed within %v, want %v", tt.nodes, d, tt.mine)
		}
	}
}

// A leader whose passes take long pauses between them, and longer while many units start or many nodes join and there is
// nothing to decide.
func TestLongPassesArePausedBetween(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		latency time.Duration
		units   int
		joins   time.Duration // a node joins each time that this has passed; 0 = none does
		most    int           // passes within 2 s of wake-ups
	}{
		{time.Millisecond, 6, 0, 2000 / 11}, // read within 1 ms, a pause of 10 ms
		{20 * time.Millisecond, 6, 0, 2000 / 40},
		{100 * time.Millisecond, 6, 0, 2000 / 200},
		{20 * time.Millisecond, 300, 0, 2000 / 80},
		{20 * time.Millisecond, 6, 200 * time.Millisecond, 2000 / 40}, // at most one joins between passes
		{20 * time.Millisecond, 6, 4 * time.Millisecond, 2000 / 120},
	} {
		c := newCluster(t, 2, advert("acme:work", tt.units))
		c.latency = tt.latency
		if tt.units > 6 { // they stay in their start phase
			c.nodes[0].never, c.nodes[1].never = "acme:work", "acme:work"
		}
		c.until(20*time.Second, "the units run", func() bool { return c.leader() != nil && c.total() >= 6 })
		l := c.leader()
		passes := func() (n int) {
			for _, call := range l.calls {
				if call.Snapshot {
					n++
				}
			}
			return n
		}
		before := passes()
		for i := range 1000 {
			if tt.joins > 0 && i%int(tt.joins/(2*time.Millisecond)) == 0 {
				register(t, c, fmt.Sprint("x", i))
			}
			l.step(member.WakeUp{Wake: storage.WakeUp{Leader: true, Nodes: []node.Incarnation{l.id.Incarnation}}})
			c.run(2 * time.Millisecond)
		}
		if n := passes() - before; n > tt.most || n < tt.most/2 {
			t.Errorf("latency %v, %d units, one joins every %v: %d passes in 2s, want %d at most and half of that at least", tt.latency, tt.units, tt.joins, n, tt.most)
		}
	}
}

// register makes a node a member that runs nothing and sends nothing more.
func register(t *testing.T, c *cluster, name string) {
	t.Helper()
	who := node.Identity{Name: name, ID: node.ID(name), Incarnation: node.Incarnation(name)}
	a := daemon.Advert{Traits: node.Traits{Capacity: 1, Version: "test", NoDaemons: true}}
	if _, err := c.store.Heartbeat(context.Background(), storage.Heartbeat{Node: who, Seq: 1, Advert: &a, TTL: time.Hour, EventsAfter: -1}); err != nil {
		t.Fatal(err)
	}
}
