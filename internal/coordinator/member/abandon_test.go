package member_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/internal/coordinator/lease"
	"github.com/emitd/emitd/internal/coordinator/member"
)

var onlyUnit = daemon.Unit{Daemon: "acme:work"}

// abandoned returns a cluster of one node whose only run ignored its cancellation, after the store was informed.
func abandoned(t *testing.T) (*cluster, *peer) {
	t.Helper()
	c := newCluster(t, 1, advert("acme:work", 1))
	p := c.nodes[0]
	c.until(10*time.Second, "it runs", func() bool { return active(c) == 1 })
	p.stuck[onlyUnit] = true
	p.cut = true
	c.until(20*time.Second, "it is abandoned", func() bool { return p.logged("unit abandoned") })
	p.cut = false
	c.until(20*time.Second, "the store knows", func() bool { return len(c.snapshot().Units[0].Embargoes) == 1 })
	return c, p
}

// returns makes the run return that ignored its cancellation.
func (p *peer) returns() {
	p.stuck[onlyUnit] = false
	p.end(daemon.Fence{Unit: onlyUnit, Generation: p.running[onlyUnit]})
}

// The embargo of an abandoned run ends when the run returns. The unit runs again in its only process within an
// interval, not when the embargo would have ended, and one heartbeat is enough to report it.
func TestEmbargoEndsWhenTheRunReturns(t *testing.T) {
	t.Parallel()
	c, p := abandoned(t)
	c.run(5 * time.Minute) // the embargo has its full length by now
	c.until(2*time.Minute, "a new embargo", func() bool {
		e := c.snapshot().Units[0].Embargoes
		return len(e) == 1 && e[0].Until.Sub(c.snapshot().Now) > 50*time.Second
	})
	from := len(p.calls)
	p.returns()
	c.until(lease.Fast().HeartbeatInterval, "it runs again", func() bool { return active(c) == 1 })
	c.run(time.Minute)
	notified := 0
	for _, call := range p.calls[from:] {
		if call.Heartbeat != nil && len(call.Heartbeat.ReturnedRuns) > 0 {
			notified++
		}
	}
	if notified != 1 {
		t.Errorf("%d heartbeats told of the return, want 1", notified)
	}
}

// The report of a return is repeated if its reply was lost. While the store is away it does not make the node
// send sooner.
func TestReturnIsReportedUntilAnswered(t *testing.T) {
	t.Parallel()
	c, p := abandoned(t)
	lost := 0
	p.loseOne = func(call member.Call) bool {
		lose := call.Heartbeat != nil && len(call.Heartbeat.ReturnedRuns) > 0 && lost < 3
		if lose {
			lost++
		}
		return lose
	}
	p.returns()
	c.until(20*time.Second, "it runs again", func() bool { return active(c) == 1 })
	if lost != 3 {
		t.Errorf("%d replies were lost, want 3", lost)
	}
}

// A run returns while the report that it was abandoned again, for a later assignment, is in flight. The store may
// have freed that assignment by then, so this process starts nothing under it.
func TestGivenUpGenerationIsNotStarted(t *testing.T) {
	t.Parallel()
	c, p := abandoned(t)
	var given daemon.Fence
	p.loseOne = func(call member.Call) bool {
		if call.Report == nil || given.Generation != 0 {
			return false
		}
		for _, u := range call.Report.Units {
			if u.Step == daemon.Abandon {
				given = daemon.Fence{Unit: u.Unit, Generation: u.Generation}
			}
		}
		return given.Generation != 0
	}
	c.until(2*time.Minute, "it is abandoned once more", func() bool { return given.Generation != 0 })
	if c.snapshot().Units[0].State != daemon.Deleted {
		t.Fatal("the store did not free the unit")
	}
	p.returns()
	c.until(time.Minute, "it runs again", func() bool { return active(c) == 1 })
	if p.logged(fmt.Sprintf(" start %v", given)) {
		t.Errorf("%v was started after it had been given up\n%s", given, c.dump())
	}
}
