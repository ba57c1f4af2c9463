// Package coordinatortest runs whole clusters inside a test. With it, users see how their agents,
// hooks and leader-only work behave when leadership changes, nodes die and networks break.
//
// A [Cluster] is several coordinators over one store in memory, with the profile "fast", inside a
// testing/synctest bubble. Time there is virtual: an hour of it takes milliseconds. A goroutine
// that is left behind fails the test.
//
//	synctest.Test(t, func(t *testing.T) {
//		c := coordinatortest.New(t, coordinatortest.Config{Nodes: 3})
//		c.Register(daemon.Spec{ID: "acme:reports"}, agent)
//		leader := c.Elect()
//		c.Kill(leader)
//		c.WaitUntil("the unit runs again", func() bool { return c.Holder("acme:reports/0") != leader })
//	})
//
// Agents under test must use the bubble's time (package time, as usual). They must not wait for
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
	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/internal/coordinator/crash"
	"github.com/emitd/emitd/node"
	"github.com/emitd/emitd/storage"
	"github.com/emitd/emitd/storage/memory"
)

// Config configures a cluster. Its zero value is one node.
type Config struct {
	// Nodes is the number of nodes; default 1. They are called node-0, node-1, ….
	Nodes int
	// Configure may change a node's configuration before the node is created.
	Configure func(i int, cfg *coordinator.Config)
	// Wrap may put something between a node and its store, e.g. a source of faults.
	Wrap func(i int, s storage.Store) storage.Store
	// Log shows what the nodes log.
	Log bool
	// Limit is the longest time, in virtual time, for which WaitUntil waits; default 5 minutes.
	Limit time.Duration
}

// Cluster is a number of nodes on one store. Only the test's own goroutine may call its methods.
// They refer to nodes by index.
type Cluster struct {
	t     testing.TB
	cfg   Config
	store *memory.Store
	nodes []*member
	began time.Time
}

// member is one node with its connection to the store.
type member struct {
	c       *coordinator.Coordinator
	link    *link
	cancel  context.CancelCauseFunc
	ended   chan struct{}
	err     error // returned by Run
	errSeen bool  // the test has received err
}

// New starts a cluster, which ends with the test. It must be called inside a synctest bubble.
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

// Add starts one more node and returns its index. No daemons are registered on it yet.
func (c *Cluster) Add() int {
	c.t.Helper()
	i := len(c.nodes)
	n := &member{link: &link{store: c.store}, ended: make(chan struct{})}
	cfg := coordinator.Config{
		Cluster: "test", Profile: coordinator.ProfileFast, Node: node.Identity{Name: fmt.Sprintf("node-%d", i)},
		Clock:  func() time.Duration { return time.Since(c.began) + time.Hour },
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

// close stops all nodes at the same time and checks how they ended.
func (c *Cluster) close() {
	for _, n := range c.nodes {
		n.link.set(up)
		n.cancel(context.Canceled)
	}
	for i, n := range c.nodes {
		<-n.ended
		if n.err != nil && !n.errSeen && !errors.Is(n.err, crash.ErrKilled) {
			c.t.Errorf("node-%d: %v", i, n.err)
		}
	}
}

// Node returns a node's coordinator.
func (c *Cluster) Node(i int) *coordinator.Coordinator { return c.nodes[i].c }

// Store returns the store itself, which partitions do not affect.
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

// Leader returns the node that considers itself the leader, or -1.
func (c *Cluster) Leader() int {
	for i, n := range c.nodes {
		if _, _, ok := n.c.Leadership(); ok {
			return i
		}
	}
	return -1
}

// Elect waits until a node leads, and returns it.
func (c *Cluster) Elect() int {
	c.t.Helper()
	c.WaitUntil("a node leads", func() bool { return c.Leader() >= 0 })
	return c.Leader()
}

// Expire cuts the leader off until its lease has run out and another node leads. Then it heals the
// old leader's connection and returns the new leader.
func (c *Cluster) Expire() int {
	c.t.Helper()
	old := c.Elect()
	c.Partition(old)
	c.WaitUntil("another node leads", func() bool { l := c.Leader(); return l >= 0 && l != old })
	c.Heal(old)
	return c.Leader()
}

// Resign makes the leader give up its term, waits until a node leads, and returns it. With a single
// node it is the same one again.
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

// Kill ends a node like kill -9, as far as a test can: the store receives nothing more from it. The
// contexts of its agents and of its leadership are cancelled, because a test cannot remove
// goroutines.
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

// Ended waits until a node has stopped, by itself or by Stop, and returns what its Run returned.
func (c *Cluster) Ended(i int) error {
	n := c.nodes[i]
	<-n.ended
	n.errSeen = true
	return n.err
}

// Advance lets virtual time pass, with everything that happens in it.
func (c *Cluster) Advance(d time.Duration) {
	<-time.After(d)
	synctest.Wait()
}

// WaitUntil lets time pass until cond is true. The test fails at once if that takes longer than
// Config.Limit.
func (c *Cluster) WaitUntil(what string, cond func() bool) {
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
