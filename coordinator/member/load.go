package member

import (
	"fmt"
	"time"

	"github.com/emitd/emitd/coordinator/lease"
	"github.com/emitd/emitd/storage"
)

// Some stores make one change at a time, of whichever node it is: a bucket holds the cluster in one object.
// When all nodes begin at once, each waits for the changes of all others, so the time that a call may take
// must cover one change of each node, and the time to acknowledge a unit those of a whole start: accept,
// stamp and report, each written after startTries attempts on average, for of those who write at the same
// time one wins. Timings that do not cover it make units move before they have started, again and again. A
// node that finds this when it joins ends; one that is in the cluster when it grows goes on, and warns.

// The changes of one node that starts its units, and how many attempts each takes in a crowd.
const (
	startChanges = 3
	startTries   = 4
)

// load is what a node knows of whether the store can carry its timings.
type load struct {
	joined bool // the first list of members was judged
	warned bool
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
		QueryTimeout: t.QueryTimeout, NeedQueryTimeout: roundUp(all),
		AcknowledgeTimeout: t.AcknowledgeTimeout, NeedAcknowledgeTimeout: roundUp(startChanges * startTries * all),
	}
}

// exceeds reports whether what is needed is more than this share of what there is, in percent.
func (e *SlowStoreError) exceeds(percent time.Duration) bool {
	return e.NeedQueryTimeout*100 > e.QueryTimeout*percent || e.NeedAcknowledgeTimeout*100 > e.AcknowledgeTimeout*percent
}

// roundUp rounds to what a person writes into a configuration.
func roundUp(d time.Duration) time.Duration {
	const unit = 10 * time.Millisecond
	return (d + unit - 1) / unit * unit
}

// warnLoad is the share of a timeout, in percent, from which a warning says that the store is slow.
const warnLoad = 50

// compareLoad judges whether the store can carry the timings, when the node joins and when the number of
// nodes changes.
func (m *Member) compareLoad(now lease.Instant, r *storage.Reply) {
	if r.ChangeTime <= 0 || (!m.load.joined && r.Members == nil) {
		return
	}
	err := slowStore(m.t, len(m.peers.known), r.ChangeTime)
	first := !m.load.joined
	m.load.joined = true
	if first && err.exceeds(100) {
		m.endWith(now, err)
		return
	}
	slow := err.exceeds(warnLoad)
	if slow && !m.load.warned {
		m.emit(Notice{Kind: StoreSlow, Err: err})
	}
	m.load.warned = slow
}
