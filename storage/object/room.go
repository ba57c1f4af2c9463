package object

import (
	"cmp"
	"slices"
	"time"

	"github.com/emitd/emitd/storage"
)

// mayExceedRoom reports whether the heartbeat registers a process for which there is no room if every member counts. The
// call then looks closer; see room.
func (s *Store) mayExceedRoom(c *cluster, b storage.Heartbeat) bool {
	return b.MaxTotalChangeTime > 0 && c.present(b.Node.Incarnation) == nil && s.exceeds(b.MaxTotalChangeTime, len(c.memberIDs())+1)
}

// exceeds reports whether one change by each of so many nodes takes longer than room.
func (s *Store) exceeds(room time.Duration, nodes int) bool {
	return time.Duration(nodes)*s.bucket.changeTime() > room
}

// checkRoom refuses a process for which there is no room. A process does not count if it is known to have ended, or if
// this process has seen its row unchanged for ttl: it makes no changes any more. The rows must be up to date,
// because asking whether one is silent also observes it.
func (s *Store) checkRoom(c *cluster, b storage.Heartbeat, now time.Time) error {
	nodes := 1
	for _, inc := range c.memberIDs() {
		m := c.row(inc)
		silent := s.silent(m, cmp.Or(m.Timing.NodeRegistrationTTL, b.TTL), now)
		if inc != b.Node.Incarnation && m.ID != b.Node.ID && !m.ExitProven && !slices.Contains(b.ExitEvidence, inc) && !silent {
			nodes++
		}
	}
	if s.exceeds(b.MaxTotalChangeTime, nodes) {
		return &storage.TooManyNodesError{Nodes: nodes, ChangeTime: s.bucket.changeTime()}
	}
	return nil
}
