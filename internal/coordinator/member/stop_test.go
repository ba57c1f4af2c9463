package member_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/internal/coordinator/lease"
	"github.com/emitd/emitd/internal/coordinator/member"
	"github.com/emitd/emitd/node"
	"github.com/emitd/emitd/storage"
)

// overlap runs the cluster and returns the first moment at which a unit runs on two nodes.
func (c *cluster) overlap(d time.Duration) string {
	end := c.now.Add(d)
	for c.now < end {
		c.run(10 * time.Millisecond)
		at := map[daemon.Unit]string{}
		for _, p := range c.nodes {
			for u := range p.running {
				if o, ok := at[u]; ok {
					return u.String() + " on " + o + " and " + p.id.Name
				}
				at[u] = p.id.Name
			}
		}
	}
	return ""
}

// The leader forces by the unit's drain timeout, so a node that stops must not drain for longer.
func TestStopDrainsByTheUnitsOwnTimeout(t *testing.T) {
	t.Parallel()
	a := advert("acme:work", 6)
	a.Specs[0].DrainTimeout = 3 * time.Second
	c := newCluster(t, 3, a)
	c.until(10*time.Second, "run", func() bool { return c.total() == 6 })
	c.run(20 * time.Second)
	p := c.nodes[0]
	if p == c.leader() {
		p = c.nodes[1]
	}
	for u := range p.running {
		p.slow[u] = true
	}
	p.stop()
	if s := c.overlap(15 * time.Second); s != "" {
		t.Errorf("two runs: %s\n%s", s, c.dump())
	}
}

// defaults creates a cluster with the timings of the profile "default".
func defaults(t *testing.T, n int, a daemon.Advert) *cluster {
	c := newCluster(t, 0)
	for i := range n {
		p := c.join(fmt.Sprintf("n%d", i), a)
		p.m = member.New(member.Config{Node: p.id, Advert: a, Timing: lease.Default(), Seed: uint64(i + 1)}, c.now)
	}
	return c
}

// The node is cut off and stops while one of its runs is assigning: the acknowledge deadline stays.
func TestStopWhileAssigningAndCutOff(t *testing.T) {
	t.Parallel()
	c := defaults(t, 3, advert("acme:work", 6))
	c.until(60*time.Second, "run", func() bool { return c.total() == 6 })
	c.run(60 * time.Second)
	a := advert("acme:work", 6)
	a.Kinds = append(a.Kinds, "acme:new")
	a.Specs = append(a.Specs, daemon.Spec{ID: "acme:new", Instances: 3})
	var p *peer
	for _, q := range c.nodes {
		if q != c.leader() {
			p = q
		}
	}
	for _, q := range c.nodes {
		q.step(member.Advertise{Advert: a})
	}
	for range 10000 {
		c.run(500 * time.Microsecond)
		for u := range p.running {
			if u.Daemon == "acme:new" {
				p.slow[u] = true
				p.cut = true
			}
		}
		if p.cut {
			break
		}
	}
	c.run(time.Second)
	p.stop()
	if s := c.overlap(60 * time.Second); s != "" {
		t.Errorf("two runs: %s\n%s", s, c.dump())
	}
}

