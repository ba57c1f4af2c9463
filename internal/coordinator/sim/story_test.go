package sim

import (
	"testing"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/internal/coordinator/lease"
	"github.com/emitd/emitd/internal/coordinator/member"
	"github.com/emitd/emitd/node"
)

// Each story is a scenario in which other coordinators failed. The invariants are checked after
// every step of every story. The story itself checks only what is special about it.

// stage is a world of plain machines: equal capacity, and each may lead and run anything.
type stage struct {
	*testing.T
	*world
}

// onStage sets up a calm cluster that has not started yet.
func onStage(t *testing.T, cfg Config) *stage {
	t.Helper()
	if cfg.Seed == 0 {
		cfg.Seed = 1
	}
	if cfg.Work == nil {
		cfg.Work = []Work{plain("acme:a", 6)}
	}
	w := newWorld(cfg)
	w.calm = true
	for _, h := range w.hosts {
		h.advert.Traits = node.Traits{Capacity: 1}
		h.advert.Kinds = nil
		for _, k := range w.works {
			h.advert.Kinds = append(h.advert.Kinds, k.Spec.WithDefaults().Kind)
		}
		h.full = h.advert
	}
	return &stage{t, w}
}

// plain is a well-behaved daemon.
func plain(id daemon.ID, instances int) Work {
	return Work{
		Spec: daemon.Spec{ID: id, Instances: instances}, FailsOn: -1,
		Drain: Span{0, 100 * time.Millisecond}, Cancel: Span{0, 100 * time.Millisecond},
	}
}

// begin starts all machines and waits until the cluster is well.
func (s *stage) begin() *stage {
	s.Helper()
	s.boot()
	s.pass(s.bound() + 4*time.Second) // they start within three seconds
	if !s.check.settled {
		s.Fatal("the cluster did not settle")
	}
	return s
}

// pass lets time pass. A broken promise ends the test.
func (s *stage) pass(d time.Duration) {
	s.Helper()
	if err := s.runFor(d); err != nil {
		s.Fatal(err)
	}
}

// within fails unless the condition comes to hold in time. It returns how long that took.
func (s *stage) within(d time.Duration, what string, cond func() bool) time.Duration {
	s.Helper()
	from := s.now
	if !s.runTill(d, cond) {
		if s.fail != nil {
			s.Fatal(s.fail)
		}
		s.Fatalf("not within %v: %s\n%s", d, what, lastLines(s.world, 40))
	}
	return s.now - from
}

// leader returns the process that leads now, or nil.
func (s *stage) leader() *process {
	if len(s.check.leaderTerms) == 0 {
		return nil
	}
	return s.check.leaderTerms[0].p
}

// follower returns a live process that does not lead.
func (s *stage) follower() *process {
	for _, h := range s.hosts {
		if h.proc.state == running && !h.proc.watch.leading {
			return h.proc
		}
	}
	s.Fatal("there is no follower")
	return nil
}

// where returns the process on which each unit runs; nil if it runs nowhere.
func (s *stage) where() []*process {
	out := make([]*process, len(s.units))
	for i, u := range s.units {
		if len(u.live) > 0 {
			out[i] = u.live[len(u.live)-1].p
		}
	}
	return out
}

// allRun reports whether every unit runs on a process that is alive.
func (s *stage) allRun() bool {
	for _, p := range s.where() {
		if p == nil || p.state != running {
			return false
		}
	}
	return true
}

func (s *stage) elections() uint64 { return s.stats.Elections }

func lastLines(w *world, n int) string {
	lines, out := w.trace.lines(), ""
	for _, l := range lines[max(0, len(lines)-n):] {
		out += l + "\n"
	}
	return out
}

// profiles runs a story with each profile.
func profiles(t *testing.T, story func(t *testing.T, timing lease.Timing)) {
	t.Helper()
	for _, name := range lease.Profiles() {
		timing, _ := lease.OfProfile(name)
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			story(t, timing)
		})
	}
}

