package member_test

import (
	"strings"
	"testing"
	"time"

	"github.com/emitd/emitd/daemon"
)

// A process that was away and returns brings no newer specs: those of a program that was deployed
// meanwhile stay in force.
func TestReturnKeepsItsRank(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1, advert("acme:work", 4))
	old := c.nodes[0]
	c.until(10*time.Second, "four units run", func() bool { return c.total() == 4 })
	c.run(20 * time.Second)
	c.join("new", advert("acme:work", 8))
	c.until(20*time.Second, "eight units run", func() bool { return c.total() == 8 })
	old.paused = true
	c.run(30 * time.Second)
	old.paused = false
	head := c.snapshot().Head
	c.run(30 * time.Second)
	for _, e := range mustEvents(c, head) {
		if e.Kind == daemon.NodeRegistered && e.Incarnation == old.id.Incarnation {
			head = 0
		}
	}
	if head != 0 {
		t.Fatalf("it did not register again: the test shows nothing\n%s", c.dump())
	}
	if n := active(c); n != 8 {
		t.Errorf("%d units are active, want 8", n)
	}
	for _, e := range mustEvents(c, 0) {
		if strings.HasPrefix(e.Reason, "instances reduced") {
			t.Errorf("%s of %s: %s", e.Kind, e.Unit, e.Reason)
		}
	}
}
