package member_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/emitd/emitd/coordinator/lease"
	"github.com/emitd/emitd/coordinator/member"
	"github.com/emitd/emitd/storage"
)

// joinSlow adds a node with profile fast, on a store that needs so long for a change.
func (c *cluster) joinSlow(name string, change *time.Duration) *peer {
	p := c.joinTimed(name, lease.Fast())
	p.forge = func(r *storage.Reply) { r.ChangeTime = *change }
	return p
}

// A node ends when it joins more nodes than the store can carry with its timings, says which would work, and
// has disturbed nobody. Those that are there go on, whatever the store does later, and warn once.
func TestSlowStoreEndsWhoeverJoins(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 0)
	change := 100 * time.Millisecond
	var first []*peer
	for _, name := range []string{"a", "b", "c", "d"} {
		first = append(first, c.joinSlow(name, &change))
	}
	c.until(time.Minute, "run", func() bool { return c.total() == 6 })
	p := c.joinSlow("e", &change)
	c.until(5*time.Second, "it ends", func() bool { return p.stopped })
	var slow *member.SlowStoreError
	if !errors.As(p.ended, &slow) || slow.Nodes != 5 || slow.Change != change ||
		slow.NeedQueryTimeout != 500*time.Millisecond || slow.NeedAcknowledgeTimeout != 6*time.Second {
		t.Errorf("it ended with %v", p.ended)
	}
	if p.said("elected") || p.said("start") {
		t.Errorf("it led or ran\n%s", c.dump())
	}
	change = time.Second
	c.run(30 * time.Second)
	for _, p := range first {
		if p.stopped || p.said("lost") || p.said("cancel") {
			t.Errorf("%s was disturbed\n%s", p.id.Name, c.dump())
		}
		if !p.said(string(member.StoreSlow)) {
			t.Errorf("%s did not warn", p.id.Name)
		}
	}
}

// A store that makes changes of many at once says nothing of how long one takes, and refuses nobody.
func TestOtherStoresCarryAnyNumber(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 0)
	var none time.Duration
	for i := range 30 {
		c.joinSlow(fmt.Sprint("x", i), &none)
	}
	c.run(time.Minute)
	for _, p := range c.nodes {
		if p.stopped || p.said(string(member.StoreSlow)) {
			t.Errorf("%s warned, or ended with %v", p.id.Name, p.ended)
		}
	}
}
