package member_test

import (
	"errors"
	"testing"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/internal/coordinator/lease"
	"github.com/emitd/emitd/internal/coordinator/member"
	"github.com/emitd/emitd/storage"
)

// timed gives the advert of a node with these timings.
func timed(t lease.Timing) daemon.Advert {
	a := advert("acme:work", 6)
	a.Traits.Timing = t.Shared()
	return a
}

// joinTimed adds a node with its own timings.
func (c *cluster) joinTimed(name string, t lease.Timing) *peer {
	p := c.join(name, timed(t))
	p.m = member.New(member.Config{Node: p.id, Advert: timed(t), Timing: t, Seed: uint64(len(c.nodes))}, c.now)
	return p
}

// A node with timings other than those of the live nodes ends, whichever are faster, and disturbs no other node.
func TestOtherTimingsEnd(t *testing.T) {
	t.Parallel()
	for name, x := range map[string]struct {
		first, second lease.Timing
		step          time.Duration // of the store's clock before the second node comes
	}{
		"fast joins default":                  {lease.Default(), lease.Fast(), 0},
		"default joins fast":                  {lease.Fast(), lease.Default(), 0},
		"fast joins default, clock set back":  {lease.Default(), lease.Fast(), -time.Hour},
		"default joins fast, clock set ahead": {lease.Fast(), lease.Default(), time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, 0)
			a, b := c.joinTimed("a", x.first), c.joinTimed("b", x.first)
			c.until(2*time.Minute, "run", func() bool { return c.total() == 6 })
			c.run(2 * x.first.HeartbeatInterval)
			c.skew = x.step
			p := c.joinTimed("c", x.second)
			c.run(20 * time.Millisecond)
			b.stop() // its units are free now, and c would have the lowest load
			c.until(2*(x.first.HeartbeatInterval*11/10+x.first.QueryTimeout), "it ends", func() bool { return p.stopped })
			var differ *member.TimingError
			if !errors.As(p.ended, &differ) || differ.Node.Name == "c" {
				t.Errorf("it ended with %v", p.ended)
			}
			c.run(3 * x.first.NodeRegistrationTTL)
			if p.said("elected") || p.said("start") {
				t.Errorf("it stood or ran\n%s", c.dump())
			}
			if a.stopped || a.said("lost") || len(a.running) != 6 || a.said("cancel") {
				t.Errorf("another was disturbed\n%s", c.dump())
			}
		})
	}
}

// A newcomer with other timings sends heartbeats but receives no replies, so it does not know of the others. They
// know that they were first.
func TestOtherTimingsUnheard(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 0)
	a := c.joinTimed("a", lease.Fast())
	a.forge = func(r *storage.Reply) { r.Members = c.snapshot().Nodes }
	c.until(time.Minute, "run", func() bool { return c.total() == 6 })
	c.joinTimed("b", lease.Default()).deaf = true
	c.run(2 * time.Minute)
	if a.stopped || a.said("lost") {
		t.Errorf("it was disturbed\n%s", c.dump())
	}
}

// Two nodes with different timings start together: one of them stays, and leads.
func TestOtherTimingsAtOnce(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 0)
	a, b := c.joinTimed("a", lease.Default()), c.joinTimed("b", lease.Fast())
	c.until(time.Minute, "one ends", func() bool { return a.stopped || b.stopped })
	c.until(3*time.Minute, "the other runs all", func() bool { return c.total() == 6 })
	if a.stopped && b.stopped {
		t.Errorf("both ended\n%s", c.dump())
	}
}

// A cluster with other timings left the row of a node that was killed, or seems to have been. A newcomer waits
// for that node's own NodeRegistrationTTL and then takes over. If the node wakes up, it counts as the later one.
func TestOtherTimingsOfTheDead(t *testing.T) {
	t.Parallel()
	for name, x := range map[string]struct{ first, second lease.Timing }{
		"fast after default": {lease.Default(), lease.Fast()},
		"default after fast": {lease.Fast(), lease.Default()},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, 0)
			a := c.joinTimed("a", x.first)
			c.until(2*time.Minute, "run", func() bool { return c.total() == 6 })
			c.run(2 * x.first.HeartbeatInterval)
			a.paused = true
			p := c.joinTimed("b", x.second)
			took := c.until(x.first.NodeRegistrationTTL+2*x.second.NodeRegistrationTTL, "it leads", func() bool { return p.leading })
			if took < x.first.NodeRegistrationTTL {
				t.Errorf("it led after %v, while the dead one's registration could have gone on", took)
			}
			p.forge = func(r *storage.Reply) { r.Members = c.snapshot().Nodes }
			c.until(3*x.second.NodeRegistrationTTL, "it runs all", func() bool { return len(p.running) == 6 })
			a.paused = false
			c.until(2*(x.second.HeartbeatInterval+x.first.HeartbeatInterval), "the other wakes up and ends", func() bool { return a.stopped })
			if c.run(time.Minute); p.stopped || p.said("lost") || len(a.running) > 0 {
				t.Errorf("it was disturbed\n%s", c.dump())
			}
		})
	}
}
