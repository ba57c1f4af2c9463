package member

import (
	"fmt"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/internal/coordinator/lease"
	"github.com/emitd/emitd/internal/coordinator/plan"
	"github.com/emitd/emitd/node"
	"github.com/emitd/emitd/storage"
)

// brake holds back the take-over from silent nodes. If many of them fall silent at once, the cause is rather
// the network between them and the store than the nodes themselves, and their units would all go to the few others. The
// brake then holds for one NodeRegistrationTTL from the moment at which the first unit could be taken. It does not
// hold back what is safe and wanted anyway: proven ends, clean stops, and units that are free. An operator who knows that
// the nodes are dead can release it earlier.
//
// The brake is a state of the leader. After a change of leader it begins anew.
type brake struct {
	since lease.Instant // 0 = it does not hold and did not hold for these nodes
	over  bool          // its time has passed, or an operator has released it: what looks dead counts as dead
	// releasedBy is the ID of the command that released it last.
	releasedBy string
	// mass is set while so many nodes look dead at once; dead and of are their number and that of all nodes.
	mass     bool
	dead, of int
}

// observeSilence counts the nodes that look dead in the pass's snapshot, before the deadlines are applied to any of them.
func (m *Member) observeSilence(now lease.Instant) {
	l := &m.leader
	nodes := make([]plan.Node, len(l.snap.Nodes))
	for i := range l.snap.Nodes {
		p := &l.snap.Nodes[i]
		l.observeRow(p, now)
		nodes[i] = plan.Node{Member: *p, State: p.State}
		if !p.Present() || p.Incarnation == m.cfg.Node.Incarnation {
			continue
		}
		t := m.timingsFor(p.Incarnation)
		switch {
		case m.provablyElapsed(now, p.LastHeartbeatAt, l.rowUnchanged(p.Incarnation), t.Late()):
			nodes[i].State = node.Late
		case m.provablyElapsed(now, p.ConfirmedAt, l.echoSeen[p.Incarnation].Seen, t.NodeRegistrationTTL):
			nodes[i].State = node.Deaf
		}
	}
	b := &l.brake
	b.dead, b.of, b.mass = plan.MassDeath(nodes, m.cfg.BrakePercent)
	b.mass = b.mass && m.cfg.BrakePercent > 0
	if b.mass || b.since == 0 {
		return
	}
	if !b.over {
		l.graceFrom = now // the first nodes are back: give the others time, as after an outage
		m.releaseBrake(fmt.Sprintf("%d of %d nodes look dead", b.dead, b.of))
	}
	b.since, b.over = 0, false
}

// obeyRelease carries out the commands to release the brake, before any node is judged, and answers them. An answer may be
// lost with its commit, so a command that was carried out is answered again for as long as it is open.
func (m *Member) obeyRelease(now lease.Instant) {
	l := &m.leader
	b := &l.brake
	for i := range l.snap.Commands {
		c := &l.snap.Commands[i]
		if c.Kind != daemon.CommandRelease || c.Term != 0 && c.Term != m.election.held.Number { // the plan refuses that one
			continue
		}
		switch {
		case c.ID == b.releasedBy:
		case !b.mass || b.over:
			l.answers = append(l.answers, storage.CommandResult{ID: c.ID, Result: daemon.ResultRefused + ": the brake does not hold", Done: true})
			continue
		default:
			if b.since == 0 {
				b.since = now
			}
			b.over, b.releasedBy = true, c.ID
			m.releaseBrake(releasedBy(c) + fmt.Sprintf("; %d of %d nodes look dead", b.dead, b.of))
		}
		l.answers = append(l.answers, storage.CommandResult{ID: c.ID, Result: daemon.ResultDone, Done: true})
	}
}

// releasedBy says who released the brake, and why.
func releasedBy(c *daemon.Command) string {
	text := "released by an operator"
	if c.Actor != "" {
		text = "released by " + c.Actor
	}
	if c.Reason != "" {
		text += " (" + c.Reason + ")"
	}
	return text
}

// releaseBrake informs the history and the hooks.
func (m *Member) releaseBrake(why string) {
	m.leader.events = append(m.leader.events, daemon.Event{Kind: daemon.BrakeReleased, Reason: why})
	m.emit(Notice{Kind: BrakeReleased, Reason: why})
}

// braked reports whether the brake keeps this pass from taking units of a node that looks dead or deaf.
func (m *Member) braked(now lease.Instant) bool {
	b, hold := &m.leader.brake, m.timings.longest.NodeRegistrationTTL
	if !b.mass || b.over {
		return false
	}
	if b.since == 0 {
		b.since = now
		why := fmt.Sprintf("%d of %d nodes look dead; nothing is taken from them for %v", b.dead, b.of, hold)
		m.leader.events = append(m.leader.events, daemon.Event{Kind: daemon.BrakeHeld, Reason: why})
		m.emit(Notice{Kind: BrakeHeld, Reason: why})
	}
	if until := b.since.Add(hold); now < until {
		m.requestPassAt(until.Add(dueSlack))
		return true
	}
	b.over = true
	m.releaseBrake(fmt.Sprintf("held for %v; %d of %d nodes still look dead", hold, b.dead, b.of))
	return false
}
