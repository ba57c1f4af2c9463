package member_test

import (
	"strings"
	"testing"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/internal/coordinator/lease"
	"github.com/emitd/emitd/internal/coordinator/member"
)

// A node that is given far more than it can start within the acknowledge timeout starts a few units at a time and
// postpones the others. In the end it runs all of them: none is expired, embargoed or abandoned.
func TestABurstOfStartsIsPaced(t *testing.T) {
	t.Parallel()
	const units, each = 200, 100 * time.Millisecond // one after another: 20 s, with 5 s to acknowledge
	c := newCluster(t, 1, advert("acme:work", units))
	p := c.nodes[0]
	p.oneByOne = each
	c.until(time.Minute, "all run and are active", func() bool { return active(c) == units })
	if p.mostStarting > 60 {
		t.Errorf("%d runs were in their start phase at once", p.mostStarting)
	}
	postponed := 0
	for _, e := range mustEvents(c, 0) {
		switch e.Kind {
		case daemon.AssignmentPostponed:
			postponed++
		case daemon.AssignmentAssigned, daemon.AssignmentActive:
		default:
			if strings.HasPrefix(string(e.Kind), "assignment.") {
				t.Errorf("%s of %s: %s", e.Kind, e.Unit, e.Reason)
			}
		}
	}
	if postponed == 0 || postponed > 4*units {
		t.Errorf("%d postponements of %d units", postponed, units)
	}
	assigned := 0
	for _, l := range p.log {
		if strings.Contains(l, string(member.UnitAssigned)) {
			assigned++
		}
	}
	if assigned != units {
		t.Errorf("the hooks were told of %d assignments of %d units", assigned, units)
	}
}

// A node that is given much at once gets the time to start it, so that every unit has two events: assigned and active. A
// unit alone has no more time than its spec says.
func TestAcknowledgeTimeoutsGrowWithTheBacklog(t *testing.T) {
	t.Parallel()
	const units = 500
	c := newCluster(t, 1, advert("acme:work", units))
	c.nodes[0].oneByOne = 15 * time.Millisecond // one after another: 7.5 s, with 5 s to acknowledge
	c.until(time.Minute, "all run and are active", func() bool { return active(c) == units })
	events := 0
	for _, e := range mustEvents(c, 0) {
		if strings.HasPrefix(string(e.Kind), "assignment.") {
			events++
		}
	}
	if events != 2*units {
		t.Errorf("%d events of %d units", events, units)
	}
	x := lease.Fast().AcknowledgeTimeout
	for _, u := range c.snapshot().Units {
		if u.AcknowledgeTimeout != 4*x {
			t.Fatalf("%s has %v to acknowledge, want %v for a node with %d units to start", u.Unit, u.AcknowledgeTimeout, 4*x, units)
		}
	}
	alone := newCluster(t, 1, advert("acme:work", 1))
	alone.until(time.Minute, "it runs", func() bool { return active(alone) == 1 })
	if u := alone.snapshot().Units[0]; u.AcknowledgeTimeout != x {
		t.Errorf("a unit alone has %v to acknowledge, want %v", u.AcknowledgeTimeout, x)
	}
}

// A run has its time to start from the stamp of its fence on. A store that takes longer than that for a stamp costs no unit
// its assignment while the leader still waits for it.
func TestAStartsWindowBeginsWithItsStamp(t *testing.T) {
	t.Parallel()
	const units = 200 // the node has twice the acknowledge timeout
	x := lease.Fast().AcknowledgeTimeout
	c := newCluster(t, 1, advert("acme:work", units))
	c.nodes[0].stamps = func(u daemon.Unit) time.Duration {
		if u.Index < 4 { // the first ones to start
			return x
		}
		return 0
	}
	c.until(time.Minute, "all run and are active", func() bool { return active(c) == units })
	for _, e := range mustEvents(c, 0) {
		if e.Kind == daemon.AssignmentDeleted || e.Kind == daemon.AssignmentForced {
			t.Errorf("%s of %s: %s", e.Kind, e.Unit, e.Reason)
		}
	}
}

func active(c *cluster) (n int) {
	for _, u := range c.snapshot().Units {
		if u.State == daemon.Active && len(u.Embargoes) == 0 {
			n++
		}
	}
	return n
}

// Agents that take long to be ready do not keep the others from starting.
func TestSlowStartsDoNotBlockOthers(t *testing.T) {
	t.Parallel()
	slow, quick := advert("acme:slow", 30), advert("acme:work", 30)
	slow.Kinds, slow.Specs = append(slow.Kinds, quick.Kinds...), append(slow.Specs, quick.Specs...)
	c := newCluster(t, 1, slow)
	p := c.nodes[0]
	p.never = "acme:slow"
	x := lease.Fast()
	c.until(x.SettleWindow+4*x.AcknowledgeTimeout, "the quick ones run", func() bool {
		n := 0
		for u := range p.running {
			if u.Daemon == "acme:work" {
				n++
			}
		}
		return n == 30
	})
}

// While no heartbeat is answered, no more runs are started.
func TestNothingBeginsWhileHeartbeatsFail(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1, advert("acme:work", 100))
	p := c.nodes[0]
	p.oneByOne = 50 * time.Millisecond
	c.until(10*time.Second, "some run", func() bool { return len(p.running) > 10 })
	p.loseOne = func(call member.Call) bool { return call.Heartbeat != nil }
	c.until(3*time.Second, "a heartbeat fails", func() bool { return p.logged("heartbeat failed") })
	starts := p.count(" start ")
	c.run(time.Second)
	if n := p.count(" start "); n != starts {
		t.Errorf("%d runs began while heartbeats failed", n-starts)
	}
	p.loseOne = nil
	c.until(time.Minute, "all run", func() bool { return active(c) == 100 })
}

// A run that has not entered its agent, or has returned, is not abandoned. After an abandoned run has returned,
// the unit is tried again in the same process, the only one there is.
func TestAbandonedUnitReturnsToItsOnlyProcess(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1, advert("acme:work", 1))
	p, u := c.nodes[0], daemon.Unit{Daemon: "acme:work"}
	c.until(10*time.Second, "it runs", func() bool { return active(c) == 1 })
	p.stuck[u] = true
	p.cut = true
	c.until(20*time.Second, "it is abandoned", func() bool { return p.logged("unit abandoned") })
	p.cut = false
	c.until(20*time.Second, "the store knows", func() bool { return len(c.snapshot().Units[0].Embargoes) == 1 })
	if e := c.snapshot().Units[0].Embargoes[0]; e.Length <= 0 || e.Length > time.Minute {
		t.Errorf("the embargo is %v long", e.Length)
	}
	c.run(5 * time.Minute)
	p.stuck[u] = false
	p.end(daemon.Fence{Unit: u, Generation: p.running[u]})
	head := c.snapshot().Head
	c.until(time.Minute+5*time.Second, "it runs again", func() bool { return c.snapshot().Units[0].State == daemon.Active })
	for _, e := range mustEvents(c, head) {
		if e.Kind == daemon.AssignmentAbandoned {
			t.Errorf("abandoned again after it had returned")
		}
	}
}
