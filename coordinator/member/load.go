package member

import (
	"fmt"
	"time"

	"github.com/emitd/emitd/coordinator/lease"
	"github.com/emitd/emitd/storage"
)

// Some stores make one change at a time, of whichever node it is: a bucket holds the cluster in one object.
// When all nodes begin at once, each waits for the changes of all others. A change is a read and a write, and
// while one node writes others read, so the time that a call may take must cover half a change of each node; and
// the time to acknowledge a unit those of a whole start: accept, stamp and report, each written after startTries
// attempts on average, for of those who write at the same time one wins. Timings that do not cover it make units move before they have started, again and again. So
// such a store registers a node only while there is room for it. One that finds none waits: until a node has
// left, or the row of a dead one no longer counts; if both would have happened by then, it ends. A node that
// is in the cluster when the store becomes slower goes on, and warns.

// The changes of one node that starts its units, and how many attempts each takes in a crowd.
const (
	startChanges = 3
	startTries   = 2
)

// load is what a node knows of whether the store can carry its timings.
type load struct {
	noRoom  *SlowStoreError // why it is not registered; nil = it is, or nothing is in its way
	since   lease.Instant   // when it first found that
	present *SlowStoreError // what the nodes that are registered need; nil = not known, or any store
	tight   lease.Instant   // since when that is more than there is; Never = it is not
	slow    bool            // for so long that it was told
}

// SlowStoreError says that the store is too slow for the node's timings and the number of nodes.
type SlowStoreError struct {
	Nodes  int           // in the cluster, this one included
	Change time.Duration // how long one change takes while nothing else is written
	// What the node has, and the least that works with so many nodes.
	QueryTimeout, NeedQueryTimeout             time.Duration
	AcknowledgeTimeout, NeedAcknowledgeTimeout time.Duration
}

func (e *SlowStoreError) Error() string {
	return fmt.Sprintf("the store makes one change at a time, each in %v: %d nodes need query_timeout %v or more (it is %v), heartbeat_interval above that, and acknowledge_timeout %v or more (it is %v)",
		e.Change.Round(time.Millisecond), e.Nodes, e.NeedQueryTimeout, e.QueryTimeout, e.NeedAcknowledgeTimeout, e.AcknowledgeTimeout)
}

// slowStore compares the timings with what so many nodes need if a change takes so long.
func slowStore(t lease.Timing, nodes int, change time.Duration) *SlowStoreError {
	all := time.Duration(nodes) * change
	return &SlowStoreError{
		Nodes: nodes, Change: change,
		QueryTimeout: t.QueryTimeout, NeedQueryTimeout: roundUp(all / 2),
		AcknowledgeTimeout: t.AcknowledgeTimeout, NeedAcknowledgeTimeout: roundUp(startChanges * startTries * all),
	}
}

// roundUp rounds to what a person writes into a configuration.
func roundUp(d time.Duration) time.Duration {
	const unit = 10 * time.Millisecond
	return (d + unit - 1) / unit * unit
}

// Room is how long one change of each node of a cluster with these timings may take together.
func Room(t lease.Timing) time.Duration {
	return min(2*t.QueryTimeout, t.AcknowledgeTimeout/(startChanges*startTries))
}

// SlowStore returns what is wrong if so many nodes, with a store in which one change takes so long, need more
// than the timings have; nil if nothing is.
func SlowStore(t lease.Timing, nodes int, change time.Duration) *SlowStoreError {
	if time.Duration(nodes)*change <= Room(t) {
		return nil
	}
	return slowStore(t, nodes, change)
}

// RoomPatience is how long a node waits for room: a node that was killed counts for its NodeRegistrationTTL,
// and one that is being stopped has as much more for it.
func RoomPatience(t lease.Timing) time.Duration {
	return t.NodeRegistrationTTL + t.LeaderStopTimeout + t.DrainTimeout + t.StopTimeout + 2*t.QueryTimeout
}

// awaitRoom takes the store's word that it does not carry another node.
func (m *Member) awaitRoom(now lease.Instant, crowded *storage.CrowdedError) {
	first := m.load.noRoom == nil
	m.load.noRoom = slowStore(m.t, crowded.Nodes, crowded.ChangeTime)
	if first {
		m.load.since = now
		m.emit(Notice{Kind: NoRoom, Err: m.load.noRoom, Reason: RoomPatience(m.t).String()})
	}
	if now.Sub(m.load.since) >= RoomPatience(m.t) {
		m.endWith(now, m.load.noRoom)
	}
}

// wellBelow is the share of what there is, in percent, below which a store that was too slow is fast again.
const wellBelow = 80

// compareLoad judges whether the store carries the timings of the nodes that are registered. It must be too slow
// for NodeRegistrationTTL: by then the rows of dead nodes, which no longer load it, have been removed.
func (m *Member) compareLoad(now lease.Instant, r *storage.Reply) {
	m.load.noRoom = nil
	if r.ChangeTime <= 0 {
		return
	}
	nodes := len(m.peers.known)
	m.load.present = slowStore(m.t, nodes, r.ChangeTime)
	need, room := time.Duration(nodes)*r.ChangeTime, Room(m.t)
	switch {
	case need > room:
		m.load.tight = min(m.load.tight, now)
	case need*100 <= room*wellBelow || !m.load.slow:
		m.load.tight = lease.Never
	}
	slow := m.load.tight != lease.Never && now.Sub(m.load.tight) >= m.t.NodeRegistrationTTL
	switch {
	case slow && !m.load.slow:
		m.emit(Notice{Kind: StoreSlow, Err: m.load.present})
	case m.load.slow && !slow:
		m.emit(Notice{Kind: StoreFine})
	}
	m.load.slow = slow
}