// A daemon may have a longer drain timeout than its node. It gets that time at a stop too, whether the drain
// began before the stop or with it, and is cancelled after it. The row records which it was.
func TestStopWaitsForALongDrain(t *testing.T) {
	t.Parallel()
	for _, before := range []bool{false, true} {
		t.Run(fmt.Sprintf("begun before: %v", before), func(t *testing.T) {
			t.Parallel()
			a := advert("acme:work", 6)
			a.Specs[0].DrainTimeout = time.Minute
			c := newCluster(t, 3, a)
			c.until(10*time.Second, "run", func() bool { return c.total() == 6 })
			c.run(20 * time.Second)
			s := c.snapshot()
			p := c.nodes[0]
			if p == c.leader() {
				p = c.nodes[1]
			}
			var ch []storage.Change
			for _, r := range s.Units {
				if r.HeldBy(p.id.Incarnation) {
					ch = append(ch, storage.Change{Unit: r.Unit, Step: daemon.Revoke, Generation: r.Generation, State: r.State})
					p.slow[r.Unit] = true
				}
			}
			if before {
				if _, err := c.store.Commit(t.Context(), storage.Commit{Term: s.Term.Ref(), Changes: ch}); err != nil {
					t.Fatal(err)
				}
				c.run(3 * time.Second)
			}
			p.stop()
			took := c.until(70*time.Second, "stop", func() bool { return p.stopped })
			if took < 50*time.Second {
				t.Errorf("stopped after %v, with a minute to drain\n%s", took, c.dump())
			}
			if len(p.running) > 0 || !p.logged("cancel") {
				t.Errorf("deregistered while runs were never cancelled\n%s", c.dump())
			}
			events, err := c.store.Events(t.Context(), 0, 1000)
			if err != nil {
				t.Fatal(err)
			}
			notified := slices.ContainsFunc(events.Events, func(e daemon.Event) bool {
				return e.Kind == daemon.AssignmentDeleted && e.Reason == "cancelled: drain deadline"
			})
			if !notified {
				t.Error("no event says that the drain was cut off")
			}
		})
	}
}

// The leave that resigns and drains fails once: the next leave resigns too.
func TestStopWhoseResignationFailsOnce(t *testing.T) {
	t.Parallel()
	c := defaults(t, 3, advert("acme:work", 6))
	c.until(60*time.Second, "run", func() bool { return c.total() == 6 })
	c.run(60 * time.Second)
	p := c.leader()
	first := true
	p.loseOne = func(call member.Call) bool {
		p.cut = call.Leave != nil && first
		first = first && call.Leave == nil
		return false
	}
	began := c.now
	p.stop()
	c.until(100*time.Second, "another leads", func() bool { l := c.leader(); return l != nil && l != p })
	if took := c.now.Sub(began); took > 12*time.Second {
		t.Errorf("another leads after %v only", took)
	}
}

// A heartbeat that campaigns is in flight when the stop begins.
func TestElectedWhileStopping(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1)
	p := c.nodes[0]
	c.latency = 100 * time.Millisecond
	c.until(10*time.Second, "stand", func() bool {
		n := len(p.calls)
		return n > 0 && p.calls[n-1].Heartbeat != nil && p.calls[n-1].Heartbeat.TermRequest.Campaign
	})
	p.stop()
	c.run(2 * time.Second)
	if p.logged("elected") {
		t.Errorf("elected while stopping; term vacant %v stopped %v\n%s", c.snapshot().Term.Vacant, p.stopped, c.dump())
	}
}

// A follower reports exit evidence once, and in an outage keeps only the newest.
func TestEvidenceIsReportedOnce(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3)
	c.until(10*time.Second, "run", func() bool { return c.total() == 6 })
	c.run(5 * time.Second)
	var p, victim *peer
	for _, q := range c.nodes {
		if q == c.leader() {
			continue
		}
		if p == nil {
			p = q
		} else {
			victim = q
		}
	}
	victim.kill()
	n := len(p.calls)
	// as watchHost does until a member list shows that the store knows
	for range 100 {
		p.step(member.ExitEvidence{Ended: []node.Incarnation{victim.id.Incarnation}})
		c.run(250 * time.Millisecond)
	}
	lists := 0
	for _, call := range p.calls[n:] {
		if call.Heartbeat != nil && call.Heartbeat.WantMembers {
			lists++
		}
	}
	if lists == 0 {
		t.Error("it never asked for the member list, which ends its witness")
	}
	notified := slices.ContainsFunc(mustEvents(c, 0), func(e daemon.Event) bool {
		return e.Kind == daemon.NodeRemoved && e.Incarnation == victim.id.Incarnation && strings.Contains(e.Reason, "witnessed")
	})
	if !notified {
		t.Error("the history does not say that a peer witnessed the death")
	}
	p.cut = true
	for range 400 {
		p.step(member.ExitEvidence{Ended: []node.Incarnation{victim.id.Incarnation}})
		c.run(250 * time.Millisecond)
	}
	p.cut = false
	n = len(p.calls)
	c.run(5 * time.Second)
	for _, call := range p.calls[n:] {
		if call.Heartbeat != nil {
			if n := len(call.Heartbeat.ExitEvidence); n > 1 {
				t.Errorf("after an outage: a heartbeat with %d proofs of one death", n)
			}
			break
		}
	}
}

