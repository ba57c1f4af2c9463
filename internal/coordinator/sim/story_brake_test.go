package sim

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/internal/coordinator/lease"
	"github.com/emitd/emitd/storage"
)

// recorded counts the events of a kind.
func (s *stage) recorded(kind daemon.EventKind) int {
	s.Helper()
	page, err := s.server.store.Events(s.Context(), 0, 1<<20)
	if err != nil {
		s.Fatal(err)
	}
	n := 0
	for _, e := range page.Events {
		if e.Kind == kind {
			n++
		}
	}
	return n
}

// tenNodes is a cluster of ten nodes with three units each.
func tenNodes(t *testing.T, timing lease.Timing) *stage {
	t.Helper()
	s := onStage(t, Config{Nodes: 10, Timing: timing, Work: []Work{plain("acme:a", 30)}}).begin()
	s.wantEven()
	return s
}

// Nine of ten nodes are killed at once, with the leader or without it. The brake holds for one TTL and says so. Then the
// one that is left runs everything.
func TestStoryNineOfTenKilled(t *testing.T) {
	t.Parallel()
	for name, leaderDies := range map[string]bool{"the leader lives": false, "the leader dies": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			profiles(t, func(t *testing.T, timing lease.Timing) {
				s := tenNodes(t, timing)
				stays := s.leader()
				if leaderDies {
					stays = s.follower()
				}
				for _, h := range s.hosts {
					if h.proc != stays {
						h.proc.kill()
					}
				}
				s.restartBound("killed")
				due := timing.NodeRegistrationTTL
				if leaderDies {
					due = max(due, timing.LeaseDuration+250*time.Millisecond+timing.Grace())
				}
				s.pass(due + timing.NodeRegistrationTTL - timing.HeartbeatInterval*11/10 - timing.QueryTimeout)
				if n := len(stays.runs); n != 3 || s.recorded(daemon.BrakeHeld) != 1 || !stays.member.View().Braked {
					t.Errorf("before the brake is released: %d runs, told %d times", n, s.recorded(daemon.BrakeHeld))
				}
				s.within(timing.HeartbeatInterval*11/10+timing.QueryTimeout+300*time.Millisecond, "the survivor runs everything", func() bool { return len(stays.runs) == 30 })
				if s.recorded(daemon.BrakeReleased) != 1 || stays.member.View().Braked {
					t.Errorf("the release was told %d times", s.recorded(daemon.BrakeReleased))
				}
				s.pass(s.bound())
			})
		})
	}
}

// Eight of ten nodes cannot reach the store for less than two TTLs. They stop by themselves, and nothing is taken from
// them.
func TestStoryBrakeOutlastsAPartition(t *testing.T) {
	t.Parallel()
	profiles(t, func(t *testing.T, timing lease.Timing) {
		s := tenNodes(t, timing)
		stays, before := s.leader(), s.where()
		n := 0
		for _, h := range s.hosts {
			if h.proc != stays && n < 8 {
				h.cutOff = true
				n++
			}
		}
		s.restartBound("cut")
		s.pass(2*timing.NodeRegistrationTTL - timing.HeartbeatInterval*2)
		if s.recorded(daemon.BrakeHeld) != 1 {
			t.Errorf("the brake was told %d times", s.recorded(daemon.BrakeHeld))
		}
		for _, h := range s.hosts {
			h.cutOff = false
		}
		s.restartBound("heal")
		s.within(2*timing.HeartbeatInterval, "all units run", s.allRun)
		for i, p := range s.where() {
			if p != before[i] {
				t.Errorf("%s moved", s.units[i].Unit)
			}
		}
		s.pass(s.bound())
		if s.recorded(daemon.BrakeReleased) != 1 || s.recorded(daemon.NodeRemoved) != 0 {
			t.Errorf("%d releases, %d nodes removed", s.recorded(daemon.BrakeReleased), s.recorded(daemon.NodeRemoved))
		}
	})
}

// Half of the nodes, and two of three, are taken over as fast as ever.
func TestStoryNoBrake(t *testing.T) {
	t.Parallel()
	profiles(t, func(t *testing.T, timing lease.Timing) {
		for nodes, die := range map[int]int{10: 5, 3: 2} {
			s := onStage(t, Config{Nodes: nodes, Timing: timing, Work: []Work{plain("acme:a", 30)}}).begin()
			n := 0
			for _, h := range s.hosts {
				if h.proc != s.leader() && n < die {
					h.proc.kill()
					n++
				}
			}
			s.within(timing.NodeRegistrationTTL+200*time.Millisecond, "all units run", s.allRun)
			if s.recorded(daemon.BrakeHeld) != 0 {
				t.Error("the brake held")
			}
		}
	})
}

// An operator who knows that the nodes are dead releases the brake. A command for another term, and one for which no
// brake holds, change nothing.
func TestStoryBrakeReleasedByAnOperator(t *testing.T) {
	t.Parallel()
	profiles(t, func(t *testing.T, timing lease.Timing) {
		s := tenNodes(t, timing)
		stays := s.leader()
		s.wantAnswer(daemon.CommandRelease, 0, "refused: the brake does not hold")
		for _, h := range s.hosts {
			if h.proc != stays {
				h.proc.kill()
			}
		}
		s.restartBound("killed")
		s.within(timing.NodeRegistrationTTL+2*timing.HeartbeatInterval, "the brake holds", func() bool { return s.recorded(daemon.BrakeHeld) == 1 })
		s.wantAnswer(daemon.CommandRelease, 1, "conflict: expected term 1")
		if n := len(stays.runs); n != 3 {
			t.Errorf("the survivor runs %d units before the brake is released", n)
		}
		s.wantAnswer(daemon.CommandRelease, 0, "done")
		s.within(timing.HeartbeatInterval*11/10+timing.QueryTimeout+300*time.Millisecond, "the survivor runs everything", func() bool { return len(stays.runs) == 30 })
		if s.recorded(daemon.BrakeReleased) != 1 || stays.member.View().Braked {
			t.Errorf("the release was told %d times", s.recorded(daemon.BrakeReleased))
		}
		s.pass(s.bound())
	})
}

// wantAnswer submits a command and waits for an answer that begins with the given words.
func (s *stage) wantAnswer(kind daemon.CommandKind, term int64, want string) {
	s.Helper()
	s.submit(kind, daemon.CommandArgs{}, term)
	id := fmt.Sprintf("c-%06d", s.check.operations.submitted)
	result := ""
	s.within(s.cfg.Timing.HeartbeatInterval*11/10+s.cfg.Timing.QueryTimeout, "the command is answered", func() bool {
		c, err := s.server.store.Submit(s.Context(), storage.Command{ID: id, Kind: kind})
		if err != nil {
			s.Fatal(err)
		}
		result = c.Result
		return !c.DoneAt.IsZero()
	})
	if !strings.HasPrefix(result, want) {
		s.Errorf("the command was answered %q, want %q", result, want)
	}
}
