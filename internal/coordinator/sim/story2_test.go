package sim

import (
	"fmt"
	"testing"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/internal/coordinator/lease"
	"github.com/emitd/emitd/internal/coordinator/member"
)

// Scenario 10: steps of the store's clock change no leader and move nothing. A node killed meanwhile is replaced
// within a lease and an interval, and its units run again a TTL later.
func TestStoryStoreClockSteps(t *testing.T) {
	t.Parallel()
	patterns := map[string]func(*stage){
		"3 s each half second": func(s *stage) {
			for i := range 60 {
				s.after(time.Duration(i)*500*time.Millisecond, func() { s.server.clock.stepped += 3 * time.Second })
			}
		},
		"an hour on":   func(s *stage) { s.server.clock.stepped += time.Hour },
		"an hour back": func(s *stage) { s.server.clock.stepped -= time.Hour },
	}
	for name, step := range patterns {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			profiles(t, func(t *testing.T, timing lease.Timing) {
				s := onStage(t, Config{Nodes: 5, Timing: timing}).begin()
				assigned := s.stats.Assignments
				step(s)
				s.pass(10 * time.Minute)
				if s.elections() != 1 || s.stats.Assignments != assigned {
					t.Fatalf("%d elections, %d new assignments", s.elections(), s.stats.Assignments-assigned)
				}
				step(s)
				s.pass(timing.HeartbeatInterval / 2)
				s.leader().kill()
				steps := 30 * time.Second
				s.within(steps+timing.LeaseDuration+2*timing.HeartbeatInterval, "another leads", func() bool { return s.leader() != nil })
				s.within(timing.NodeRegistrationTTL+2*timing.HeartbeatInterval, "all units run", s.allRun)
			})
		})
	}
}

// Scenario 12: a node brings a daemon that the leader's version does not know.
func TestStoryNewDaemonUnderAnOldLeader(t *testing.T) {
	t.Parallel()
	s := onStage(t, Config{Nodes: 3}).begin()
	added := plain("acme:new", 2)
	s.declare(&added)
	for _, p := range s.procs {
		p.started = append(p.started, 0, 0)
		p.listings = append(p.listings, listed{}, listed{})
	}
	p := s.follower()
	advert := p.host.advert
	advert.Specs = append(advert.Specs[:len(advert.Specs):len(advert.Specs)], added.Spec)
	advert.Kinds = append(advert.Kinds[:len(advert.Kinds):len(advert.Kinds)], added.Spec.WithDefaults().Kind)
	p.host.advert, p.host.full = advert, advert
	s.restartBound("new daemon")
	p.step(member.Advertise{Advert: advert})
	s.within(2*s.t.HeartbeatInterval+time.Second, "the new daemon runs", func() bool {
		for _, u := range s.units {
			if u.Daemon == "acme:new" && (len(u.live) == 0 || u.live[0].p != p) {
				return false
			}
		}
		return true
	})
	s.pass(time.Hour)
}

// Scenario 13: a leader that runs no daemons leads all the same.
func TestStoryLeaderThatRunsNothing(t *testing.T) {
	t.Parallel()
	s := onStage(t, Config{Nodes: 4})
	for _, h := range s.hosts {
		h.advert.Traits.NoDaemons = h.index == 0
		h.advert.Traits.NeverLead = h.index != 0
	}
	s.begin()
	if p := s.leader(); p == nil || p.host.index != 0 || len(p.runs) != 0 {
		t.Fatal("node-0 should lead and run nothing")
	}
	for i, p := range s.where() {
		if p == nil || p.host.index == 0 {
			t.Errorf("%s does not run where it should", s.units[i].Unit)
		}
	}
}

// Scenario 14: a person deletes the row of a live node. The node registers again and keeps its units, under their
// generations.
func TestStoryRowDeletedUnderALiveNode(t *testing.T) {
	t.Parallel()
	profiles(t, func(t *testing.T, timing lease.Timing) {
		s := onStage(t, Config{Nodes: 3, Timing: timing}).begin()
		for range 20 {
			p := s.follower()
			assigned, before := s.stats.Assignments, s.where()
			s.removeRow(p)
			s.pass(3 * timing.NodeRegistrationTTL)
			if s.stats.Assignments != assigned {
				t.Fatalf("%d generations were given", s.stats.Assignments-assigned)
			}
			for i, q := range s.where() {
				if q != before[i] {
					t.Fatalf("%s moved", s.units[i].Unit)
				}
			}
		}
	})
}

// Scenario 16: ten nodes start together with forty daemons: each gets four.
func TestStoryColdStart(t *testing.T) {
	t.Parallel()
	for seed := range uint64(20) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			var work []Work
			for i := range 40 {
				work = append(work, plain(daemon.ID(fmt.Sprintf("acme:d%02d", i)), 1))
			}
			s := onStage(t, Config{Seed: seed + 1, Nodes: 10, Work: work}).begin()
			n := map[*process]int{}
			for _, p := range s.where() {
				n[p]++
			}
			for p, units := range n {
				if p == nil || units != 4 {
					t.Errorf("%v units on %v", units, p)
				}
			}
			if s.stats.Assignments != 40 {
				t.Errorf("%d assignments, want 40", s.stats.Assignments)
			}
		})
	}
}

