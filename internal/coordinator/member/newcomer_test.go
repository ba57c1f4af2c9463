package member_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/emitd/emitd/internal/coordinator/lease"
	"github.com/emitd/emitd/internal/coordinator/member"
)

// A node joins, and its first answer is too slow to compare clocks by. After its second heartbeat the leader's host is
// lost. The newcomer cannot compare the stamps that were made before. If it is elected, it sees the row of that host for the
// first time, and counts its silence from its own first quick answer. So the units run again within the bound.
func TestNewcomerCountsFromItsFirstQuickAnswer(t *testing.T) {
	t.Parallel()
	x := lease.Fast()
	bound := max(x.NodeRegistrationTTL, x.LeaseDuration+250*time.Millisecond+x.Grace()) + 150*time.Millisecond
	for i := range 150 { // in about every twentieth, the newcomer is elected
		t.Run(fmt.Sprint(i), func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, 2)
			c.run(10*time.Second + time.Duration(i)*173*time.Millisecond)
			leader, a := c.leader(), advert("acme:work", 6)
			p := c.join("newcomer", a)
			p.m = member.New(member.Config{Node: p.id, Advert: a, Timing: x, Seed: uint64(100 + i)}, c.now)
			heartbeats := 0
			p.takes = func(call member.Call) time.Duration {
				if call.Heartbeat != nil {
					heartbeats++
				}
				if heartbeats == 1 {
					return x.ClockStep
				}
				return 0
			}
			c.until(time.Minute, "the second heartbeat", func() bool { return heartbeats == 2 })
			c.run(5 * time.Millisecond)
			leader.kill()
			took := c.until(3*x.NodeRegistrationTTL, "the units run again", func() bool { return c.total() == 6 })
			if took > bound {
				t.Errorf("the units ran again after %v, more than %v, led by %s\n%s", took, bound, c.leader().id.Name, c.dump())
			}
		})
	}
}
