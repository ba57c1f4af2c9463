package member

import (
	"fmt"
	"slices"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/internal/coordinator/lease"
	"github.com/emitd/emitd/node"
	"github.com/emitd/emitd/storage"
)

// applyDeadlines applies the deadlines to the pass's snapshot, received at now. It decides which nodes are
// late, deaf or dead, and which units may be taken from their holders. It collects these decisions
// as the pass's changes, and sets when the next deadline is due.
func (m *Member) applyDeadlines(now lease.Instant) {
	l := &m.leader
	l.changes, l.nodes, l.answers = nil, nil, nil
	clear(l.nodeStates)
	m.observeSilence(now)
	m.obeyRelease(now)
	rows := make(map[node.Incarnation]*node.Member, len(l.snap.Nodes))
	for i := range l.snap.Nodes {
		p := &l.snap.Nodes[i]
		rows[p.Incarnation] = p
		m.evaluateNode(now, p)
	}
	m.evaluateUnits(now, rows)
	if !l.formationChecked {
		l.formationChecked = true
		if len(l.index.holders) == 0 && m.justFormed() {
			l.noPlacementBefore = l.noPlacementBefore.Add(m.t.SettleWindow)
		}
	}
	if now < l.noPlacementBefore {
		m.requestPassAt(l.noPlacementBefore)
	}
	m.noteRowsRead(now, l.snap.Now)
	l.retainRows(func(inc node.Incarnation) bool { return rows[inc] != nil || l.holds(inc) })
}

// justFormed reports whether the cluster has only just formed, so that more nodes may be about to join.
// It has if no node with a heartbeat since this node joined has been a member for SettleWindow. A
// cluster is not young if nothing runs for a moment only because its leader ran everything and has
// left.
func (m *Member) justFormed() bool {
	l := &m.leader
	joined := l.snap.Now
	for i := range l.snap.Nodes {
		if p := &l.snap.Nodes[i]; p.Incarnation == m.cfg.Node.Incarnation {
			joined = p.RegisteredAt
		}
	}
	return !slices.ContainsFunc(l.snap.Nodes, func(p node.Member) bool {
		return p.Present() && !p.LastHeartbeatAt.Before(joined) && l.snap.Now.Sub(p.RegisteredAt) >= m.t.SettleWindow
	})
}

// holds reports whether the process inc holds a unit in the snapshot.
func (l *leader) holds(inc node.Incarnation) bool {
	for i := range l.snap.Units {
		if l.snap.Units[i].HeldBy(inc) {
			return true
		}
	}
	return false
}

// requestPassAt asks for a pass at the given moment, unless one is due earlier.
func (m *Member) requestPassAt(at lease.Instant) { m.leader.due = min(m.leader.due, at) }

// provablyElapsed reports whether d has provably passed since stamp. Either the store's clock says so and
// is trustworthy since the stamp or for d, or this node has seen the value unchanged for d (seen). Otherwise
// it asks for a pass at the moment when d may have passed.
func (m *Member) provablyElapsed(now lease.Instant, stamp time.Time, seen lease.Seen, d time.Duration) bool {
	if now.Sub(seen.Since) >= d {
		return true
	}
	at := seen.Since.Add(d)
	from := m.clock.CountFrom(stamp, d)
	if _, left, ok := m.clock.Left(from, d); ok && m.clock.MayFollow(stamp, seen) && !m.cfg.Store.NoClock {
		if m.clock.Passed(from, d) {
			return true
		}
		at = min(at, now.Add(left))
	}
	m.requestPassAt(at.Add(dueSlack))
	return false
}

// dueSlack is how long after a deadline its pass begins, so that one pass is enough.
const dueSlack = 5 * time.Millisecond

// evaluateNode decides whether a node is dead, late or deaf. It collects the change of its row, and
// sets the state that the plan will see.
func (m *Member) evaluateNode(now lease.Instant, p *node.Member) {
	l := &m.leader
	if !p.Present() {
		l.nodeStates[p.Incarnation] = node.Removed
		return
	}
	if why := m.deathReason(now, p); why != "" {
		l.nodeStates[p.Incarnation] = node.Removed
		l.nodes = append(l.nodes, storage.NodeChange{
			Guard: storage.NodeVersion{Incarnation: p.Incarnation, Seq: p.Seq}, State: node.Removed, Reason: why,
		})
		return
	}
	state, why := node.State(""), ""
	t := m.timingsFor(p.Incarnation)
	switch {
	case m.provablyElapsed(now, p.LastHeartbeatAt, l.rowUnchanged(p.Incarnation), t.Late()):
		state, why = node.Late, fmt.Sprintf("no heartbeat for %v", t.Late())
	case m.provablyElapsed(now, p.ConfirmedAt, l.echoSeen[p.Incarnation].Seen, t.NodeRegistrationTTL):
		state, why = node.Deaf, fmt.Sprintf("hears no reply for %v", t.NodeRegistrationTTL)
	}
	if state != p.LeaderState {
		change := storage.NodeChange{Guard: storage.NodeVersion{Incarnation: p.Incarnation, Seq: p.Seq}, State: state, Reason: why}
		switch state {
		case node.Late:
			change.ObservedAt = p.LastHeartbeatAt
		case node.Deaf:
			change.ObservedAt = p.ConfirmedAt
		default:
			change.State = node.Live
		}
		l.nodes = append(l.nodes, change)
	}
	switch {
	case p.State == node.Draining && state != node.Late:
		l.nodeStates[p.Incarnation] = node.Draining
	case state != "":
		l.nodeStates[p.Incarnation] = state
	default:
		l.nodeStates[p.Incarnation] = p.State
	}
	if state == node.Deaf && p.LeaderState != node.Deaf {
		// Deaf was found for the first time: take nothing from the node until a newer snapshot
		// shows the same. Its next heartbeat, which confirms a reply, may be on its way.
		l.nodeStates[p.Incarnation], l.passAgain = node.Late, true
	} else if state == node.Deaf && m.braked(now) {
		l.nodeStates[p.Incarnation] = node.Late
	}
}

