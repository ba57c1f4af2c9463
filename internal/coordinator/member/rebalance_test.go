package member_test

import (
	"slices"
	"testing"
	"time"

	"github.com/emitd/emitd/internal/coordinator/lease"
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
