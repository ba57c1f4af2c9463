package sim

import (
	"slices"
	"testing"
	"time"

	"github.com/emitd/emitd/internal/coordinator/lease"
	"github.com/emitd/emitd/node"
)

// Scenario 7: agents run on a node whose heartbeats are answered, but make no progress there. Each
// unit is given up, goes to another node and stays, and nothing else moves.
func TestStoryAgentWithoutProgress(t *testing.T) {
	t.Parallel()
	profiles(t, func(t *testing.T, timing lease.Timing) {
		idle := plain("acme:idle", 3)
		idle.Spec.StallTimeout, idle.Spec.MaxFailures = 2*time.Minute, 2
		idle.Stalls, idle.FailsOn = true, 0
		s := onStage(t, Config{Nodes: 3, Timing: timing, Work: []Work{plain("acme:a", 6), idle}}).begin()
		before := s.where()
		idles := func(i int) bool { return s.units[i].Daemon == "acme:idle" }
		found := time.Duration(idle.Spec.MaxFailures)*(idle.Spec.StallTimeout*5/4+timing.StopTimeout) + 2*timing.HeartbeatInterval + 5*time.Second
		took := s.within(found, "nothing is left where nothing is done", func() bool {
			for i, p := range s.where() {
				if idles(i) && (p == nil || p.host.index == 0) {
					return false
				}
			}
			return true
		})
		t.Logf("units without progress run elsewhere after %v (%v allowed)", took, found)
		settled := s.where()
		s.pass(time.Hour)
		for i, p := range s.where() {
			if idles(i) && p != settled[i] || !idles(i) && p != before[i] {
				t.Errorf("%s moved", s.units[i].Unit)
			}
		}
		if s.elections() != 1 {
			t.Errorf("%d elections, want 1", s.elections())
		}
	})
}

// Scenario 7: a leader's renewals are answered, but none of the reads of its passes is. It gives
// its term up after a lease without a pass, and another node assigns what must be assigned.
func TestStoryLeaderWithoutPasses(t *testing.T) {
	t.Parallel()
	profiles(t, func(t *testing.T, timing lease.Timing) {
		s := onStage(t, Config{Nodes: 3, Timing: timing}).begin()
		old := s.leader()
		sick := s.now
		s.loseReply = func(c *call) bool { return c.p == old && c.req.Snapshot }
		s.restartBound("no reads of the leader are answered")
		gone := s.follower()
		gone.kill()
		s.within(timing.LeaseDuration+2*timing.Late()+time.Second, "another leads", func() bool {
			l := s.leader()
			return l != nil && l != old
		})
		t.Logf("another leads after %v", s.now-sick)
		s.within(s.bound(), "the units of a node that was killed run elsewhere", s.allRun)
		if old.state != running {
			t.Error("the node ended that only could not read")
		}
	})
}

// Scenario 10: the wall clock of a node is ten minutes fast or slow, and is set. No leader changes
// and nothing moves. A process that starts under such a clock has an ID older or newer than all
// others, including that of its predecessor. The bounds hold for it as for any other.
func TestStoryWallClockOfANode(t *testing.T) {
	t.Parallel()
	for name, off := range map[string]time.Duration{"fast": 10 * time.Minute, "slow": -10 * time.Minute} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			profiles(t, func(t *testing.T, timing lease.Timing) {
				s := onStage(t, Config{Nodes: 4, Timing: timing}).begin()
				assigned, before := s.stats.Assignments, s.where()
				for range 10 {
					for _, p := range []*process{s.leader(), s.follower()} {
						p.host.wall += off
						s.pass(timing.LeaseDuration)
						p.host.wall = 0
						s.pass(timing.HeartbeatInterval)
					}
				}
				if s.elections() != 1 || s.stats.Assignments != assigned {
					t.Fatalf("%d elections, %d new assignments", s.elections(), s.stats.Assignments-assigned)
				}
				for i, p := range s.where() {
					if p != before[i] {
						t.Errorf("%s moved", s.units[i].Unit)
					}
				}
				for range 3 {
					for _, p := range []*process{s.leader(), s.follower()} {
						s.killedUnderAWrongClock(p, off)
					}
				}
			})
		})
	}
}

// killedUnderAWrongClock kills a process and starts the next one at once, under a wall clock that
// is off. The new process is a member at once, there is a leader within the lease, and all units
// run within a TTL.
func (s *stage) killedUnderAWrongClock(p *process, off time.Duration) {
	s.Helper()
	p.host.wall = off
	killed := s.now
	p.kill()
	again := s.start(p.host)
	s.within(s.t.HeartbeatInterval, "the next process is a member", func() bool {
		return slices.ContainsFunc(s.snapshot().Nodes, func(m node.Member) bool {
			return m.Incarnation == again.who.Incarnation && m.State == node.Live
		})
	})
	s.within(s.t.LeaseDuration+time.Second, "a leader", func() bool { return s.leader() != nil })
	s.within(s.t.NodeRegistrationTTL+2*time.Second-(s.now-killed), "all units run", s.allRun)
	s.pass(s.bound() + time.Second)
	if !s.check.settled {
		s.Fatalf("the cluster did not settle\n%s", lastLines(s.world, 40))
	}
	p.host.wall = 0
}
