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
