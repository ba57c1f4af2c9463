package sim

import (
	"testing"
	"time"

	"github.com/emitd/emitd/internal/coordinator/lease"
)

// Nodes with a limit: of ten nodes nine are killed. The one that is left runs what its limit allows, and the rest waits.
// When nodes return, everything runs again.
func TestStoryLimitAfterALoss(t *testing.T) {
	t.Parallel()
	profiles(t, func(t *testing.T, timing lease.Timing) {
		s := onStage(t, Config{Nodes: 10, Timing: timing, Work: []Work{plain("acme:a", 30)}})
		for _, h := range s.hosts {
			h.advert.Traits.MaxWeight = 8
			h.full = h.advert
		}
		s.begin()
		s.wantEven()
		stays := s.leader()
		for _, h := range s.hosts {
			if h.proc != stays {
				h.proc.kill()
			}
		}
		s.restartBound("killed")
		s.pass(2*timing.NodeRegistrationTTL + s.bound())
		if n := len(stays.runs); n != 8 {
			t.Errorf("the node that is left runs %d units, want 8", n)
		}
		back := 0
		for _, h := range s.hosts {
			if h.proc != stays && back < 3 {
				s.start(h)
				back++
			}
		}
		s.restartBound("returned")
		s.within(timing.HeartbeatInterval*2+timing.SettleWindow*2+10*time.Second, "all units run", s.allRun)
		if n := len(stays.runs); n > 8 {
			t.Errorf("the node that was left runs %d units, want at most 8", n)
		}
		s.pass(s.bound())
	})
}