// Scenario 17: the reply of any one call is lost, although the call was applied. Nothing is lost or done twice,
// and the cluster is well within the bound.
func TestStoryReplyLostForEveryCall(t *testing.T) {
	t.Parallel()
	for k := 1; k <= 60; k++ {
		s := onStage(t, Config{Nodes: 3, Timing: lease.Fast()})
		n := 0
		s.loseReply = func(*call) bool {
			n++
			return n == k
		}
		s.begin()
		p := s.follower()
		p.stop()
		s.pass(s.bound() + time.Second)
		if !s.check.settled {
			t.Fatalf("call %d: the cluster did not settle", k)
		}
	}
}

// A process is killed at every one of its calls: before it is sent, before it is applied, and before its reply.
// The others go on within the bound.
func TestStoryCrashAtEveryCall(t *testing.T) {
	t.Parallel()
	for k := 1; k <= 30; k++ {
		for point := range crashPoints {
			s := onStage(t, Config{Nodes: 3, Timing: lease.Fast()})
			s.boot()
			s.within(time.Minute, "a leader", func() bool { return s.leader() != nil })
			p := s.leader()
			p.crashIn, p.crashAt = k, point
			s.pass(s.bound() + 30*time.Second)
			if p.state != dead {
				t.Fatalf("call %d: the victim lives", k)
			}
			if !s.check.settled {
				t.Fatalf("call %d, point %d: the cluster did not settle", k, point)
			}
		}
	}
}

// Scenario 18: a replica is killed and restarted at once. There is a leader within the lease, and its units run
// within a TTL and two seconds.
func TestStoryKilledAndRestartedAtOnce(t *testing.T) {
	t.Parallel()
	profiles(t, func(t *testing.T, timing lease.Timing) {
		for _, nodes := range []int{1, 3} {
			s := onStage(t, Config{Nodes: nodes, Timing: timing}).begin()
			killed := s.now
			p := s.leader()
			p.kill()
			s.start(p.host)
			s.within(timing.LeaseDuration+time.Second, "a leader", func() bool { return s.leader() != nil })
			s.within(timing.NodeRegistrationTTL+2*time.Second-(s.now-killed), "all units run", s.allRun)
		}
	})
}

// The same, where processes on one machine have exit evidence of each other. The next process finds it, or a
// neighbour had it before. No node waits for the lease or for a registration.
func TestStoryKilledAndProven(t *testing.T) {
	t.Parallel()
	profiles(t, func(t *testing.T, timing lease.Timing) {
		for _, nodes := range []int{1, 3} {
			s := onStage(t, Config{Nodes: nodes, Timing: timing})
			for _, h := range s.hosts {
				h.full.Traits.Host.BootID = "machine"
				h.advert = h.full
			}
			s.begin()
			p := s.leader()
			killed := s.now
			p.kill()
			s.start(p.host)
			s.within(2*time.Second, "a leader", func() bool { return s.leader() != nil })
			s.within(2*time.Second-(s.now-killed), "all units run", s.allRun)
		}
	})
}

// Scenario 21: the store fails over to a copy that lost its newest rows, again and again. Numbers never repeat
// and no two runs are alive at once (checked by I1, I3, I4), even if a process that knows nothing of the old
// store starts just then.
func TestStoryFailoverThatLostTheNewestRows(t *testing.T) {
	t.Parallel()
	profiles(t, func(t *testing.T, timing lease.Timing) {
		s := onStage(t, Config{Nodes: 4, Timing: timing}).begin()
		for i := range 40 {
			s.saveImage()
			p := s.follower()
			switch i % 4 {
			case 0:
				s.leader().kill() // everything about the next term is lost
			case 1:
				p.stop()
			case 2:
				p.kill()
			}
			s.pass(s.upTo(2 * timing.NodeRegistrationTTL))
			s.failover()
			for _, h := range s.hosts {
				if h.proc.state == dead {
					s.start(h)
				}
			}
			s.pass(s.bound() + time.Second)
			if !s.check.settled {
				t.Fatalf("failover %d: the cluster did not settle", i)
			}
		}
	})
}

// Scenario 22: a laptop that runs everything, including the store, sleeps for an hour.
func TestStorySuspendForAnHour(t *testing.T) {
	t.Parallel()
	profiles(t, func(t *testing.T, timing lease.Timing) {
		s := onStage(t, Config{Nodes: 3, Timing: timing}).begin()
		before := s.where()
		for _, h := range s.hosts {
			h.proc.pause(time.Hour)
		}
		s.pass(time.Hour)
		s.within(2*timing.HeartbeatInterval, "a leader and all units", func() bool { return s.leader() != nil && s.allRun() })
		for i, p := range s.where() {
			if p != before[i] {
				t.Errorf("%s moved", s.units[i].Unit)
			}
		}
		s.pass(s.bound() + time.Second)
	})
}

// After a clean stop, the next leader and the units wait for no deadline.
func TestStoryCleanStop(t *testing.T) {
	t.Parallel()
	profiles(t, func(t *testing.T, timing lease.Timing) {
		s := onStage(t, Config{Nodes: 3, Timing: timing}).begin()
		p := s.leader()
		p.stop()
		s.within(time.Second, "another leads", func() bool { return s.leader() != nil && s.leader() != p })
		s.within(time.Second, "the process has ended", func() bool { return p.state == dead })
		s.within(time.Second, "its units run elsewhere", s.allRun)
	})
}