// Scenario 1: a leader that was paused beyond its lease notices at once that it has lost, and none
// of its writes is accepted (checked by I1 and I2).
func TestStoryLeaderPausedBeyondItsLease(t *testing.T) {
	t.Parallel()
	profiles(t, func(t *testing.T, timing lease.Timing) {
		s := onStage(t, Config{Nodes: 3, Timing: timing}).begin()
		old := s.leader()
		// Paused with a pass under way, so that its commit is sent after the pause.
		old.pauseIn, old.pauseFor = 1, timing.LeaseDuration*2
		s.within(timing.HeartbeatInterval*2, "the pause begins", func() bool { return old.state == paused })
		s.within(timing.LeaseDuration+300*time.Millisecond, "another leads", func() bool {
			return len(s.check.leaderTerms) == 2
		})
		s.within(timing.LeaseDuration*2, "the pause ends", func() bool { return old.state == running })
		s.within(timing.ClockCheckInterval+100*time.Millisecond, "the old leader publishes Lost", func() bool { return !old.watch.leading })
		s.pass(s.bound() * 2)
		if s.elections() != 2 {
			t.Errorf("%d elections, want 2", s.elections())
		}
	})
}

// Scenario 2: a leader is killed between its commit and the wake-up that follows. What it assigned
// is started once (checked by I3 and A9), without a new assignment.
func TestStoryLeaderKilledBetweenCommitAndWakeUp(t *testing.T) {
	t.Parallel()
	profiles(t, func(t *testing.T, timing lease.Timing) {
		s := onStage(t, Config{Nodes: 3, Timing: timing})
		for _, h := range s.hosts {
			h.advert.Traits.NoDaemons = h.index == 0
			h.advert.Traits.NeverLead = h.index != 0 && h.index != 1
		}
		s.boot()
		s.within(time.Minute, "a leader", func() bool { return s.leader() != nil })
		first := s.leader()
		s.within(timing.SettleWindow+timing.HeartbeatInterval, "units are assigned", func() bool {
			return s.stats.Assignments == 6
		})
		first.kill() // nothing that it sent has reached any node: the wake-ups are in flight
		assigned := s.stats.Assignments
		s.within(timing.HeartbeatInterval*2+timing.QueryTimeout, "the units run elsewhere than on the victim", func() bool {
			n := 0
			for _, p := range s.where() {
				if p != nil {
					n++
				}
			}
			for i := range s.check.model.units {
				if s.check.model.units[i].holder == first.who.Incarnation {
					n++ // its own units: they wait until it is declared dead
				}
			}
			return n == 6
		})
		if s.stats.Assignments != assigned {
			t.Errorf("%d assignments after the kill", s.stats.Assignments-assigned)
		}
	})
}

// Scenario 3: a leader is killed and nothing else changes. The others' units stay where they are,
// and another node leads within the bound.
func TestStoryLeaderKilled(t *testing.T) {
	t.Parallel()
	profiles(t, func(t *testing.T, timing lease.Timing) {
		s := onStage(t, Config{Nodes: 4, Timing: timing}).begin()
		old, before := s.leader(), s.where()
		killed := s.now
		old.kill()
		took := s.within(timing.LeaseDuration+250*time.Millisecond, "another leads", func() bool { return s.leader() != nil })
		grace := timing.LeaseDuration + 250*time.Millisecond + timing.Grace()
		bound := max(timing.NodeRegistrationTTL, grace) + 150*time.Millisecond
		s.within(bound-took, "its units run elsewhere", s.allRun)
		t.Logf("leader after %v (%v allowed), units after %v (%v allowed)", took, timing.LeaseDuration+250*time.Millisecond, s.now-killed, bound)
		s.pass(s.bound())
		for i, p := range s.where() {
			if before[i] != old && p != before[i] {
				t.Errorf("%s moved from p%02d to p%02d", s.units[i].Unit, before[i].index, p.index)
			}
		}
	})
}

// Scenario 4: two processes with one name are two nodes.
func TestStoryTwoProcessesWithOneName(t *testing.T) {
	t.Parallel()
	s := onStage(t, Config{Nodes: 2}).begin()
	twin := s.start(s.hosts[1])
	s.pass(s.bound() + time.Second)
	snap := s.snapshot()
	n := 0
	for _, m := range snap.Nodes {
		if m.Name == twin.who.Name && m.State == node.Live {
			n++
		}
	}
	if n != 2 {
		t.Errorf("%d live members are named %s, want 2", n, twin.who.Name)
	}
}

