package member_test

import (
	"slices"
	"testing"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/internal/coordinator/lease"
	"github.com/emitd/emitd/internal/coordinator/member"
	"github.com/emitd/emitd/node"
	"github.com/emitd/emitd/storage"
)

// joinTimed adds a node with its own timings.
func (c *cluster) joinTimed(name string, t lease.Timing) *peer {
	p := c.join(name, advert("acme:work", 6))
	p.m = member.New(member.Config{Node: p.id, Advert: advert("acme:work", 6), Timing: t, Seed: uint64(len(c.nodes))}, c.now)
	return p
}

// mixedCluster returns a leader and two followers with other timings, all of them running units.
func mixedCluster(t *testing.T, leads, follows lease.Timing) (c *cluster, leader, a, b *peer) {
	t.Helper()
	c = newCluster(t, 0)
	leader = c.joinTimed("leader", leads)
	c.until(time.Minute, "it leads", func() bool { return leader.leading })
	a, b = c.joinTimed("a", follows), c.joinTimed("b", follows)
	c.until(5*time.Minute, "all run", func() bool { return c.total() == 6 && !slices.Contains(c.spread(), 0) })
	c.run(2 * lease.Default().NodeRegistrationTTL)
	if n := c.total(); n != 6 || a.stopped || b.stopped {
		t.Fatalf("%d units run\n%s", n, c.dump())
	}
	return c, leader, a, b
}

// Nodes judge each other by the longer timings of the two: a silent leader loses its term, and a silent node its
// units, only after its own durations, and within the bounds of the slower.
func TestMixedTimings(t *testing.T) {
	t.Parallel()
	slow, fast := lease.Default(), lease.Fast()
	for name, x := range map[string]struct{ leads, follows lease.Timing }{
		"slow leader": {slow, fast},
		"fast leader": {fast, slow},
	} {
		t.Run(name+" silent", func(t *testing.T) {
			t.Parallel()
			c, leader, a, b := mixedCluster(t, x.leads, x.follows)
			leader.cut = true
			took := c.until(slow.LeaseDuration+slow.Late()+time.Second, "another leads", func() bool {
				if both := leader.leading && (a.leading || b.leading); both {
					t.Fatalf("two lead\n%s", c.dump())
				}
				return a.leading || b.leading
			})
			if least := slow.LeaseDuration - x.leads.Late(); took < least {
				t.Errorf("another led after %v, want at least %v", took, least)
			}
		})
		t.Run(name+" and a silent follower", func(t *testing.T) {
			t.Parallel()
			c, leader, a, b := mixedCluster(t, x.leads, x.follows)
			a.cut = true
			c.until(slow.NodeRegistrationTTL+slow.Late()+time.Second, "its units run elsewhere", func() bool {
				for u := range a.running {
					if leader.running[u] != 0 || b.running[u] != 0 {
						t.Fatalf("%v runs twice\n%s", u, c.dump())
					}
				}
				return len(leader.running)+len(b.running) == 6
			})
		})
	}
}

// A fast leader gives a slow node the time that its heartbeats need, without any wake-up.
func TestFastLeaderAssignsToSlowNode(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 0)
	c.wakes = false
	fast := c.joinTimed("fast", lease.Fast())
	c.until(time.Minute, "it leads and runs", func() bool { return fast.leading && len(fast.running) == 6 })
	slow := c.joinTimed("slow", lease.Default())
	c.run(time.Second)
	fast.fails = true
	for u, generation := range fast.running {
		fast.step(member.RunEnded{Fence: daemon.Fence{Unit: u, Generation: generation}, How: member.GaveUp, Err: errLost})
		delete(fast.running, u)
	}
	c.until(time.Minute, "the slow node runs all", func() bool { return len(slow.running) == 6 })
	if slow.logged("deadline") {
		t.Errorf("a start was too late\n%s", c.dump())
	}
}

// A node that has never seen the leader's row does not judge the leader's lease by its own. It asks for the list of
// members first. If the row is missing, the longest durations that it knows count.
func TestLeaseOfUnknownLength(t *testing.T) {
	t.Parallel()
	for name, missing := range map[string]bool{"in the next list": false, "deleted": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, 0)
			first, b := c.joinTimed("first", lease.Fast()), c.joinTimed("b", lease.Fast())
			b.cut = true
			c.until(time.Minute, "one leads", func() bool { return first.leading })
			b.cut = false
			c.run(10 * time.Second)
			hidden := true // b does not learn of the newcomer
			slow := c.joinTimed("slow", lease.Default())
			b.forge = func(r *storage.Reply) {
				for i := range r.Events {
					if r.Events[i].Node == "slow" { // it misses the event that announces the newcomer
						r.Events[i].Kind = daemon.NodeLate
					}
				}
				if hidden || missing {
					r.Members = slices.DeleteFunc(r.Members, func(m node.Member) bool { return m.Name == "slow" })
				}
			}
			c.run(10 * time.Second)
			b.cut = true
			first.stop()
			c.until(time.Minute, "the newcomer leads", func() bool { return slow.leading })
			b.cut = false
			c.run(3 * time.Second)
			slow.cut, hidden = true, false
			took := c.until(2*time.Minute, "the fast node leads", func() bool {
				if b.leading && slow.leading && !missing {
					t.Fatalf("two lead\n%s", c.dump())
				}
				return b.leading
			})
			if least := lease.Default().LeaseDuration - lease.Default().Late(); !missing && took < least {
				t.Errorf("it led after %v, want at least %v", took, least)
			}
		})
	}
}
