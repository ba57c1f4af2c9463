package member_test

import (
	"context"
	"errors"
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

// settled returns a cluster in which everything has been running for a while.
func settled(t *testing.T, n int) *cluster {
	t.Helper()
	c := newCluster(t, n)
	c.until(10*time.Second, "six units run", func() bool { return c.total() == 6 })
	c.run(20 * time.Second)
	return c
}

func (c *cluster) snapshot() *daemon.Snapshot {
	s, err := c.store.Snapshot(context.Background())
	if err != nil {
		c.t.Fatal(err)
	}
	return s
}

func (p *peer) logged(text string) bool {
	return slices.ContainsFunc(p.log, func(l string) bool { return strings.Contains(l, text) })
}

func (p *peer) mustLog(text string) {
	p.c.t.Helper()
	if !p.logged(text) {
		p.c.t.Errorf("%s never said %q\n%s", p.id.Name, text, p.c.dump())
	}
}

func TestPausedLeaderWritesNothingOfItsOldTerm(t *testing.T) {
	t.Parallel()
	c := settled(t, 3)
	old, held := c.leader(), c.snapshot().Term.Number
	old.paused = true
	c.run(30 * time.Second)
	term := c.snapshot().Term
	if term.Leader == old.id {
		t.Fatal("nobody took over")
	}
	head := c.snapshot().Head
	calls := len(old.calls)
	old.paused = false
	c.run(time.Millisecond)
	old.step(member.Tick{})
	if old.leading {
		t.Fatal("it resumed and still believes in itself")
	}
	c.run(100 * time.Millisecond)
	for _, call := range old.calls[calls:] {
		if call.Commit != nil {
			t.Errorf("it committed after its pause: %+v", call.Commit)
		}
		if call.Heartbeat != nil && call.Heartbeat.TermRequest.Renew == held {
			t.Error("it tried to renew a term whose trust was over by its own clock")
		}
	}
	for _, e := range mustEvents(c, head) {
		if e.Term != 0 && e.Term < term.Number && e.Kind != daemon.AssignmentActive {
			t.Errorf("an event of the old term: %+v", e)
		}
	}
}

// Validity that has ended by the node's own clock is never renewed, although no node has taken the
// term and the store would still renew it. The node's next term is a new one.
func TestTrustThatIsOverIsNotRenewed(t *testing.T) {
	t.Parallel()
	c := settled(t, 1)
	l, first, renewals := c.leader(), c.snapshot().Term, c.snapshot().Lease.Renewals
	c.until(2*time.Second, "a renewal", func() bool { return c.snapshot().Lease.Renewals > renewals })
	l.paused = true
	c.run(lease.Fast().ValidFor(lease.Fast().LeaseDuration) + 50*time.Millisecond)
	if !c.snapshot().Lease.ExpiresAt.After(c.snapshot().Now) {
		t.Fatal("the store calls the lease expired: the test shows nothing")
	}
	calls := len(l.calls)
	l.paused = false
	c.run(20 * time.Second)
	for _, call := range l.calls[calls:] {
		if call.Heartbeat != nil && call.Heartbeat.TermRequest.Renew == first.Number {
			t.Errorf("it renewed the term %d\n%s", first.Ordinal, c.dump())
		}
	}
	l.mustLog("lost 1: trust_lost")
	l.mustLog("elected 2")
	if now := c.snapshot().Term; now.Ordinal != 2 || now.Number <= first.Number || !l.leading {
		t.Errorf("the term is %+v after %+v, leading %v", now, first, l.leading)
	}
}

// The store shows a leader a newer term of its own, from elections whose replies it never received.
// The older term ends, and is published as lost before anything else. Nothing gives up the newer
// one.
func TestNewerTermOfItsOwn(t *testing.T) {
	t.Parallel()
	c := settled(t, 2)
	l, first := c.leader(), c.snapshot().Term
	l.forge = func(r *storage.Reply) {
		r.Term.Number, l.forge = r.Term.Number+1000, nil
	}
	calls := len(l.calls)
	c.until(2*time.Second, "it loses the older term", func() bool { return l.logged("lost 1: replaced") })
	c.run(20 * time.Second)
	l.mustLog("elected 2")
	for _, call := range l.calls[calls:] {
		if call.Leave != nil {
			t.Errorf("it gave up a term: %+v", call.Leave)
		}
	}
	if now := c.snapshot().Term; c.leader() != l || now.Leader != l.id || now.Vacant || now.Number <= first.Number+1000 {
		t.Errorf("the term is %+v after %+v, leading %v\n%s", now, first, l.leading, c.dump())
	}
}

func mustEvents(c *cluster, after int64) []daemon.Event {
	page, err := c.store.Events(context.Background(), after, 10_000)
	if err != nil {
		c.t.Fatal(err)
	}
	return page.Events
}

func TestStoreDownForAll(t *testing.T) {
	t.Parallel()
	c := settled(t, 3)
	before := c.spread()
	for _, p := range c.nodes {
		p.cut = true
	}
	c.run(5 * time.Minute)
	if c.total() != 0 || c.leader() != nil {
		t.Fatalf("without a store %v still run, leader %v", c.spread(), c.leader())
	}
	head := c.snapshot().Head
	for _, p := range c.nodes {
		p.cut = false
	}
	c.until(2*1100*time.Millisecond+2*time.Second, "everything runs again", func() bool { return c.total() == 6 && c.leader() != nil })
	c.run(20 * time.Second)
	if got := c.spread(); !slices.Equal(got, before) {
		t.Errorf("spread %v, before the outage %v: units moved", got, before)
	}
	for _, e := range mustEvents(c, head) {
		if e.Kind == daemon.NodeRemoved || e.Kind == daemon.AssignmentAssigned {
			t.Errorf("after the outage: %s %s %v %s", e.Kind, e.Node, e.Unit, e.Reason)
			t.Log(c.dump())
		}
	}
}

// TestEveryReplyLostOnce loses the reply of the first call of each kind, on every node: the call
// was applied, but the node does not know.
func TestEveryReplyLostOnce(t *testing.T) {
	t.Parallel()
	for kind, is := range map[string]func(member.Call) bool{
		"heartbeat": func(c member.Call) bool { return c.Heartbeat != nil },
		"election":  func(c member.Call) bool { return c.Heartbeat != nil && c.Heartbeat.TermRequest.Campaign },
		"renewal":   func(c member.Call) bool { return c.Heartbeat != nil && c.Heartbeat.TermRequest.Renew != 0 },
		"report":    func(c member.Call) bool { return c.Report != nil },
		"snapshot":  func(c member.Call) bool { return c.Snapshot },
		"commit":    func(c member.Call) bool { return c.Commit != nil },
	} {
		c := newCluster(t, 3)
		for _, p := range c.nodes {
			done := false
			p.loseOne = func(call member.Call) bool {
				lose := !done && is(call)
				done = done || lose
				return lose
			}
		}
		c.until(15*time.Second, kind+": six units run", func() bool { return c.total() == 6 && c.leader() != nil })
		c.run(20 * time.Second)
		if c.total() != 6 || c.leader() == nil {
			t.Errorf("%s: %v run\n%s", kind, c.spread(), c.dump())
		}
	}
}

func TestLostReplyOfResignation(t *testing.T) {
	t.Parallel()
	c := settled(t, 3)
	l, lost := c.leader(), false
	l.loseOne = func(call member.Call) bool {
		lose := call.Leave != nil && !lost
		lost = lost || lose
		return lose
	}
	l.step(member.Resign{Reason: node.Resigned})
	c.until(2*time.Second, "another leader", func() bool { return c.leader() != nil && c.leader() != l })
	c.run(10 * time.Second)
	if got := c.snapshot().Term.Ordinal; got != 2 {
		t.Errorf("the second term is number %d: the repeated resignation took it away", got)
	}
}

func TestDeafNodeGivesUpItsUnits(t *testing.T) {
	t.Parallel()
	c := settled(t, 3)
	p := c.nodes[1]
	if p == c.leader() {
		p = c.nodes[2]
	}
	p.deaf = true
	x := lease.Fast()
	bound := x.NodeRegistrationTTL + x.ForceAfter(x.DrainTimeout) + x.HeartbeatInterval
	c.until(bound, "its units run elsewhere", func() bool { return len(p.running) == 0 && c.total() == 6 })
	if s := c.snapshot(); !slices.ContainsFunc(s.Nodes, func(m node.Member) bool {
		return m.Incarnation == p.id.Incarnation && m.LeaderState == node.Deaf
	}) {
		t.Error("its row does not call it deaf")
	}
	p.deaf = false
	c.run(20 * time.Second)
	for _, m := range c.snapshot().Nodes {
		if m.LeaderState != "" {
			t.Errorf("%s is still called %s", m.Name, m.LeaderState)
		}
	}
}

func TestDeafLeaderDoesNotHoldTheTermForEver(t *testing.T) {
	t.Parallel()
	c := settled(t, 3)
	l := c.leader()
	l.deaf = true
	c.until(2*5*time.Second+time.Second, "another leader", func() bool { return c.leader() != nil && c.leader() != l })
}

func TestDrainDeadlineCancelsThenAbandons(t *testing.T) {
	t.Parallel()
	c := settled(t, 3)
	p := c.leader()
	for u := range p.running {
		p.slow[u], p.stuck[u] = true, true
	}
	p.stop()
	c.until(30*time.Second, "it stops whatever its agents do", func() bool { return p.stopped })
	p.mustLog("cancel")
	p.mustLog("drain deadline")
	p.mustLog("abandon")
	clear(p.running) // its process ends
	c.until(10*time.Second, "its units run elsewhere", func() bool { return c.total() == 6 })
}

func TestStopWithoutAStoreIsBounded(t *testing.T) {
	t.Parallel()
	c := settled(t, 3)
	p := c.leader()
	p.cut = true
	p.stop()
	x := lease.Fast()
	c.until(x.LeaderStopTimeout+x.DrainTimeout+x.StopTimeout+2*x.QueryTimeout, "it stops", func() bool { return p.stopped })
}

func TestStopBeforeTheFirstAnswer(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1)
	c.nodes[0].cut = true
	c.run(3 * time.Second)
	c.nodes[0].stop()
	c.until(2*time.Second, "it stops", func() bool { return c.nodes[0].stopped })
}