// Scenario 4: of two processes with one ID the second is refused, disturbs no other node, and ends
// once the first is proven alive. A process that is started after a kill -9 of the first waits for
// a TTL and then joins.
func TestStoryTwoProcessesWithOneID(t *testing.T) {
	t.Parallel()
	s := onStage(t, Config{Nodes: 3}).begin()
	first := s.follower()
	recorded := 0
	s.onNotice = func(p *process, n *member.Notice) {
		if n.Kind == member.IDInUse {
			recorded++
		}
	}
	again := func() *process {
		return s.startAs(first.host, node.Identity{Name: first.who.Name, ID: first.who.ID, Incarnation: incarnation(len(s.procs))})
	}
	twin := again()
	s.within(4*s.t.HeartbeatInterval, "the second process ends", func() bool { return twin.state == dead })
	s.pass(10 * time.Minute)
	if recorded == 0 {
		t.Error("the second process was never told that its ID is in use")
	}
	for _, m := range s.snapshot().Nodes {
		if m.Incarnation == twin.who.Incarnation {
			t.Errorf("the second process is a member: %+v", m)
		}
	}
	if s.elections() != 1 {
		t.Errorf("%d elections, want 1", s.elections())
	}
	first.kill()
	twin = again()
	s.within(3*s.t.NodeRegistrationTTL, "the second process is let in", func() bool {
		for _, m := range s.snapshot().Nodes {
			if m.Incarnation == twin.who.Incarnation && m.State == node.Live {
				return true
			}
		}
		return false
	})
}

// Scenario 5: an agent that is not ready for ten minutes is given up in time, on every node, and
// nothing else is affected.
func TestStoryStartBlocks(t *testing.T) {
	t.Parallel()
	slow := plain("acme:slow", 1)
	slow.Spec.WaitReady = true
	slow.Ready = Span{10 * time.Minute, 11 * time.Minute}
	slow.Returns = time.Hour // flaky: no check requires that it runs
	s := onStage(t, Config{Nodes: 3, Work: []Work{plain("acme:a", 6), slow}}).begin()
	before := s.where()
	s.pass(time.Hour)
	if s.elections() != 1 {
		t.Errorf("%d elections, want 1", s.elections())
	}
	for i, u := range s.units {
		if u.work.Spec.ID == "acme:a" && s.where()[i] != before[i] {
			t.Errorf("%s moved", u.Unit)
		}
	}
	if n := s.check.model.units[s.unitAt[daemon.Unit{Daemon: "acme:slow"}]]; n.state == daemon.Active {
		t.Error("a run that was never ready was acknowledged")
	}
}

// Scenario 5: an agent that drains for ten minutes is cancelled at the drain deadline. The node
// that stops is gone within its bound.
func TestStoryDrainBlocks(t *testing.T) {
	t.Parallel()
	profiles(t, func(t *testing.T, timing lease.Timing) {
		slow := plain("acme:slow", 6)
		slow.Drain = Span{10 * time.Minute, 11 * time.Minute}
		s := onStage(t, Config{Nodes: 3, Timing: timing, Work: []Work{slow}}).begin()
		p := s.follower()
		p.stop()
		s.within(timing.DrainTimeout+timing.StopTimeout, "it stops", func() bool { return p.state == dead })
		s.within(timing.HeartbeatInterval, "its units run elsewhere", s.allRun)
	})
}

// Scenario 6: an agent that fails on one node moves to another and stays there.
func TestStoryAgentFailsOnOneNode(t *testing.T) {
	t.Parallel()
	sick := plain("acme:sick", 3)
	sick.Fails, sick.FailsOn = 2*time.Second, 0
	s := onStage(t, Config{Nodes: 3, Work: []Work{sick}}).begin()
	s.pass(time.Hour)
	for i, p := range s.where() {
		if p == nil || p.host.index == 0 {
			t.Errorf("%s does not run on a healthy node", s.units[i].Unit)
		}
	}
	if s.elections() != 1 {
		t.Errorf("%d elections, want 1", s.elections())
	}
}

