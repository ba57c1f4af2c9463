package member

import (
	"fmt"

	"github.com/emitd/emitd/coordinator/lease"
	"github.com/emitd/emitd/node"
)

// Each node judges the others by its own timings, so those of a cluster must be equal: a node with a
// short lease takes a term over that its leader, with a long one, still trusts. A node that finds others
// which differ when it registers holds back: it does not stand, and is given no units, until it knows
// whether they live. If the row of one moves, it does, and this node ends; a row that has not moved for
// its own NodeRegistrationTTL is what a dead process left. Who comes later is not this node's to judge:
// it has found this one. No clock says who was first. Of two that find each other, both end.

// foreign is what a node knows of others that have other timings than it.
type foreign struct {
	joining bool                                      // the next list of members is the first since this node registered
	rows    lease.Sightings[node.Incarnation, uint64] // found when it did
	waiting bool                                      // for what becomes of them
}

// TimingError says that another node of the cluster lives with timings that are not this node's.
type TimingError struct {
	Node         node.Identity // the other
	Mine, Theirs node.Timing
}

func (e *TimingError) Error() string {
	return fmt.Sprintf("node %s of this cluster runs with other timings (%s): all nodes must have the same", e.Node.Name, e.Mine.Diff(e.Theirs))
}

// differs reports whether the row is that of a process with other timings that may live. One that does
// not say what it goes by is taken to agree.
func (m *Member) differs(p *node.Member) bool {
	t := p.Timing
	return p.Present() && !p.Witnessed && t != (node.Timing{}) && t != m.cfg.Advert.Traits.Timing && m.cfg.Advert.Traits.Timing != (node.Timing{})
}

// compareTimings looks for nodes with other timings in the list of all members.
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
			delete(m.foreign.rows, p.Incarnation) // dead; should it wake up all the same, it comes later
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
