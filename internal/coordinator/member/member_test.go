package member_test

import (
	"slices"
	"testing"
	"time"

	"github.com/emitd/emitd/internal/coordinator/member"
)

func TestColdStartSpreadsEvenly(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3)
	took := c.until(10*time.Second, "six units run", func() bool { return c.total() == 6 })
	if got := c.spread(); !slices.Equal(got, []int{2, 2, 2}) {
		t.Fatalf("spread %v after %v, want 2 each\n%s", got, took, c.dump())
	}
	c.run(time.Minute)
	if got := c.spread(); !slices.Equal(got, []int{2, 2, 2}) {
		t.Fatalf("spread %v a minute later\n%s", got, c.dump())
	}
}

func TestKilledLeaderIsReplacedWithinTheBounds(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3)
	c.until(10*time.Second, "six units run", func() bool { return c.total() == 6 })
	c.run(20 * time.Second)
	c.leader().kill()
	lead := c.until(10*time.Second, "a new leader", func() bool { return c.leader() != nil })
	if lead > 5*time.Second+250*time.Millisecond {
		t.Errorf("a new leader after %v, the bound is the lease + 250ms", lead)
	}
	run := lead + c.until(10*time.Second, "six units run", func() bool { return c.total() == 6 })
	if run > 7500*time.Millisecond {
		t.Errorf("all units run after %v, the bound is 7.5s\n%s", run, c.dump())
	}
	t.Logf("leader after %v, units after %v", lead, run)
}

func TestCleanStopHandsOver(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3)
	c.until(10*time.Second, "six units run", func() bool { return c.total() == 6 })
	c.run(20 * time.Second)
	l := c.leader()
	l.stop()
	took := c.until(time.Second, "another leader", func() bool { return c.leader() != nil && c.leader() != l })
	all := took + c.until(2*time.Second, "six units on two nodes", func() bool { return l.stopped && c.total() == 6 })
	t.Logf("leader after %v, all after %v", took, all)
}

// TestFollowersLeaveTheTermAlone: campaigning locks and reads the rows of the term. So no node
// campaigns in a cluster whose leader renews, whatever wakes the followers.
func TestFollowersLeaveTheTermAlone(t *testing.T) {
	t.Parallel()
	c := settled(t, 5)
	for _, p := range c.nodes {
		p.calls = nil
	}
	for range 300 {
		for _, p := range c.nodes {
			p.step(member.WakeUp{})
		}
		c.run(100 * time.Millisecond)
	}
	for _, p := range c.nodes {
		for _, call := range p.calls {
			if call.Heartbeat != nil && call.Heartbeat.TermRequest.Campaign {
				t.Fatalf("%s stood against a leader that renews", p.id.Name)
			}
		}
	}
	l := c.leader()
	l.dead = true
	c.until(6*time.Second, "another leader", func() bool { return c.leader() != nil && c.leader() != l })
}