// A node that needs the host of a process, for exit evidence, or its timings, learns them also if that process joined
// later, without an extra call.
func TestFollowersLearnTheHostsOfThoseWhoJoin(t *testing.T) {
	t.Parallel()
	on := func(boot string) daemon.Advert {
		a := advert("acme:work", 6)
		a.Traits.Host.BootID = boot
		return a
	}
	c := newCluster(t, 3, on("b"), on("b"), on(""))
	c.until(10*time.Second, "run", func() bool { return c.total() == 6 })
	c.run(5 * time.Second)
	first := make([]int, len(c.nodes))
	for i, p := range c.nodes {
		first[i] = len(p.calls)
	}
	c.join("late", on("b"))
	c.run(10 * time.Second)
	for i, p := range c.nodes[:3] {
		lists, beats := 0, 0
		for _, call := range p.calls[first[i]:] {
			if call.Heartbeat == nil {
				continue
			}
			beats++
			if call.Heartbeat.WantMembers {
				lists++
			}
		}
		if lists != 1 {
			t.Errorf("%s asked for the member list %d times, want once", p.id.Name, lists)
		}
		if beats > 13 {
			t.Errorf("%s beat %d times in ten intervals", p.id.Name, beats)
		}
	}
}

// In a large cluster the member list is not read again for every node that joins.
func TestHostsOfALargeClusterAreLearntInRounds(t *testing.T) {
	t.Parallel()
	none := daemon.Advert{Traits: node.Traits{Host: node.Host{BootID: "b"}}}
	c := newCluster(t, 1, none)
	c.run(3 * time.Second)
	var joined []node.Identity
	seq := uint64(0)
	join := func(n int) { // and every node that has joined before sends a heartbeat
		for range n {
			id := fmt.Sprintf("00000000-0000-7000-8000-%012d", len(joined))
			joined = append(joined, node.Identity{Name: "x", ID: node.ID(id), Incarnation: node.Incarnation(id)})
		}
		seq++
		for _, who := range joined {
			if _, err := c.store.Heartbeat(context.Background(), storage.Heartbeat{Node: who, Seq: seq, Advert: &none, EventsAfter: -1}); err != nil {
				t.Fatal(err)
			}
		}
	}
	lists := func(calls []member.Call) (n int) {
		for _, call := range calls {
			if call.Heartbeat != nil && call.Heartbeat.WantMembers {
				n++
			}
		}
		return n
	}
	p := c.nodes[0]
	from := len(p.calls)
	join(45)
	c.run(2500 * time.Millisecond)
	if n := lists(p.calls[from:]); n != 1 {
		t.Errorf("%d lists after some have joined, want 1", n)
	}
	join(55)
	from = len(p.calls)
	for range 24 { // intervals
		join(1)
		c.run(time.Second)
	}
	if n := lists(p.calls[from:]); n < 4 || n > 6 {
		t.Errorf("%d lists of 100 members in 24 intervals, want one in 4 or 5", n)
	}
}

// The agent returns ErrStale at once, whatever the fence is.
func TestAgentThatRefusesItselfDoesNotSpin(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1)
	c.until(10*time.Second, "run", func() bool { return c.total() == 6 })
	c.run(5 * time.Second)
	p := c.nodes[0]
	head, n := c.snapshot().Head, len(p.calls)
	end := c.now.Add(5 * time.Second)
	u := daemon.Unit{Daemon: "acme:work", Index: 0}
	for c.now < end {
		c.run(time.Millisecond)
		if g, ok := p.running[u]; ok {
			delete(p.running, u)
			c.deliver(p, member.RunEnded{Fence: daemon.Fence{Unit: u, Generation: g}, How: member.FenceRefused, Err: daemon.ErrStale})
		}
	}
	if events, calls := c.snapshot().Head-head, len(p.calls)-n; events > 20 || calls > 60 {
		t.Errorf("%d events and %d calls in 5 s", events, calls)
	}
}

