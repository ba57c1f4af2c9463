package member

import (
	"fmt"

	"github.com/emitd/emitd/coordinator/lease"
	"github.com/emitd/emitd/node"
)

// Each node judges the others by its own timings, so those of a cluster must be equal: a node with a
// short lease takes a term over that its leader, with a long one, still trusts. Of two that differ, the
// one that registered later holds back: it does not stand, and is given no units, until it knows whether
// the other lives. If that one's row moves, it does, and this node ends; a row that has not moved for its
// own NodeRegistrationTTL is what a dead process left.

// foreign is what a node knows of others that have other timings than it.
type foreign struct {
	rows    lease.Sightings[node.Incarnation, uint64]
	waiting bool // for what becomes of them
}

// TimingError says that another node of the cluster lives with timings that are not this node's.
type TimingError struct {
	Node         node.Identity // the other
	Mine, Theirs node.Timing
}

func (e *TimingError) Error() string {
	return fmt.Sprintf("node %s of this cluster runs with other timings (%s): all nodes must have the same", e.Node.Name, e.Mine.Diff(e.Theirs))
}

// differs reports whether the row is that of a process with other timings. One that does not say
// what it goes by is taken to agree.
func (m *Member) differs(p *node.Member) bool {
	t := p.Timing
	return p.Present() && t != (node.Timing{}) && t != m.cfg.Advert.Traits.Timing && m.cfg.Advert.Traits.Timing != (node.Timing{})
}

// compareTimings looks for nodes with other timings in the list of all members.
func (m *Member) compareTimings(now lease.Instant, members []node.Member) {
	waited := m.foreign.waiting
	m.foreign.waiting = false
	self := m.row(members)
	for i := range members {
		p := &members[i]
		if !m.differs(p) || (self != nil && !before(p, self)) {
			continue
		}
		err := &TimingError{Node: p.Identity, Mine: m.cfg.Advert.Traits.Timing, Theirs: p.Timing}
		old, known := m.foreign.rows[p.Incarnation]
		seen := m.foreign.rows.See(p.Incarnation, p.Seq, now, lease.Read{})
		switch {
		case !known:
			m.emit(Notice{Kind: TimingsDiffer, Member: *p, Err: err})
		case old.Value != p.Seq && m.stop.phase == stopNone:
			m.stop.err = err
			m.beginStop(now)
			return
		}
		if now.Sub(seen.Since) < p.Timing.NodeRegistrationTTL {
			m.foreign.waiting = true
			m.beat.wake = min(m.beat.wake, now.Add(p.Timing.HeartbeatInterval*6/5))
		}
	}
	m.beat.wantMembers = m.beat.wantMembers || m.foreign.waiting
	if waited != m.foreign.waiting {
		m.schedule(now)
	}
}

// row returns this process's own row of the list, or nil.
func (m *Member) row(members []node.Member) *node.Member {
	for i := range members {
		if members[i].Incarnation == m.cfg.Node.Incarnation {
			return &members[i]
		}
	}
	return nil
}

// before reports whether p registered before q.
func before(p, q *node.Member) bool {
	if !p.RegisteredAt.Equal(q.RegisteredAt) {
		return p.RegisteredAt.Before(q.RegisteredAt)
	}
	return p.Incarnation < q.Incarnation
}
