package member_test

import (
	"strings"
	"testing"
	"time"

	"github.com/emitd/emitd/internal/coordinator/member"
)

// A node's machine stands still for 6 s of the 10 s that a unit has to drain, and its clock with it. The next
// reply shows that the store's clock went on, and the drain ends when it does for the other nodes.
func TestDrainThatWasUnderWayInAStandstill(t *testing.T) {
	t.Parallel()
	for name, still := range map[string]time.Duration{"none": 0, "six seconds": 6 * time.Second} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, 1)
			c.until(10*time.Second, "six units run", func() bool { return c.total() == 6 })
			c.run(10 * time.Second)
			p := c.nodes[0]
			for u := range p.running {
				p.slow[u] = true
			}
			logged := func(what string) bool {
				for _, line := range p.log {
					if strings.Contains(line, what) {
						return true
					}
				}
				return false
			}
			p.step(member.Advertise{Advert: advert("acme:work", 5)})
			c.until(5*time.Second, "a unit is asked back", func() bool { return logged("drain acme:work") })
			c.skew += still // the clocks differ by this: one stood still, or the other was set forward
			took := c.until(20*time.Second, "its run is cancelled", func() bool { return logged("drain deadline") })
			if most := 10*time.Second - still + 2*time.Second; took > most || still == 0 && took < 9*time.Second {
				t.Errorf("cancelled after %v, want about %v", took, 10*time.Second-still)
			}
			if c.leader() != p || len(p.running) < 5 {
				t.Errorf("it cost leadership or other runs:\n%s", c.dump())
			}
		})
	}
}
