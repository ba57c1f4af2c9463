package outbox

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/e2e/drill"
	"github.com/emitd/emitd/internal/pgtest"
	"github.com/emitd/emitd/outbox"
)

func TestMain(m *testing.M) { os.Exit(run(m)) }

func run(m *testing.M) int {
	defer drill.Cleanup()
	code := pgtest.Run(m)
	if err := drill.WriteMeasurements(filepath.Join("..", "..", "docs", "measurements.md"), "outbox drills"); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return code
}

// subscription is the drills' subscription.
const subscription = "drill"

// cluster is a cluster whose nodes relay the drills' subscription.
type cluster struct {
	*drill.Cluster
	t         *testing.T
	db        *database
	to        receiver
	instances int
	valves    map[*drill.Node]*holdback // on each node's connections to the receiver
}

// relays starts three nodes whose relays share the shards.
func relays(t *testing.T, db *database, to receiver, instances int) *cluster {
	t.Helper()
	c := &cluster{Cluster: drill.New(t, db.url, db.store), t: t, db: db, to: to, instances: instances, valves: map[*drill.Node]*holdback{}}
	c.Instances, c.Args = 0, to.args
	for range 3 {
		c.join()
	}
	return c
}

// join starts one more node.
func (c *cluster) join() {
	v, address := c.to.valve, ""
	if c.to.address != "" {
		g := newGate(c.t, c.to.address)
		v, address = &g.holdback, g.address()
	}
	// Set by the environment, because it differs from node to node.
	c.Env = []string{fmt.Sprintf("EMITD_OUTBOX_SUBSCRIPTIONS=[{name: %s, instances: %d, sink: %s}]", subscription, c.instances, c.to.sink(address))}
	c.valves[c.Start(fmt.Sprintf("n%d", len(c.valves)+1))] = v
}

// end stops the nodes.
func (c *cluster) end() {
	for _, n := range c.Nodes() {
		if n.Alive() {
			n.Stop()
		}
	}
}

// unit is a running unit of the subscription.
type unit struct {
	node       *drill.Node
	shards     outbox.Range
	generation int64
}

// known waits until every live node has been a member for a heartbeat, because a cluster of only new
// nodes counts as starting and waits for more.
func (c *cluster) known() {
	c.t.Helper()
	until(c.t, time.Minute, "all nodes are known members", func() bool {
		s, err := c.Snapshot()
		if err != nil {
			return false
		}
		known := map[string]bool{}
		for _, m := range s.Nodes {
			known[m.Name] = known[m.Name] || m.Present() && s.Now.Sub(m.RegisteredAt) >= c.Timing().HeartbeatInterval
		}
		return !slices.ContainsFunc(c.Nodes(), func(n *drill.Node) bool { return n.Alive() && !known[n.Name] })
	})
}

// relaying waits until every unit runs on a live node and has claimed its shards and, while more than one
// node is live, not all units are on one node. It returns the units in order.
func (c *cluster) relaying() (units []unit) {
	c.t.Helper()
	until(c.t, time.Minute, "all units relay", func() bool {
		var ok bool
		units, ok = c.claimed()
		return ok
	})
	return units
}

// claimed returns the units, and whether each has claimed its shards in the log, not only in the store.
func (c *cluster) claimed() ([]unit, bool) {
	s, err := c.Snapshot()
	if err != nil {
		return nil, false
	}
	units := make([]unit, c.instances)
	for _, u := range s.Units {
		if u.Unit.Daemon != outbox.ID(subscription) || u.State != daemon.Active || u.Unit.Index >= c.instances {
			continue
		}
		for _, m := range s.Nodes {
			if m.Incarnation == u.Holder.Incarnation {
				units[u.Unit.Index] = unit{c.node(m.Name), outbox.RangeOf(u.Unit.Index, c.instances), u.Generation}
			}
		}
	}
	stats, ok := c.db.stats(context.Background())
	if !ok {
		return nil, false
	}
	for _, u := range units {
		mine := slices.ContainsFunc(stats.Cursors, func(x outbox.CursorStats) bool {
			return x.Epoch == u.generation && x.Range.Lo >= u.shards.Lo && x.Range.Hi <= u.shards.Hi
		})
		if u.node == nil || !u.node.Alive() || !mine {
			return nil, false
		}
	}
	return units, true
}

// node returns the node with a name.
func (c *cluster) node(name string) *drill.Node {
	for _, n := range c.Nodes() {
		if n.Name == name {
			return n
		}
	}
	return nil
}

// moved waits until another node than before relays a unit.
func (c *cluster) moved(was unit) unit {
	c.t.Helper()
	var now unit
	until(c.t, time.Minute, fmt.Sprintf("the shards %s move from %s", was.shards, was.node.Name), func() bool {
		units, ok := c.claimed()
		if !ok {
			return false
		}
		i := slices.IndexFunc(units, func(u unit) bool { return u.shards == was.shards })
		now = units[i]
		return now.node != was.node && now.generation > was.generation
	})
	return now
}

// drained waits until the subscription has delivered everything.
func (c *cluster) drained() {
	c.t.Helper()
	until(c.t, 3*time.Minute, "everything is delivered", func() bool {
		n, ok := c.db.pending(context.Background())
		return ok && n == 0
	})
}

// delivered waits until the subscription has delivered everything that was published before a time.
func (c *cluster) delivered(before time.Time) {
	c.t.Helper()
	until(c.t, time.Minute, "what was published before is delivered", func() bool {
		s, ok := c.db.stats(context.Background())
		return ok && (s.OldestAt.IsZero() || s.OldestAt.After(before))
	})
}

// oneEach returns a message for each shard of a range.
func oneEach(r outbox.Range) (messages []outbox.Message) {
	for shard := r.Lo; shard <= r.Hi; shard++ {
		messages = append(messages, message(keyOf(shard)))
	}
	return messages
}

// keyOf returns a key in a shard that no writer uses.
func keyOf(shard int) string {
	for n := 0; ; n++ {
		if key := fmt.Sprintf("probe-%d-%d", shard, n); outbox.ShardOf(key) == shard {
			return key
		}
	}
}
