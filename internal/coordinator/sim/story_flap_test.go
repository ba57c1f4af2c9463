package sim

import (
	"testing"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/internal/coordinator/lease"
)

// startsOfUnits returns how often each unit was assigned.
func (s *stage) startsOfUnits() map[daemon.Unit]int {
	s.Helper()
	page, err := s.server.store.Events(s.Context(), 0, 1<<20)
	if err != nil {
		s.Fatal(err)
	}
	out := map[daemon.Unit]int{}
	for _, e := range page.Events {
		if e.Kind == daemon.AssignmentAssigned {
			out[e.Unit]++
		}
	}
	return out
}

// One of five nodes is cut off for longer than its registration lasts, again and again. After the second time its units
// stay with the others until it has been steady, and then it has its share again.
func TestStoryFlappingNode(t *testing.T) {
	t.Parallel()
	profiles(t, func(t *testing.T, timing lease.Timing) {
		s := onStage(t, Config{Nodes: 5, Timing: timing, Work: []Work{plain("acme:a", 60)}}).begin()
		s.wantEven()
		flaps := s.follower()
		before := s.startsOfUnits()
		for range 10 {
			flaps.host.cutOff = true
			s.restartBound("cut")
			s.pass(2 * timing.NodeRegistrationTTL)
			flaps.host.cutOff = false
			s.restartBound("heal")
			s.pass(timing.NodeRegistrationTTL)
		}
		total, most := 0, 0
		for u, n := range s.startsOfUnits() {
			n -= before[u]
			total, most = total+n, max(most, n)
		}
		t.Logf("%d starts of 60 units, one unit %d times", total, most)
		if total > 2*60 || most > 4 {
			t.Errorf("%d starts of 60 units, one unit %d times", total, most)
		}
		if s.recorded(daemon.LedgerSick) == 0 {
			t.Error("the history does not say that the node flaps")
		}
		s.within(10*time.Minute+s.bound(), "the node has its share again", func() bool { return len(flaps.runs) == 12 })
		s.pass(s.bound())
	})
}
