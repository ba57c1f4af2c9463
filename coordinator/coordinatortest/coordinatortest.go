// Package coordinatortest runs whole clusters inside a test, so that users can see what their
// agents, hooks and leader-only work do when leadership changes, nodes die and networks break.
//
// A [Cluster] is some coordinators over one store in memory, with the profile fast, inside a
// testing/synctest bubble: time there is virtual, an hour of it takes milliseconds, and a
// goroutine left behind fails the test.
//
//	synctest.Test(t, func(t *testing.T) {
//		c := coordinatortest.New(t, coordinatortest.Config{Nodes: 3})
//		c.Register(daemon.Spec{ID: "acme:reports"}, agent)
//		leader := c.Elect()
//		c.Kill(leader)
//		c.Await("the unit runs again", func() bool { return c.Holder("acme:reports/0") != leader })
//	})
//
// Agents under test must use the bubble's time (package time, as usual) and must not wait for
// anything outside of the bubble, such as sockets.
package coordinatortest

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/emitd/emitd/coordinator"
	"github.com/emitd/emitd/coordinator/internal/crash"
	"github.com/emitd/emitd/coordinator/lease"
	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/node"
	"github.com/emitd/emitd/storage"
	"github.com/emitd/emitd/storage/memory"
)

// Config configures a cluster. Its zero value is one node.
type Config struct {
	// Nodes is how many nodes there are; they are called node-0, node-1, ….
	Nodes int
	// Configure may change a node's configuration before it is made.
	Configure func(i int, cfg *coordinator.Config)
	// Wrap may put something between a node and its store, e.g. faults of one's own.
	Wrap func(i int, s storage.Store) storage.Store
	// Log shows what the nodes log.
	Log bool
	// Limit is how long, in virtual time, Await waits; default 5 minutes.
	Limit time.Duration
}

// Cluster is some nodes on one store. Its methods are for the test's own goroutine. Nodes are
// known by their index.
type Cluster struct {
	t     testing.TB
	cfg   Config
	store *memory.Store
	nodes []*member
	began time.Time
}

// member is one node with what is around it.
type member struct {
	c      *coordinator.Coordinator
	link   *link
	cancel context.CancelCauseFunc
	ended  chan struct{}
	err    error // of Run
	told   bool  // the test has err
}

// New starts a cluster; it ends with the test. It must be called inside a synctest bubble.
func New(t testing.TB, cfg Config) *Cluster {
	t.Helper()
	cfg.Nodes, cfg.Limit = cmp.Or(cfg.Nodes, 1), cmp.Or(cfg.Limit, 5*time.Minute)
	c := &Cluster{t: t, cfg: cfg, store: memory.Open(memory.Config{}), began: time.Now()}
	t.Cleanup(c.close)
	for range cfg.Nodes {
		c.Add()
	}
	return c
}

// Add starts one more node and returns its index. It knows no daemons yet.
func (c *Cluster) Add() int {
	c.t.Helper()
	i := len(c.nodes)
	n := &member{link: &link{store: c.store}, ended: make(chan struct{})}
	cfg := coordinator.Config{
		Cluster: "test", Profile: coordinator.ProfileFast, Node: node.Identity{Name: fmt.Sprintf("node-%d", i)},
		Clock:  func() lease.Instant { return lease.Instant(time.Since(c.began) + time.Hour) },
		Logger: c.logger(),
	}
	if c.cfg.Configure != nil {
		c.cfg.Configure(i, &cfg)
	}
	store := storage.Store(n.link)
	if c.cfg.Wrap != nil {
		store = c.cfg.Wrap(i, store)
	}
	var err error
	if n.c, err = coordinator.New(store, cfg); err != nil {
		c.t.Fatal(err)
	}
	var ctx context.Context
	ctx, n.cancel = context.WithCancelCause(context.Background())
	c.nodes = append(c.nodes, n)
	go func() {
		defer close(n.ended)
		n.err = n.c.Run(ctx)
	}()
	return i
}

func (c *Cluster) logger() *slog.Logger {
	if !c.cfg.Log {
		return slog.New(slog.DiscardHandler)
	}
	return slog.New(slog.NewTextHandler(c.t.Output(), &slog.HandlerOptions{Level: slog.LevelDebug}))
}