func TestAgentThatFailsOnOneNode(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3)
	c.nodes[1].fails = true
	c.until(15*time.Second, "the other nodes run everything", func() bool { return c.total() == 6 })
	if len(c.nodes[1].running) != 0 {
		t.Error("it runs where it fails")
	}
	c.nodes[1].mustLog("boom")
}

func TestAgentThatFailsEverywhereIsHeldBack(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 2)
	for _, p := range c.nodes {
		p.fails = true
	}
	c.run(time.Minute)
	starts := 0
	for _, p := range c.nodes {
		for _, l := range p.log {
			if strings.Contains(l, " start ") {
				starts++
			}
		}
	}
	if starts == 0 || starts > 6*2*8 {
		t.Errorf("%d starts of 6 units in a minute, want few: each embargo doubles", starts)
	}
	c.leader().mustLog("unplaced")
}

func TestRowOfALiveNodeRemoved(t *testing.T) {
	t.Parallel()
	c := settled(t, 3)
	p := c.nodes[1]
	if p == c.leader() {
		p = c.nodes[2]
	}
	held := fmt.Sprint(p.running)
	s := c.snapshot()
	var seq uint64
	for _, m := range s.Nodes {
		if m.Incarnation == p.id.Incarnation {
			seq = m.Seq
		}
	}
	_, err := c.store.Commit(context.Background(), storage.Commit{Term: s.Term.Ref(), Nodes: []storage.NodeChange{
		{Guard: storage.NodeVersion{Incarnation: p.id.Incarnation, Seq: seq}, State: node.Removed, Reason: "by mistake"},
	}})
	if err != nil {
		t.Fatal(err)
	}
	p.step(member.WakeUp{})
	c.run(10 * time.Second)
	if c.total() != 6 {
		t.Errorf("%v run\n%s", c.spread(), c.dump())
	}
	t.Logf("held before %s, after %v", held, p.running)
}

