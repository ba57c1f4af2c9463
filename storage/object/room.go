package object

import (
	"slices"
	"time"

	"github.com/emitd/emitd/storage"
)

// crowded reports whether the heartbeat registers a process that is one too many if each row is that of a process
// which makes changes.
func (s *Store) crowded(c *cluster, b storage.Heartbeat) bool {
	return b.Room > 0 && c.present(b.Node.Incarnation) == nil && s.exceeds(b.Room, len(c.everybody())+1)
}

// exceeds reports whether one change of each of so many nodes takes longer than room.
func (s *Store) exceeds(room time.Duration, nodes int) bool {
	return time.Duration(nodes)*s.bucket.change() > room
}

// room refuses a process that is one too many. A process that is known to have ended, or was not heard of for
// ttl, as this process has watched it, makes no changes any more and does not count. The rows must be up to
// date: to ask whether one is silent is to watch it.
func (s *Store) room(c *cluster, b storage.Heartbeat, now time.Time) error {
	nodes := 1
	for _, inc := range c.everybody() {
		m := c.row(inc)
		silent := s.silent(m, b.TTL, now)
		if inc != b.Node.Incarnation && m.ID != b.Node.ID && !m.Witnessed && !slices.Contains(b.Ended, inc) && !silent {
			nodes++
		}
	}
	if s.exceeds(b.Room, nodes) {
		return &storage.CrowdedError{Nodes: nodes, ChangeTime: s.bucket.change()}
	}
	return nil
}
