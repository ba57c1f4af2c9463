package member

import (
	"fmt"
	"time"

	"github.com/emitd/emitd/internal/coordinator/lease"
	"github.com/emitd/emitd/storage"
)

// A store that makes one change at a time limits the size of the cluster. A bucket is one: it keeps the cluster
// in one object. When all nodes start at once, each waits for the changes of all others.
//
// A change is a read and a write, and while one node writes, others read. So the query timeout must cover half a
// change of every node. The acknowledge timeout must cover a whole start of every node: accept, stamp and report.
// Each of these takes startTries attempts on average, because only one of several simultaneous writers wins. With
// shorter timings, units move before they have started, again and again.
//
// Such a store therefore registers a node only while there is room for it. A node that finds no room waits until
// another has left, or until the row of a dead node no longer counts. If there is still no room when both would
// have happened, it stops. A node that is registered when the store becomes slower goes on, and warns.

// startChanges is how many changes a node makes to start its units; startTries is how many attempts each takes on
// average when many nodes write.
const (
	startChanges = 3
	startTries   = 2
)

// storeLoad is what a node knows about whether the store can carry its timings.
type storeLoad struct {
	refusedReason *SlowStoreError // why the node is not registered; nil = it is, or something else is the reason
	since         lease.Instant   // when it first found no room
	current       *SlowStoreError // what the registered nodes need; nil = not known, or a store without this limit
	tooSlowSince  lease.Instant   // since when they need more than there is; Never = they do not
	reportedSlow  bool            // it has lasted so long that the hooks were informed
}

// SlowStoreError reports that the store is too slow for the node's timings and the number of nodes.
type SlowStoreError struct {
	Nodes  int           // in the cluster, this one included
	Change time.Duration // how long one change takes while no other node writes
	// The node's timings, and the least that works with this number of nodes.
	QueryTimeout, NeedQueryTimeout             time.Duration
	AcknowledgeTimeout, NeedAcknowledgeTimeout time.Duration
}

func (e *SlowStoreError) Error() string {
	return fmt.Sprintf("the store makes one change at a time, each in %v: %d nodes need query_timeout %v or more (it is %v), heartbeat_interval above that, and acknowledge_timeout %v or more (it is %v)",
		e.Change.Round(time.Millisecond), e.Nodes, e.NeedQueryTimeout, e.QueryTimeout, e.NeedAcknowledgeTimeout, e.AcknowledgeTimeout)
}

// slowStore compares the timings with what that many nodes need if a change takes that long.
func slowStore(t lease.Timing, nodes int, change time.Duration) *SlowStoreError {
	all := time.Duration(nodes) * change
	return &SlowStoreError{
		Nodes: nodes, Change: change,
		QueryTimeout: t.QueryTimeout, NeedQueryTimeout: roundUp(all / 2),
		AcknowledgeTimeout: t.AcknowledgeTimeout, NeedAcknowledgeTimeout: roundUp(startChanges * startTries * all),
	}
}

// roundUp rounds to a value that a person would write into a configuration.
func roundUp(d time.Duration) time.Duration {
	const unit = 10 * time.Millisecond
	return (d + unit - 1) / unit * unit
}

// ChangeTimeBudget returns the time that one change of every node of a cluster with these timings may take together.
func ChangeTimeBudget(t lease.Timing) time.Duration {
	return min(2*t.QueryTimeout, t.AcknowledgeTimeout/(startChanges*startTries))
}

// CheckStoreSpeed returns an error if that many nodes need longer timings in a store in which one change takes that
// long; else nil.
func CheckStoreSpeed(t lease.Timing, nodes int, change time.Duration) *SlowStoreError {
	if time.Duration(nodes)*change <= ChangeTimeBudget(t) {
		return nil
	}
	return slowStore(t, nodes, change)
}

// RoomTimeout returns how long a node waits for room. A node that was killed counts for its NodeRegistrationTTL,
// and one that is being stopped for the time of its stop in addition.
func RoomTimeout(t lease.Timing) time.Duration {
	return t.NodeRegistrationTTL + t.LeaderStopTimeout + t.DrainTimeout + t.StopTimeout + 2*t.QueryTimeout
}

// onNoRoom handles the store's refusal to register another node.
func (m *Member) onNoRoom(now lease.Instant, crowded *storage.TooManyNodesError) {
	first := m.load.refusedReason == nil
	m.load.refusedReason = slowStore(m.t, crowded.Nodes, crowded.ChangeTime)
	if first {
		m.load.since = now
		m.emit(Notice{Kind: NoRoom, Err: m.load.refusedReason, Reason: RoomTimeout(m.t).String()})
	}
	if now.Sub(m.load.since) >= RoomTimeout(m.t) {
		m.stopWithError(now, m.load.refusedReason)
	}
}

// recoverBelowPercent is a percentage of the available time. A store that was too slow counts as fast again when the nodes
// need less than that.
const recoverBelowPercent = 80

// compareLoad decides whether the store carries the timings of the registered nodes. It counts as too slow only
// after NodeRegistrationTTL: by then the rows of dead nodes, which add no load, have been removed.
func (m *Member) compareLoad(now lease.Instant, r *storage.Reply) {
	m.load.refusedReason = nil
	if r.MinChangeTime <= 0 {
		return
	}
	nodes := len(m.peers.known)
	m.load.current = slowStore(m.t, nodes, r.MinChangeTime)
	need, room := time.Duration(nodes)*r.MinChangeTime, ChangeTimeBudget(m.t)
	switch {
	case need > room:
		m.load.tooSlowSince = min(m.load.tooSlowSince, now)
	case need*100 <= room*recoverBelowPercent || !m.load.reportedSlow:
		m.load.tooSlowSince = lease.Never
	}
	slow := m.load.tooSlowSince != lease.Never && now.Sub(m.load.tooSlowSince) >= m.t.NodeRegistrationTTL
	switch {
	case slow && !m.load.reportedSlow:
		m.emit(Notice{Kind: StoreSlow, Err: m.load.current})
	case m.load.reportedSlow && !slow:
		m.emit(Notice{Kind: StoreRecovered})
	}
	m.load.reportedSlow = slow
}