// Scenario 6: an agent that fails on every node is tried ever more rarely, and the others run.
func TestStoryAgentFailsOnEveryNode(t *testing.T) {
	t.Parallel()
	sick := plain("acme:sick", 2)
	sick.Fails = time.Second
	s := onStage(t, Config{Nodes: 3, Work: []Work{plain("acme:a", 6), sick}}).begin()
	s.pass(2 * time.Hour)
	// Five failures with doubling pauses take half a minute. The embargo grows to ten minutes.
	if n := s.stats.Assignments; n > 200 {
		t.Errorf("%d assignments in two hours", n)
	}
	for i, u := range s.units {
		if u.work.Spec.ID == "acme:a" && s.where()[i] == nil {
			t.Errorf("%s does not run", u.Unit)
		}
	}
}

// Scenario 7: a node that receives no replies gives up its units by itself. They run elsewhere
// within two TTLs of the last reply that it confirmed, or later if draining may take longer than a
// TTL.
func TestStoryDeafNode(t *testing.T) {
	t.Parallel()
	profiles(t, func(t *testing.T, timing lease.Timing) {
		s := onStage(t, Config{Nodes: 3, Timing: timing}).begin()
		p := s.follower()
		p.host.deaf = true
		s.restartBound("deaf")
		// It confirmed its last reply up to an interval after it became deaf. One TTL later its
		// units are revoked. They are forced when it could have drained them if it had received the
		// revoke.
		bound := timing.Late() + timing.NodeRegistrationTTL + timing.ForceAfter(timing.DrainTimeout) + 100*time.Millisecond
		took := s.within(bound, "its units run elsewhere", func() bool {
			for _, q := range s.where() {
				if q == nil || q == p {
					return false
				}
			}
			return true
		})
		t.Logf("units of a deaf node run elsewhere after %v (%v allowed)", took, bound)
		s.pass(s.bound() + time.Second)
		p.host.deaf = false
		s.restartBound("hears again")
		s.pass(s.bound() * 2)
		if s.elections() != 1 {
			t.Errorf("%d elections, want 1", s.elections())
		}
	})
}

// Scenario 8: the store is away for all nodes for five minutes. Nothing is moved, and everything
// runs again within two intervals.
func TestStoryStoreDownForFiveMinutes(t *testing.T) {
	t.Parallel()
	for _, quickly := range []bool{true, false} {
		profiles(t, func(t *testing.T, timing lease.Timing) {
			s := onStage(t, Config{Nodes: 10, Timing: timing, Work: []Work{plain("acme:a", 15)}}).begin()
			assigned := s.stats.Assignments
			before := s.where()
			s.server.down, s.server.quick = true, quickly
			s.restartBound("outage")
			s.pass(5 * time.Minute)
			for i, p := range s.where() {
				if p != nil {
					t.Errorf("%s still runs on p%02d without trust", s.units[i].Unit, p.index)
				}
			}
			s.server.down = false
			s.restartBound("store is back")
			s.within(2*timing.HeartbeatInterval, "a leader and all units", func() bool { return s.leader() != nil && s.allRun() })
			for i, p := range s.where() {
				if p != before[i] {
					t.Errorf("%s moved", s.units[i].Unit)
				}
			}
			if n := s.stats.Assignments - assigned; n != 15 {
				t.Errorf("%d generations were given, want one resumption each", n)
			}
		})
	}
}

// Scenario 9: every minute all connections are killed, so replies in flight never arrive.
// Leadership does not change and nothing moves.
func TestStoryConnectionsKilledEachMinute(t *testing.T) {
	t.Parallel()
	profiles(t, func(t *testing.T, timing lease.Timing) {
		s := onStage(t, Config{Nodes: 5, Timing: timing}).begin()
		assigned := s.stats.Assignments
		for range 60 {
			s.pass(time.Minute - timing.QueryTimeout/2)
			s.network.loseReply = 1 // calls made now get no reply
			s.calm = false
			s.pass(timing.QueryTimeout / 2)
			s.network.loseReply, s.calm = 0, true
		}
		if s.elections() != 1 || s.stats.Assignments != assigned {
			t.Errorf("%d elections, %d assignments", s.elections(), s.stats.Assignments-assigned)
		}
	})
}

func (s *stage) snapshot() *daemon.Snapshot {
	s.Helper()
	snap, err := s.server.store.Snapshot(s.Context())
	if err != nil {
		s.Fatal(err)
	}
	return snap
}
