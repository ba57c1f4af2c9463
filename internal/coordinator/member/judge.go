package member

import (
	"fmt"
	"slices"
	"time"

	"github.com/emitd/emitd/coordinator/lease"
	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/node"
	"github.com/emitd/emitd/storage"
)

// judge applies the deadlines to the pass's snapshot, received at now. It decides which nodes are
// late, deaf or dead, and which units may be taken from their holders. It collects these decisions
// as the pass's changes, and sets when the next deadline is due.
func (m *Member) judge(now lease.Instant) {
	l := &m.leader
	l.changes, l.nodes = l.changes[:0:0], l.nodes[:0:0]
	clear(l.verdict)
	rows := make(map[node.Incarnation]*node.Member, len(l.snap.Nodes))
	for i := range l.snap.Nodes {
		p := &l.snap.Nodes[i]
		rows[p.Incarnation] = p
		l.see(p, now)
		m.judgeNode(now, p)
	}
	running := false
	for i := range l.snap.Units {
		r := &l.snap.Units[i]
		running = running || (r.State.Known() && !r.State.Free())
		m.judgeUnit(now, r, rows[r.Holder.Incarnation])
	}
	if !l.settled {
		l.settled = true
		if !running && m.young() {
			l.settle = l.settle.Add(m.t.SettleWindow)
		}
	}
	if now < l.settle {
		m.dueAt(l.settle)
	}
	m.readRows(now, l.snap.Now)
	l.keep(func(inc node.Incarnation) bool { return rows[inc] != nil || l.holds(inc) })
}

