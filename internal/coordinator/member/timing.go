package member

import (
	"fmt"

	"github.com/emitd/emitd/coordinator/lease"
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

// foreign is what a node knows about others with different timings.
type foreign struct {
	joining bool                                      // the next member list is the first since this node registered
	rows    lease.Sightings[node.Incarnation, uint64] // the rows that this list showed
	waiting bool                                      // until it is known whether they are alive
}

// TimingError reports that another node of the cluster is alive with different timings.
type TimingError struct {
	Node         node.Identity // the other node
	Mine, Theirs node.Timing
}

func (e *TimingError) Error() string {
	return fmt.Sprintf("node %s of this cluster runs with other timings (%s): all nodes must have the same", e.Node.Name, e.Mine.Diff(e.Theirs))
}

// differs reports whether the row belongs to a process with different timings that may be alive. A row without
// timings counts as equal.
func (m *Member) differs(p *node.Member) bool {
	t := p.Timing
	return p.Present() && !p.Witnessed && t != (node.Timing{}) && t != m.cfg.Advert.Traits.Timing && m.cfg.Advert.Traits.Timing != (node.Timing{})
}

// compareTimings looks for nodes with different timings in the member list.
func (m *Member) compareTimings(now lease.Instant, members []node.Member) {
	waited := m.foreign.waiting
	m.foreign.waiting = false
	for i := range members {
		p := &members[i]
		old, known := m.foreign.rows[p.Incarnation]
		if !m.differs(p) || (!known && !m.foreign.joining) {
			continue
		}
		err := &TimingError{Node: p.Identity, Mine: m.cfg.Advert.Traits.Timing, Theirs: p.Timing}
		seen := m.foreign.rows.See(p.Incarnation, p.Seq, now, lease.Read{})
		switch {
		case !known:
			m.emit(Notice{Kind: TimingsDiffer, Member: *p, Err: err})
		case old.Value != p.Seq && m.stop.phase == stopNone:
			m.endWith(now, err)
			return
		}
		if now.Sub(seen.Since) >= p.Timing.NodeRegistrationTTL {
			delete(m.foreign.rows, p.Incarnation) // dead; if it wakes up, it counts as a later node
			continue
		}
		m.foreign.waiting = true
		m.beat.wake = min(m.beat.wake, now.Add(p.Timing.HeartbeatInterval*6/5))
	}
	m.foreign.joining = false
	m.beat.wantMembers = m.beat.wantMembers || m.foreign.waiting
	if waited != m.foreign.waiting {
		m.schedule(now)
	}
}