// deathReason returns why the process behind the row counts as dead, or "". Either a process on the same
// host has exit evidence. Or the row has not changed for NodeRegistrationTTL, and every live node
// had time for a heartbeat since this leader was elected or the last outage ended (graceFrom).
//
// Example: the store is away for three minutes. When it returns, every row is unchanged for longer than
// NodeRegistrationTTL, and the node whose heartbeat is answered first is elected. Without that time its first pass would
// declare all other nodes dead, although their heartbeats are a moment behind.
func (m *Member) deathReason(now lease.Instant, p *node.Member) string {
	if p.Incarnation == m.cfg.Node.Incarnation {
		return ""
	}
	if p.ExitProven {
		return "process has ended, as a peer on its host witnessed"
	}
	t := m.timingsFor(p.Incarnation)
	if !m.provablyElapsed(now, p.LastHeartbeatAt, m.leader.rowUnchanged(p.Incarnation), t.NodeRegistrationTTL) {
		return ""
	}
	if at := m.leader.graceFrom.Add(t.Grace()); now < at {
		m.requestPassAt(at)
		return ""
	}
	if m.braked(now) {
		return ""
	}
	return fmt.Sprintf("no heartbeat for %v", t.NodeRegistrationTTL)
}

// evaluateUnit decides whether the unit may be taken from its holder. holder is the holder's row, or
// nil if there is none.
func (m *Member) evaluateUnit(now lease.Instant, r *daemon.Record, holder *node.Member) {
	l := &m.leader
	if r.State.IsFree() || !r.State.Known() {
		delete(l.units, r.Unit)
		return
	}
	expire := storage.Change{Unit: r.Unit, Step: daemon.Expire, Generation: r.Generation, State: r.State, Retired: r.Retired}
	seen := l.units.Observe(r.Unit, unitState{r.Generation, r.State}, now, l.lastFastRead)
	force, more := m.forceAfter(r), m.excess(r.Holder.Incarnation)
	switch {
	case m.holderGone(now, r.Holder.Incarnation, holder):
		expire.Dead = &storage.NodeVersion{Incarnation: r.Holder.Incarnation}
		expire.Reason, expire.Forced = "holder's row was removed", true
		if holder != nil {
			expire.Dead.Seq = holder.Seq
			expire.Reason = "holder is dead"
		} else {
			l.maybeUneven = true // the membership changed when the row went; the loads change only now
		}
	case r.State == daemon.Assigning && m.provablyElapsed(now, r.AssignedAt, seen, r.AcknowledgeTimeout+more):
		expire.Reason = fmt.Sprintf("not acknowledged within %v", r.AcknowledgeTimeout)
		expire.Embargo = embargoFor(*r, r.Holder, m.t.AcknowledgeTimeout, false)
	case r.State == daemon.Revoking && m.provablyElapsed(now, r.RevokedAt, seen, force+more):
		expire.Reason, expire.Forced = fmt.Sprintf("not drained within %v", force), true
	default:
		return
	}
	l.changes = append(l.changes, expire)
}

// holderGone reports whether the runs of the process that holds a unit have certainly ended. They
// have if its row was declared dead, or if there has been no row for NodeRegistrationTTL. A row
// that is missing for less may have been deleted under a live node, which will register again.
func (m *Member) holderGone(now lease.Instant, inc node.Incarnation, holder *node.Member) bool {
	if holder != nil {
		return m.leader.nodeStates[inc] == node.Removed
	}
	seen := m.leader.seqSeen.Observe(inc, 0, now, m.leader.lastFastRead)
	return m.provablyElapsed(now, time.Time{}, seen, m.timingsFor(inc).NodeRegistrationTTL)
}

// forceAfter returns how long after its revoke the unit may be taken from a holder that does not
// report.
func (m *Member) forceAfter(r *daemon.Record) time.Duration {
	return m.timingsFor(r.Holder.Incarnation).ForceAfter(r.DrainTimeout)
}