func TestStepsOfTheStoresClockChangeNoLeader(t *testing.T) {
	t.Parallel()
	c := settled(t, 3)
	term := c.snapshot().Term.Number
	for range 60 {
		c.skew += 3 * time.Second
		c.run(500 * time.Millisecond)
	}
	c.skew += time.Hour
	c.run(20 * time.Second)
	c.skew -= time.Hour
	c.run(20 * time.Second)
	if got := c.snapshot().Term; got.Number != term || c.total() != 6 {
		t.Errorf("term %d became %d, %v run\n%s", term, got.Number, c.spread(), c.dump())
	}
	c.leader().kill()
	lead := c.until(5*time.Second+1100*time.Millisecond+250*time.Millisecond, "a new leader", func() bool { return c.leader() != nil })
	c.until(7500*time.Millisecond-lead+1100*time.Millisecond, "everything runs", func() bool { return c.total() == 6 })
}

func TestBackwardStepThenLeaderDies(t *testing.T) {
	t.Parallel()
	c := settled(t, 3)
	c.skew -= time.Hour
	c.run(100 * time.Millisecond)
	c.leader().kill()
	c.until(5*time.Second+1100*time.Millisecond+500*time.Millisecond, "a new leader", func() bool { return c.leader() != nil })
	c.until(9*time.Second, "everything runs", func() bool { return c.total() == 6 })
}

