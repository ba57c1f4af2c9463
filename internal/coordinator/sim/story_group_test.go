package sim

import (
	"slices"
	"testing"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/internal/coordinator/lease"
)

// Two groups of nodes have a daemon of one name, and only one of them may lead. Each runs its own units, evenly. When all
// nodes of a group are killed, its units wait, and those of the other group stay where they are.
func TestStoryGroups(t *testing.T) {
	t.Parallel()
	profiles(t, func(t *testing.T, timing lease.Timing) {
		shop, billing := plain(daemon.ID("acme:a").In("shop"), 12), plain(daemon.ID("acme:a").In("billing"), 6)
		s := onStage(t, Config{Nodes: 6, Timing: timing, Work: []Work{shop, billing}})
		for i, h := range s.hosts {
			spec := shop.Spec
			if i >= 3 {
				spec = billing.Spec
				h.advert.Traits.NeverLead = true
			}
			h.advert.Traits.Group = spec.ID.Group()
			h.advert.Specs, h.advert.Kinds = []daemon.Spec{spec}, []daemon.Kind{daemon.Kind(spec.ID)}
			h.full = h.advert
		}
		s.begin()
		s.wantGroups(4, 2)
		j := s.watch()
		for _, h := range s.hosts[3:] {
			h.proc.kill()
		}
		s.restartBound("killed")
		s.pass(2*timing.NodeRegistrationTTL + s.bound())
		s.wantGroups(4, 0)
		for _, h := range s.hosts[3:] {
			s.start(h)
		}
		s.restartBound("returned")
		s.within(timing.HeartbeatInterval*2+timing.SettleWindow*2+10*time.Second, "all units run", s.allRun)
		s.pass(s.bound())
		s.wantGroups(4, 2)
		for i, n := range j.moves {
			if n > 0 && s.units[i].Daemon == shop.Spec.ID {
				t.Errorf("%s moved %d times", s.units[i].Unit, n)
			}
		}
	})
}

// wantGroups checks that every unit runs in its own group, and how many run on each node of the first three and of the
// last three.
func (s *stage) wantGroups(first, last int) {
	s.Helper()
	for i, p := range s.where() {
		if p != nil && p.host.advert.Traits.Group != s.units[i].Daemon.Group() {
			s.Errorf("%s runs in the group %s", s.units[i].Unit, p.host.advert.Traits.Group)
		}
	}
	var got []int
	for _, h := range s.hosts {
		n := 0
		for _, p := range s.where() {
			if p != nil && p == h.proc {
				n++
			}
		}
		got = append(got, n)
	}
	if want := []int{first, first, first, last, last, last}; !slices.Equal(got, want) {
		s.Errorf("units on the nodes: %v, want %v", got, want)
	}
}
