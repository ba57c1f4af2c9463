package member

import (
	"time"

	"github.com/emitd/emitd/internal/coordinator/lease"
	"github.com/emitd/emitd/node"
)

// peers is the membership as this node's hooks know it.
type peers struct {
	known map[node.Incarnation]KnownMember
}

// KnownMember is a member as this node knows it. Of the members that one list showed, all nodes of a process may share the rows.
type KnownMember struct {
	node.Identity
	row *node.Member // as a member list showed it, and never written to; nil if only an event told of it
}

// Row returns what is known of the member.
func (p KnownMember) Row() node.Member {
	if p.row != nil {
		return *p.row
	}
	return node.Member{Identity: p.Identity, State: node.Live}
}

// memberJoined notes a new member and informs the hooks, once.
func (m *Member) memberJoined(p KnownMember) {
	if _, ok := m.peers.known[p.Incarnation]; !ok {
		m.peers.known[p.Incarnation] = p
		m.emit(Notice{Kind: NodeJoined, Member: p})
	}
}

// memberLeft notes that a member is gone and informs the hooks, once.
func (m *Member) memberLeft(inc node.Incarnation, reason string) {
	if old, ok := m.peers.known[inc]; ok {
		delete(m.peers.known, inc)
		m.emit(Notice{Kind: NodeLeft, Member: old, Reason: reason})
	}
}

// observeMembers handles the whole member list: it informs the hooks of differences and records
// sightings.
func (m *Member) observeMembers(now lease.Instant, store time.Time, members []node.Member) {
	m.comparePeers(members)
	l := &m.leader
	if len(l.seqSeen) == 0 {
		l.expectRows(len(members))
	}
	for i := range members {
		l.observeRow(&members[i], now)
	}
	m.noteRowsRead(now, store)
	if m.leading() || len(l.seqSeen) == len(members) { // nothing but these rows was seen
		return
	}
	present := make(map[node.Incarnation]bool, len(members))
	for i := range members {
		present[members[i].Incarnation] = true
	}
	l.retainRows(func(inc node.Incarnation) bool { return present[inc] })
}

// comparePeers informs the hooks of what differs between the member list and what they know. Every newcomer compares a list,
// so a thousand that start at once compare a million rows. Most know nobody before, and nobody has left.
func (m *Member) comparePeers(members []node.Member) {
	if len(m.peers.known) == 0 {
		m.peers.known = make(map[node.Incarnation]KnownMember, len(members))
	}
	var joined []*node.Member
	stayed := 0
	for i := range members {
		if p := &members[i]; !p.Present() {
			continue
		} else if _, ok := m.peers.known[p.Incarnation]; ok {
			stayed++
		} else {
			joined = append(joined, p)
		}
	}
	if stayed < len(m.peers.known) {
		m.noteLeavers(members)
	}
	for _, p := range joined { // lists are sorted by incarnation
		m.memberJoined(KnownMember{p.Identity, p})
	}
}

// noteLeavers informs the hooks of the members that the list shows no longer.
func (m *Member) noteLeavers(members []node.Member) {
	old := make([]node.Member, 0, len(m.peers.known))
	for _, p := range m.peers.known {
		old = append(old, p.Row())
	}
	for _, c := range node.Diff(old, members) {
		if c.Kind == node.Left {
			m.memberLeft(c.Member.Incarnation, c.Reason)
		}
	}
}

// expectRows drops the sightings of rows and makes room for new ones.
func (l *leader) expectRows(n int) {
	l.seqSeen = make(lease.Observations[node.Incarnation, uint64], n)
	l.heartbeatStampSeen = make(lease.Observations[node.Incarnation, int64], n)
	l.echoSeen = make(lease.Observations[node.Incarnation, echo], n)
}

// observeRow records a node's row, as observed at now.
func (l *leader) observeRow(p *node.Member, now lease.Instant) {
	l.seqSeen.Observe(p.Incarnation, p.Seq, now, l.lastFastRead)
	l.heartbeatStampSeen.Observe(p.Incarnation, p.LastHeartbeatAt.UnixNano(), now, l.lastFastRead)
	if p.Present() {
		l.echoSeen.Observe(p.Incarnation, echo{p.ConfirmedSeq, p.RegisteredAt.UnixNano()}, now, l.lastFastRead)
	} else {
		delete(l.echoSeen, p.Incarnation) // a row that registers again starts anew
	}
}

// noteRowsRead records that a reply received at now showed all rows.
func (m *Member) noteRowsRead(now lease.Instant, store time.Time) {
	if m.clock.LastReplyFast() {
		m.leader.lastFastRead = lease.Read{At: now, Store: store}
	}
}

// rowUnchanged returns since when the node's row is unchanged, and the floor for its heartbeat's stamp.
func (l *leader) rowUnchanged(inc node.Incarnation) lease.Seen {
	return lease.Seen{Since: l.seqSeen[inc].Since, PreviousRead: l.heartbeatStampSeen[inc].PreviousRead}
}

// retainRows drops the sightings of processes for which row returns false.
func (l *leader) retainRows(row func(node.Incarnation) bool) {
	l.seqSeen.Retain(row)
	l.heartbeatStampSeen.Retain(row)
	l.echoSeen.Retain(row)
}