func TestStoreRollback(t *testing.T) {
	t.Parallel()
	c := settled(t, 3)
	image := c.store.Clone()
	old := c.snapshot()
	c.leader().stop()
	c.run(5 * time.Second)
	newest := c.snapshot().Term
	c.store.Restore(image)
	c.store.SetStoreID("another")
	numbers := map[int64]bool{old.Term.Number: true, newest.Number: true}
	c.run(3 * time.Second)
	c.until(30*time.Second, "a leader and everything runs", func() bool { return c.leader() != nil && c.total() == 6 })
	if n := c.snapshot().Term.Number; numbers[n] || n < old.Term.Number {
		t.Errorf("term number %d repeats or goes back", n)
	}
	for _, p := range c.nodes[1:] {
		if !p.dead && !p.logged("store changed") {
			t.Errorf("%s did not notice the other store", p.id.Name)
		}
	}
}

func TestResignerStandsBack(t *testing.T) {
	t.Parallel()
	for range 5 {
		c := settled(t, 3)
		l := c.leader()
		l.step(member.Resign{Reason: node.Resigned})
		took := c.until(time.Second, "another leader", func() bool { return c.leader() != nil })
		if c.leader() == l {
			t.Error("the resigner re-elected itself")
		}
		t.Logf("another leader after %v", took)
	}
}

func TestResignerAloneLeadsAgainAfterItsCooldown(t *testing.T) {
	t.Parallel()
	c := settled(t, 1)
	l := c.leader()
	l.step(member.Resign{Reason: node.Resigned, Cooldown: 10 * time.Second})
	c.run(9 * time.Second)
	if l.leading {
		t.Error("it leads again within its cooldown")
	}
	c.until(3*time.Second, "it leads again", func() bool { return l.leading })
}

func TestWakeUpStormMovesNoDeadline(t *testing.T) {
	t.Parallel()
	c := settled(t, 3)
	term := c.snapshot().Term.Number
	for range 3000 { // every 10 ms for 30 s
		for _, p := range c.nodes {
			p.step(member.WakeUp{})
		}
		c.run(10 * time.Millisecond)
	}
	if got := c.snapshot().Term.Number; got != term {
		t.Errorf("the leader changed under a storm of wake-ups\n%s", c.dump())
	}
	l := c.leader()
	l.cut = true
	began := c.now
	for l.leading {
		l.step(member.WakeUp{})
		c.run(10 * time.Millisecond)
		if c.now.Sub(began) > 5*time.Second {
			t.Fatal("wake-ups kept a leader in trust that no store answers")
		}
	}
}

func TestFailedPassesResign(t *testing.T) {
	t.Parallel()
	c := settled(t, 3)
	l := c.leader()
	l.loseOne = func(call member.Call) bool { return call.Snapshot }
	c.until(10*time.Second, "another leader", func() bool { return c.leader() != nil && c.leader() != l })
	l.mustLog("passes_failed")
}

func TestTwoProcessesWithOneID(t *testing.T) {
	t.Parallel()
	c := settled(t, 2)
	twin := c.join("n0", advert("acme:work", 6))
	c.until(5*time.Second, "the twin ends", func() bool { return twin.stopped })
	twin.mustLog("id in use")
	if !errors.Is(twin.ended, storage.ErrIDInUse) {
		t.Errorf("the twin ends with %v, want that its id is in use", twin.ended)
	}
	if len(twin.running) != 0 || c.total() != 6 {
		t.Errorf("the twin runs %v, all run %v", twin.running, c.spread())
	}
	if c.nodes[0].stopped || c.nodes[1].stopped {
		t.Error("it took another with it")
	}
}

// A process with a fixed ID that is restarted at once finds its own earlier row. It must not end
// because of the row, nor because of a late heartbeat of its earlier incarnation.
func TestRestartWithOneID(t *testing.T) {
	t.Parallel()
	c := settled(t, 2)
	old := c.nodes[0]
	last := storage.Heartbeat{Node: old.id, Seq: 1 << 40}
	old.kill()
	again := c.join("n0", advert("acme:work", 6))
	c.until(2*time.Second, "it is refused", func() bool { return again.logged("id in use") })
	if _, err := c.store.Heartbeat(context.Background(), last); err != nil {
		t.Fatal(err)
	}
	c.until(15*time.Second, "it is let in", func() bool { return len(again.running) > 0 })
}

