package member

import (
	"fmt"

	"github.com/emitd/emitd/internal/coordinator/lease"
	"github.com/emitd/emitd/node"
)

// Each node applies its own timings to the others, so all nodes of a cluster must have the same. Otherwise a node
// with a short lease takes over a term whose leader, with a long lease, still acts.
//
// A node that finds others with different timings when it registers holds back: it does not campaign and is given
// no units until it knows whether they are alive. If the row of one changes, that node is alive, and this node
// ends. A row that has not changed for its own NodeRegistrationTTL belongs to a dead process.
//
// A node ignores those that register after it, because they have found this one. No clock says which was first:
// two nodes that find each other both end.

// otherTimings is what a node knows about others with different timings.
type otherTimings struct {
	joining     bool                                         // the next member list is the first since this node registered
	rows        lease.Observations[node.Incarnation, uint64] // the rows that this list showed
	holdingBack bool                                         // until it is known whether they are alive
}

// TimingError reports that another node of the cluster is alive with different timings.
type TimingError struct {
	Node         node.Identity // the other node
	Mine, Theirs node.Timing
}

func (e *TimingError) Error() string {
	return fmt.Sprintf("node %s of this cluster runs with other timings (%s): all nodes must have the same", e.Node.Name, e.Mine.Diff(e.Theirs))
}

// hasOtherTimings reports whether the row belongs to a process with different timings that may be alive. A row without
// timings counts as equal.
func (m *Member) hasOtherTimings(p *node.Member) bool {
	t := p.Timing
	return p.Present() && !p.ExitProven && t != (node.Timing{}) && t != m.cfg.Advert.Traits.Timing && m.cfg.Advert.Traits.Timing != (node.Timing{})
}

// compareTimings looks for nodes with different timings in the member list.
func (m *Member) compareTimings(now lease.Instant, members []node.Member) {
	waited := m.otherTimings.holdingBack
	m.otherTimings.holdingBack = false
	for i := range members {
		p := &members[i]
		old, known := m.otherTimings.rows[p.Incarnation]
		if !m.hasOtherTimings(p) || (!known && !m.otherTimings.joining) {
			continue
		}
		err := &TimingError{Node: p.Identity, Mine: m.cfg.Advert.Traits.Timing, Theirs: p.Timing}
		seen := m.otherTimings.rows.Observe(p.Incarnation, p.Seq, now, lease.Read{})
		switch {
		case !known:
			m.emit(Notice{Kind: TimingsDiffer, Member: *p, Err: err})
		case old.Value != p.Seq && m.stop.phase == stopNone:
			m.stopWithError(now, err)
			return
		}
		if now.Sub(seen.Since) >= p.Timing.NodeRegistrationTTL {
			delete(m.otherTimings.rows, p.Incarnation) // dead; if it wakes up, it counts as a later node
			continue
		}
		m.otherTimings.holdingBack = true
		m.heartbeats.wake = min(m.heartbeats.wake, now.Add(p.Timing.HeartbeatInterval*6/5))
	}
	m.otherTimings.joining = false
	m.heartbeats.wantMembers = m.heartbeats.wantMembers || m.otherTimings.holdingBack
	if waited != m.otherTimings.holdingBack {
		m.scheduleCampaign(now)
	}
}