// close stops all nodes at once and checks how they ended.
func (c *Cluster) close() {
	for _, n := range c.nodes {
		n.link.set(up)
		n.cancel(context.Canceled)
	}
	for i, n := range c.nodes {
		<-n.ended
		if n.err != nil && !n.told && !errors.Is(n.err, crash.ErrKilled) {
			c.t.Errorf("node-%d: %v", i, n.err)
		}
	}
}

// Node returns a node's coordinator.
func (c *Cluster) Node(i int) *coordinator.Coordinator { return c.nodes[i].c }

// Store returns the store itself, past all partitions.
func (c *Cluster) Store() *memory.Store { return c.store }

// Register registers the daemon on all nodes.
func (c *Cluster) Register(spec daemon.Spec, agent daemon.Agent) {
	c.t.Helper()
	for _, n := range c.nodes {
		if err := n.c.Register(spec, agent); err != nil {
			c.t.Fatal(err)
		}
	}
}

// Leader returns the node that leads by its own word, or -1.
func (c *Cluster) Leader() int {
	for i, n := range c.nodes {
		if _, _, ok := n.c.Leadership(); ok {
			return i
		}
	}
	return -1
}

// Elect waits until a node leads and returns it.
func (c *Cluster) Elect() int {
	c.t.Helper()
	c.Await("a node leads", func() bool { return c.Leader() >= 0 })
	return c.Leader()
}

// Expire cuts the leader off until its lease has run out and another node leads, heals it, and
// returns the new leader.
func (c *Cluster) Expire() int {
	c.t.Helper()
	old := c.Elect()
	c.Partition(old)
	c.Await("another node leads", func() bool { l := c.Leader(); return l >= 0 && l != old })
	c.Heal(old)
	return c.Leader()
}

// Resign makes the leader give up its term, waits until another leads and returns that one. With
// a single node it is the same one again.
func (c *Cluster) Resign() int {
	c.t.Helper()
	old := c.Elect()
	if err := c.nodes[old].c.Resign(context.Background(), 0); err != nil {
		c.t.Fatal(err)
	}
	return c.Elect()
}

// Partition cuts a node off from the store: its calls get no answer and have no effect.
func (c *Cluster) Partition(i int) { c.nodes[i].link.set(down) }

// LoseReplies lets a node's calls reach the store, but no answer reaches the node.
func (c *Cluster) LoseReplies(i int) { c.nodes[i].link.set(deaf) }

// Heal ends Partition and LoseReplies.
func (c *Cluster) Heal(i int) { c.nodes[i].link.set(up) }

// Kill ends a node as kill -9 would, as far as a test can: the store hears nothing more of it.
// Contexts of its agents and of its leadership are cancelled, because a test cannot take
// goroutines away.
func (c *Cluster) Kill(i int) {
	c.nodes[i].link.set(down)
	c.nodes[i].cancel(crash.ErrKilled)
	<-c.nodes[i].ended
}

// Stop stops a node cleanly and returns what its Run returned.
func (c *Cluster) Stop(i int) error {
	c.nodes[i].cancel(context.Canceled)
	return c.Ended(i)
}

// Ended waits until a node has stopped, by itself or because it was told to, and returns what its
// Run returned.
func (c *Cluster) Ended(i int) error {
	n := c.nodes[i]
	<-n.ended
	n.told = true
	return n.err
}

// Advance lets virtual time pass, and everything happen that happens in it.
func (c *Cluster) Advance(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

// Await lets time pass until cond is true; the test fails at once if that takes longer than
// Config.Limit.
func (c *Cluster) Await(what string, cond func() bool) {
	c.t.Helper()
	synctest.Wait()
	for waited := time.Duration(0); !cond(); waited += step {
		if waited >= c.cfg.Limit {
			c.t.Fatalf("waited %v in vain until %s", c.cfg.Limit, what)
		}
		c.Advance(step)
	}
}

const step = 10 * time.Millisecond

// Holder returns the node on which the unit (daemon/index) runs, or -1.
func (c *Cluster) Holder(unit string) int {
	for i, n := range c.nodes {
		select {
		case <-n.ended:
			continue
		default:
		}
		for _, r := range n.c.Status().Runs {
			if r.Fence.Unit.String() == unit && r.Phase == "running" {
				return i
			}
		}
	}
	return -1
}