// A member's row was removed, and another process has taken its ID since. The member ends its runs
// before it ends.
func TestMemberWhoseIDWasTaken(t *testing.T) {
	t.Parallel()
	c := settled(t, 2)
	old := c.nodes[0]
	old.cut = true
	c.until(15*time.Second, "it is taken for dead", func() bool {
		for _, m := range c.snapshot().Nodes {
			if m.Incarnation == old.id.Incarnation {
				return !m.Present()
			}
		}
		return false
	})
	c.join("n0", advert("acme:work", 6))
	c.run(3 * time.Second)
	old.cut = false
	c.until(15*time.Second, "it ends", func() bool { return old.stopped })
	if !errors.Is(old.ended, storage.ErrIDInUse) || len(old.running) != 0 {
		t.Errorf("it ends with %v and runs %v", old.ended, old.running)
	}
	c.until(15*time.Second, "everything runs", func() bool { return c.total() == 6 })
}

func TestTenNodesFortyDaemons(t *testing.T) {
	t.Parallel()
	a := advert("acme:d0", 1)
	for i := 1; i < 40; i++ {
		b := advert(daemon.ID(fmt.Sprintf("acme:d%d", i)), 1)
		a.Kinds, a.Specs = append(a.Kinds, b.Kinds...), append(a.Specs, b.Specs...)
	}
	c := newCluster(t, 10, a)
	c.until(10*time.Second, "forty daemons run", func() bool { return c.total() == 40 })
	for i, n := range c.spread() {
		if n != 4 {
			t.Errorf("node %d runs %d, want 4", i, n)
		}
	}
}

func TestNodesThatNeverLeadOrRunNothing(t *testing.T) {
	t.Parallel()
	follower, plain, idle := advert("acme:work", 6), advert("acme:work", 6), advert("acme:work", 6)
	follower.Traits.NeverLead, idle.Traits.NoDaemons = true, true
	c := newCluster(t, 3, follower, plain, idle)
	c.until(10*time.Second, "six units run", func() bool { return c.total() == 6 })
	if c.nodes[0].leading || len(c.nodes[2].running) != 0 {
		t.Errorf("leading %v, spread %v", c.nodes[0].leading, c.spread())
	}
	for _, p := range c.nodes[1:] {
		p.kill()
	}
	c.run(30 * time.Second)
	if c.leader() != nil {
		t.Error("a node that never leads leads")
	}
}

func TestPausedNodeStopsItselfBeforeOthersTakeOver(t *testing.T) {
	t.Parallel()
	c := settled(t, 3)
	p := c.nodes[1]
	if p == c.leader() {
		p = c.nodes[2]
	}
	p.cut = true // a partition: the run goes on, and must end before another node takes over
	for range 800 {
		c.run(10 * time.Millisecond)
		held := map[daemon.Unit]string{}
		for _, q := range c.nodes {
			for u := range q.running {
				if other, ok := held[u]; ok {
					t.Fatalf("%v runs on %s and %s\n%s", u, other, q.id.Name, c.dump())
				}
				held[u] = q.id.Name
			}
		}
	}
	if c.total() != 6 || len(p.running) != 0 {
		t.Errorf("%v run", c.spread())
	}
}

func TestSingleNodeReportsWhyNothingCanRun(t *testing.T) {
	t.Parallel()
	a := advert("acme:gpu", 1)
	a.Specs[0].Requires = map[string]string{"gpu": "yes"}
	c := newCluster(t, 1, a)
	c.run(10 * time.Second)
	c.nodes[0].mustLog("unplaced acme:gpu/0")
}

func TestWithoutWakeUps(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3)
	c.wakes = false
	c.until(15*time.Second, "six units run", func() bool { return c.total() == 6 })
	c.run(20 * time.Second)
	c.leader().kill()
	c.until(7500*time.Millisecond+2*1600*time.Millisecond, "six units run again", func() bool { return c.total() == 6 })
}

// A run that ends because the store did not stamp its fence in time is given back without a failure: the store is too slow
// for every daemon, and no daemon is sick because of it.
func TestFenceThatIsNotStampedIsNoFailure(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 2)
	c.nodes[0].noFence = storage.ErrUnavailable
	c.until(time.Minute, "the other node runs everything", func() bool { return len(c.nodes[1].running) == 6 })
	refused := 0
	for _, e := range mustEvents(c, 0) {
		if strings.HasPrefix(e.Reason, "fence could not be stamped: store unavailable") {
			refused++
		}
		if e.Kind == daemon.AssignmentFailed {
			t.Errorf("%s failed: %s", e.Unit, e.Reason)
		}
	}
	for _, r := range c.snapshot().Units {
		if r.Failures != 0 || r.Error != "" {
			t.Errorf("%s has %d failures, the last %q", r.Unit, r.Failures, r.Error)
		}
	}
	if refused == 0 {
		t.Error("no start was refused")
	}
}