// young reports whether the cluster has only just formed, so that more nodes may be about to join.
// It has if no node with a heartbeat since this node joined has been a member for SettleWindow. A
// cluster is not young if nothing runs for a moment only because its leader ran everything and has
// left.
func (m *Member) young() bool {
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

// dueAt asks for a pass at the given moment, unless one is due earlier.
func (m *Member) dueAt(at lease.Instant) { m.leader.due = min(m.leader.due, at) }

// elapsed reports whether d has provably passed since stamp. Either the store's clock says so and
// is trustworthy since the stamp, or this node has seen the value unchanged for d (seen). Otherwise
// elapsed asks for a pass at the moment when d may have passed.
func (m *Member) elapsed(now lease.Instant, stamp time.Time, seen lease.Seen, d time.Duration) bool {
	if now.Sub(seen.Since) >= d {
		return true
	}
	at := seen.Since.Add(d)
	if _, left, ok := m.clock.Left(stamp, d); ok && m.clock.Fits(stamp, seen) && !m.cfg.Store.NoClock {
		if m.clock.Passed(stamp, d) {
			return true
		}
		at = min(at, now.Add(left))
	}
	m.dueAt(at.Add(dueSlack))
	return false
}

// dueSlack is how long after a deadline its pass begins, so that one pass is enough.
const dueSlack = 5 * time.Millisecond

// judgeNode decides whether a node is dead, late or deaf. It collects the change of its row, and
// sets the state that the plan will see.
func (m *Member) judgeNode(now lease.Instant, p *node.Member) {
	l := &m.leader
	if !p.Present() {
		l.verdict[p.Incarnation] = node.Removed
		return
	}
	if why := m.dead(now, p); why != "" {
		l.verdict[p.Incarnation] = node.Removed
		l.nodes = append(l.nodes, storage.NodeChange{
			Guard: storage.NodeGuard{Incarnation: p.Incarnation, Seq: p.Seq}, State: node.Removed, Reason: why,
		})
		return
	}
	judged, why := node.State(""), ""
	switch {
	case m.elapsed(now, p.LastHeartbeatAt, l.beat(p.Incarnation), m.t.Late()):
		judged, why = node.Late, fmt.Sprintf("no heartbeat for %v", m.t.Late())
	case m.elapsed(now, p.HeardAt, l.heard[p.Incarnation].Seen, m.t.NodeRegistrationTTL):
		judged, why = node.Deaf, fmt.Sprintf("hears no reply for %v", m.t.NodeRegistrationTTL)
	}
	if judged != p.Judged {
		change := storage.NodeChange{Guard: storage.NodeGuard{Incarnation: p.Incarnation, Seq: p.Seq}, State: judged, Reason: why}
		switch judged {
		case node.Late:
			change.Stamp = p.LastHeartbeatAt
		case node.Deaf:
			change.Stamp = p.HeardAt
		default:
			change.State = node.Live
		}
		l.nodes = append(l.nodes, change)
	}
	switch {
	// A node with other timings counts as draining: it gives back its units and is given none.
	case (p.State == node.Draining || m.differs(p)) && judged != node.Late:
		l.verdict[p.Incarnation] = node.Draining
	case judged != "":
		l.verdict[p.Incarnation] = judged
	default:
		l.verdict[p.Incarnation] = p.State
	}
	if judged == node.Deaf && p.Judged != node.Deaf {
		// Deaf was found for the first time: take nothing from the node until a newer snapshot
		// shows the same. Its next heartbeat, which confirms a reply, may be on its way.
		l.verdict[p.Incarnation], l.redo = node.Late, true
	}
}

// dead returns why the process behind the row counts as dead, or "". Either a process on the same
// host has exit evidence. Or the row has not changed for NodeRegistrationTTL, and every live node
// had time for a heartbeat since this leader was elected or the last outage ended (grace).
func (m *Member) dead(now lease.Instant, p *node.Member) string {
	if p.Incarnation == m.cfg.Node.Incarnation {
		return ""
	}
	if p.Witnessed {
		return "process has ended, as a peer on its host witnessed"
	}
	if !m.elapsed(now, p.LastHeartbeatAt, m.leader.beat(p.Incarnation), m.t.NodeRegistrationTTL) {
		return ""
	}
	if now < m.leader.grace {
		m.dueAt(m.leader.grace)
		return ""
	}
	return fmt.Sprintf("no heartbeat for %v", m.t.NodeRegistrationTTL)
}

// judgeUnit decides whether the unit may be taken from its holder. holder is the holder's row, or
// nil if there is none.
func (m *Member) judgeUnit(now lease.Instant, r *daemon.Record, holder *node.Member) {
	l := &m.leader
	if r.State.Free() || !r.State.Known() {
		delete(l.units, r.Unit)
		return
	}
	expire := storage.Change{Unit: r.Unit, Step: daemon.Expire, Generation: r.Generation, State: r.State, Retired: r.Retired}
	seen := l.units.See(r.Unit, holding{r.Generation, r.State}, now, l.read)
	switch {
	case m.holderGone(now, r.Holder.Incarnation, holder):
		expire.Dead = &storage.NodeGuard{Incarnation: r.Holder.Incarnation}
		expire.Reason, expire.Forced = "holder is gone", true
		if holder != nil {
			expire.Dead.Seq = holder.Seq
			expire.Reason = "holder is dead"
		}
	case r.State == daemon.Assigning && m.elapsed(now, r.AssignedAt, seen, r.AcknowledgeTimeout):
		expire.Reason = fmt.Sprintf("not acknowledged within %v", r.AcknowledgeTimeout)
		expire.Embargo = embargoFor(*r, r.Holder.Incarnation, m.t.AcknowledgeTimeout, false)
	case r.State == daemon.Revoking && m.elapsed(now, r.RevokedAt, seen, m.forceAfter(r)):
		expire.Reason, expire.Forced = fmt.Sprintf("not drained within %v", m.forceAfter(r)), true
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
		return m.leader.verdict[inc] == node.Removed
	}
	seen := m.leader.beats.See(inc, 0, now, m.leader.read)
	return m.elapsed(now, time.Time{}, seen, m.t.NodeRegistrationTTL)
}

// forceAfter returns how long after its revoke the unit may be taken from a holder that does not
// report.
func (m *Member) forceAfter(r *daemon.Record) time.Duration {
	return m.t.ForceAfter(r.DrainTimeout)
}
