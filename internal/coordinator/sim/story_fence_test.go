package sim

import (
	"testing"
	"time"

	"github.com/emitd/emitd/internal/coordinator/lease"
)

// A10: a node is paused while a write of its run is on its way, and its unit is given to another node. The write
// arrives when the next run has begun, which means that it has stamped its fence, and has not written anything yet.
// It is refused: a run that begins reads what its predecessors wrote, and would overwrite what they write later.
func TestStoryWriteBetweenStampAndFirstEffect(t *testing.T) {
	t.Parallel()
	profiles(t, func(t *testing.T, timing lease.Timing) {
		s := onStage(t, Config{Nodes: 3, Timing: timing, Work: []Work{plain("acme:a", 1)}}).begin()
		s.pass(10 * timing.HeartbeatInterval)
		u := s.units[0]
		old := u.live[0]
		old.p.pause(time.Hour)
		var next *run
		s.within(s.bound(), "the next run begins", func() bool {
			next = u.live[len(u.live)-1]
			return next != old
		})
		held, refused := u.resource, s.stats.Refused
		if held.generation != old.fence.Generation || !next.read {
			t.Fatalf("the last write is of generation %d, the paused run's is %d; the next run has read: %v", held.generation, old.fence.Generation, next.read)
		}
		s.effectArrives(old, held.value+1)
		if s.stats.Refused != refused+1 || u.resource != held {
			t.Fatalf("a write of %s was accepted although %s has begun", old.fence, next.fence)
		}
		s.within(5*timing.HeartbeatInterval, "the next run writes", func() bool { return u.resource.generation == next.fence.Generation })
		s.pass(time.Hour + s.bound())
	})
}