// A heartbeat that campaigns is the first call to the changed store: its reply shows the change.
func TestFirstReplyOfAnotherStoreElectsNobody(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3)
	c.until(10*time.Second, "run", func() bool { return c.total() == 6 })
	l := c.leader()
	// the image: the term is vacant after a resignation; the newest history: another node leads by now
	l.step(member.Resign{Reason: node.Resigned, Cooldown: time.Minute})
	c.until(time.Second, "vacant", func() bool { return c.snapshot().Term.Vacant })
	image := c.store.Clone()
	c.until(5*time.Second, "another leads", func() bool { return c.leader() != nil })
	c.run(3 * time.Second)
	c.store.Restore(image)
	c.store.SetStoreID("another")
	for range 200 {
		c.run(5 * time.Millisecond)
		n := 0
		for _, p := range c.nodes {
			if p.leading {
				n++
			}
		}
		if n > 1 {
			t.Errorf("two lead\n%s", c.dump())
			return
		}
	}
	for _, p := range c.nodes {
		if p.leading {
			t.Errorf("%s leads within a second of the change\n", p.id.Name)
		}
	}
}

// The leader ran everything and stops, so nothing runs for a moment. This is still no new cluster whose first
// leader waits for nodes to join.
func TestHandOverOfEverythingWaitsForNobody(t *testing.T) {
	t.Parallel()
	a := advert("acme:work", 1)
	c := newCluster(t, 1, a)
	c.until(10*time.Second, "the unit runs", func() bool { return c.total() == 1 })
	for _, name := range []string{"late", "later"} {
		c.join(name, a)
	}
	c.run(20 * time.Second)
	old := c.leader()
	old.stop()
	took := c.until(10*time.Second, "the unit runs elsewhere", func() bool { return len(old.running) == 0 && c.total() == 1 })
	if took >= lease.Fast().SettleWindow {
		t.Errorf("the unit ran elsewhere after %v\n%s", took, c.dump())
	}
}

// TestPausedStopEndsItsRuns pauses a process while it stops, until the time for the stop is over. The process
// still gives its runs the time of a cancelled run before it reports that it has stopped.
func TestPausedStopEndsItsRuns(t *testing.T) {
	t.Parallel()
	c := settled(t, 3)
	p := c.nodes[0]
	if p == c.leader() {
		p = c.nodes[1]
	}
	for u := range p.running {
		p.stuck[u], p.slow[u] = true, true
	}
	x := lease.Fast()
	// No node receives its leave, and that becomes known late.
	p.cut, c.latency = true, 5*time.Minute
	p.step(member.Stop{})
	p.cut, c.latency = false, time.Millisecond
	p.paused = true
	c.run(x.LeaderStopTimeout + x.DrainTimeout + x.StopTimeout + x.QueryTimeout)
	p.paused = false
	took := c.until(x.StopTimeout+2*x.QueryTimeout+time.Second, "it has stopped", func() bool { return p.stopped })
	if took < x.StopTimeout || !p.logged("abandon") {
		t.Errorf("it stopped after %v, before its runs had %v to end\n%s", took, x.StopTimeout, c.dump())
	}
}

// A process that was paused while its runs drained cancels them late, and gives them their time.
func TestPausedDrainEndsItsRuns(t *testing.T) {
	t.Parallel()
	c := settled(t, 3)
	p := c.nodes[0]
	if p == c.leader() {
		p = c.nodes[1]
	}
	for u := range p.running {
		p.stuck[u], p.slow[u] = true, true
	}
	x := lease.Fast()
	p.step(member.Stop{})
	c.until(x.QueryTimeout, "its runs drain", func() bool { return p.logged("drain") })
	p.paused = true
	c.run(x.DrainTimeout + x.StopTimeout + x.QueryTimeout)
	p.paused = false
	took := c.until(x.StopTimeout+2*x.QueryTimeout+time.Second, "it has stopped", func() bool { return p.stopped })
	if took < x.StopTimeout || !p.logged("abandon") {
		t.Errorf("it stopped after %v, before its runs had %v to end\n%s", took, x.StopTimeout, c.dump())
	}
}
