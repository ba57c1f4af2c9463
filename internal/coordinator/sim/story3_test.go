package sim

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/internal/coordinator/lease"
	"github.com/emitd/emitd/node"
	"github.com/emitd/emitd/storage"
)

// A run is resumed, the reply is lost, and the store fails over to an earlier copy. If the node
// repeated the report without reading again, the new store would give out a generation that the old
// one has already given out (checked by I3).
func TestStoryResumeWhoseReplyIsLostInAFailover(t *testing.T) {
	t.Parallel()
	profiles(t, func(t *testing.T, timing lease.Timing) {
		s := onStage(t, Config{Nodes: 3, Timing: timing}).begin()
		s.server.down, s.server.quick = true, true
		s.restartBound("outage")
		s.pass(timing.NodeRegistrationTTL)
		if s.allRun() {
			t.Fatal("something runs without the store")
		}
		s.saveImage()
		lost := false
		s.loseReply = func(c *call) bool {
			if lost || c.req.Report == nil || !resumes(c.req.Report) {
				return false
			}
			lost = true
			s.after(timing.QueryTimeout/2, s.failover)
			return true
		}
		s.server.down = false
		s.restartBound("outage ended")
		s.pass(s.bound() + timing.QueryTimeout)
		if !lost || s.server.failovers != 1 {
			t.Fatal("nothing was resumed")
		}
		s.pass(s.bound())
		if !s.allRun() || !s.check.settled {
			t.Fatalf("not all is well again\n%s", lastLines(s.world, 40))
		}
	})
}

// A report and a commit wait in a pooler while the store fails over to an earlier copy. The new
// store refuses both, whatever its rows are: they were decided from a history that it does not
// have.
func TestStoryWritesWaitInAPoolerDuringAFailover(t *testing.T) {
	t.Parallel()
	profiles(t, func(t *testing.T, timing lease.Timing) {
		s := onStage(t, Config{Nodes: 3, Timing: timing}).begin()
		s.saveImage()
		var report, commit *call
		s.loseReply = func(c *call) bool {
			late := *c
			switch {
			case c.req.Report != nil:
				report = &late
			case c.req.Commit != nil && len(c.req.Commit.Changes) > 0:
				commit = &late
			}
			return false
		}
		s.follower().kill()
		s.within(s.bound(), "its units are given away and acknowledged", func() bool { return report != nil && commit != nil })
		s.failover()
		for _, late := range []*call{report, commit} {
			if s.apply(late); !errors.Is(late.result.Err, storage.ErrStoreChanged) {
				t.Errorf("the new store answers %v", late)
			}
		}
		s.restartBound("failover")
		s.pass(s.bound() + timing.NodeRegistrationTTL)
		if !s.allRun() {
			t.Fatalf("not all runs again\n%s", lastLines(s.world, 40))
		}
	})
}

func resumes(r *storage.Report) bool {
	return slices.ContainsFunc(r.Units, func(u storage.UnitReport) bool { return u.Step == daemon.Resume })
}

// A commit that declares a node late or deaf arrives a second time when the node has long been
// well. It must not change the present state (checked by I5 and I6).
func TestStoryDecisionComesTwice(t *testing.T) {
	t.Parallel()
	profiles(t, func(t *testing.T, timing lease.Timing) {
		s := onStage(t, Config{Nodes: 3, Timing: timing}).begin()
		p := s.follower()
		kept := map[node.State]*call{}
		s.loseReply = func(c *call) bool {
			if c.req.Commit != nil {
				for _, n := range c.req.Commit.Nodes {
					again := *c
					again.repeat, kept[n.State] = true, &again
				}
			}
			return false
		}
		p.host.cutOff = true
		s.restartBound("cut")
		s.within(2*timing.Late(), "it is late", func() bool { return kept[node.Late] != nil })
		p.host.cutOff, p.host.deaf = false, true
		s.within(2*timing.NodeRegistrationTTL, "it is deaf", func() bool { return kept[node.Deaf] != nil })
		p.host.deaf = false
		s.restartBound("it is well")
		s.pass(s.bound() + time.Second)
		for _, state := range []node.State{node.Late, node.Deaf} {
			s.apply(kept[state])
			s.pass(timing.QueryTimeout)
		}
	})
}

// A single node with a fixed ID is killed, and the store's clock is set back an hour. The heartbeat
// of the dead process is in the future, and there is no leader to remove its row.
func TestStoryClockSetBackBehindADeadTwin(t *testing.T) {
	t.Parallel()
	profiles(t, func(t *testing.T, timing lease.Timing) {
		s := onStage(t, Config{Nodes: 1, Timing: timing}).begin()
		p := s.leader()
		p.kill()
		s.server.clock.stepped -= time.Hour
		again := s.startAs(p.host, node.Identity{Name: p.who.Name, ID: p.who.ID, Incarnation: incarnation(len(s.procs))})
		s.within(s.bound(), "it runs everything", func() bool { return s.leader() == again && s.allRun() })
	})
}

// A node advertises less for a while and then everything again. A second process of its name began
// with less. Once both advertise the same, everything runs.
func TestStoryDeployWithATwin(t *testing.T) {
	t.Parallel()
	s := onStage(t, Config{Nodes: 3}).begin()
	h := s.follower().host
	less := h.full
	less.Specs = slices.Clone(less.Specs)
	less.Specs[0].Instances--
	s.restartBound("deploy")
	h.advertise(less)
	s.pass(s.t.HeartbeatInterval)
	s.start(h)
	s.pass(s.t.HeartbeatInterval)
	h.advertise(h.full)
	s.restartBound("all again")
	s.pass(s.bound() + time.Second)
	if !s.allRun() || !s.check.settled {
		t.Fatalf("not all runs\n%s", lastLines(s.world, 40))
	}
}

// The limit of what numbers can promise: a failover loses the newest term, the store's clock is
// before it, and every process that saw the term has ended. The next term's number is below the
// lost one. Everything else holds.
func TestStoryNewestTermIsForgotten(t *testing.T) {
	t.Parallel()
	profiles(t, func(t *testing.T, timing lease.Timing) {
		for _, seen := range []bool{false, true} {
			s := onStage(t, Config{Nodes: 2, Timing: timing}).begin()
			observer := s.start(s.hosts[0]) // a second process there, which receives every term
			observer.host.twin = nil
			s.pass(timing.HeartbeatInterval)
			s.saveImage()
			first := s.leader()
			first.kill()
			s.within(2*timing.LeaseDuration, "another leads", func() bool { return s.leader() != nil })
			lost := s.check.model.term
			if seen {
				s.pass(2 * timing.HeartbeatInterval)
			}
			s.leader().kill()
			if !seen {
				observer.kill()
			}
			s.failover()
			s.server.clock.stepped -= time.Hour
			for _, h := range s.hosts {
				if h.proc.state == dead {
					s.start(h)
				}
			}
			s.pass(s.bound() + time.Second)
			if forgotten := s.check.model.term < lost; forgotten == seen {
				t.Errorf("somebody saw the lost term: %v; the next number is lower: %v", seen, forgotten)
			}
		}
	})
}
