package member_test

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/internal/coordinator/lease"
	"github.com/emitd/emitd/internal/coordinator/member"
)

// The leader moves units to a node that joined as soon as the settle window is over, though nothing happens then. Before,
// and without moves allowed, nothing moves.
func TestRebalanceWithoutAnEvent(t *testing.T) {
	t.Parallel()
	for _, moves := range []int{0, 100} {
		c := newCluster(t, 0)
		c.maxMoves = moves
		c.join("n0", advert("acme:work", 6))
		c.until(10*time.Second, "all units run", func() bool { return c.total() == 6 })
		c.run(10 * time.Second)
		c.join("n1", advert("acme:work", 6))
		window := lease.Fast().SettleWindow
		c.run(window)
		if got := c.spread(); !slices.Equal(got, []int{6, 0}) {
			t.Errorf("within the settle window: %v", got)
		}
		c.run(200 * time.Millisecond) // the joining node's own heartbeat came a little after the join
		want := []int{3, 3}
		if moves == 0 {
			want = []int{6, 0}
		}
		if got := c.spread(); !slices.Equal(got, want) {
			t.Errorf("%d moves allowed: %v a moment after the settle window, want %v", moves, got, want)
		}
	}
}

// Four units can run on one node only, and an embargo keeps them from it. Meanwhile the others are made even. Once the four run,
// the loads are made even again, though no node has joined or left.
func TestRebalanceAfterAnEmbargo(t *testing.T) {
	t.Parallel()
	c, p := specialUnits(t)
	p.never = "acme:special"
	c.heldBack()
	p.never = ""
	c.until(time.Minute, "the four run", func() bool { return c.total() == 10 })
	c.until(daemon.FailuresResetAfter+10*time.Second, "the loads are even", func() bool { return slices.Equal(c.spread(), []int{5, 5}) })
}

// As long as the four fail now and then, no other unit moves because of them: it would move back each time.
func TestRebalanceNotForFailingUnits(t *testing.T) {
	t.Parallel()
	c, p := specialUnits(t)
	c.until(time.Minute, "all run", func() bool { return slices.Equal(c.spread(), []int{5, 5}) })
	for u, generation := range p.running {
		if u.Daemon == "acme:special" {
			delete(p.running, u)
			c.deliver(p, member.RunEnded{Fence: daemon.Fence{Unit: u, Generation: generation}, How: member.GaveUp, Err: errors.New("boom"), Failures: 5})
		}
	}
	c.join("n2", plainAdvert()).stop() // so that loads are made even without the four
	c.heldBack()
	c.until(10*time.Minute, "the four run", func() bool { return c.total() == 10 })
	c.run(daemon.FailuresResetAfter / 2)
	if got := c.spread(); !slices.Equal(got, []int{3, 7}) {
		t.Errorf("%v run: units moved because of four that fail", got)
	}
	c.until(daemon.FailuresResetAfter, "the loads are even", func() bool { return slices.Equal(c.spread(), []int{5, 5}) })
}

func plainAdvert() daemon.Advert {
	a := advert("acme:work", 6)
	a.Kinds = append(a.Kinds, "acme:special")
	a.Specs = append(a.Specs, daemon.Spec{ID: "acme:special", Instances: 4, Requires: map[string]string{"disk": "fast"}})
	return a
}

// specialUnits returns a cluster of two nodes and the second of them, the only one that can run four of ten units.
func specialUnits(t *testing.T) (*cluster, *peer) {
	t.Helper()
	c := newCluster(t, 0)
	c.maxMoves = 100
	a := plainAdvert()
	c.join("n0", a)
	a.Traits.Labels = map[string]string{"disk": "fast"}
	return c, c.join("n1", a)
}

// heldBack waits until the loads of the two nodes are even without the four units, and until no round is due.
func (c *cluster) heldBack() {
	c.t.Helper()
	even := func() bool { return slices.Equal(c.spread(), []int{3, 3}) }
	c.until(time.Minute, "an embargo keeps the four from their only node", even)
	c.run(time.Second)
	if !even() {
		c.t.Fatalf("%v run while the four may not", c.spread())
	}
}
