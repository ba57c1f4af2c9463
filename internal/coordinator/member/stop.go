package member

import (
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/internal/coordinator/lease"
	"github.com/emitd/emitd/node"
	"github.com/emitd/emitd/storage"
)

// stop is the state of a clean stop. The steps are: publish LeadershipLost and wait for leader-only work;
// resign and mark the node as draining in one call; drain all runs in parallel and confirm each as
// it ends; deregister.
type stop struct {
	phase         stopPhase
	deadline      lease.Instant // deregister at this moment, whatever still runs
	drain         lease.Instant // when draining began
	leaveInFlight bool          // a leave without a resignation is in flight
	retry         lease.Instant // when to send it again
	drainKnown    bool          // the store knows that this node drains
	// resign is a term that the next leave gives up: the resignation failed, or a heartbeat that
	// was in flight won the election. 0 = none.
	resign int64
	err    error // why the node stops by itself; nil if Stop was asked for
}

// stopPhase is the step of the stop that is under way.
type stopPhase uint8

const (
	stopNone       stopPhase = iota
	stopLeaving              // leader-only work ends; the leave is in flight
	stopDraining             // runs drain
	stopDeregister           // the last call is in flight
	stopDone
)

// next returns when the stop must be continued.
func (s *stop) next() lease.Instant {
	if s.phase != stopLeaving && s.phase != stopDraining {
		return lease.Never
	}
	if s.phase == stopDraining && !s.drainKnown && !s.leaveInFlight {
		return min(s.deadline, s.retry)
	}
	return s.deadline
}

// beginStop begins a clean stop.
func (m *Member) beginStop(now lease.Instant) {
	if m.stop.phase != stopNone {
		return
	}
	t := m.t
	m.stop.phase = stopLeaving
	m.stop.deadline = now.Add(t.LeaderStopTimeout + m.longestDrain() + t.StopTimeout + t.QueryTimeout)
	m.election.campaignAt = lease.Never
	switch {
	case m.leading():
		m.resign(now, node.Shutdown, 0, "", "")
	case m.election.resigning.number != 0: // the resignation is under way, and it will also drain
	default:
		m.sendDrainLeave(now)
	}
}

// sendDrainLeave marks the node as draining.
func (m *Member) sendDrainLeave(now lease.Instant) {
	if !m.heartbeats.everAnswered {
		m.stop.drainKnown = true // there is no row to mark
		m.beginDrain(now, now)
		return
	}
	m.stop.leaveInFlight = true
	m.send(now, callLeave, Call{Leave: &storage.Leave{
		Node: m.cfg.Node, Seq: m.nextSeq(), Resign: m.stop.resign, Reason: node.Shutdown, Drain: true, DrainTimeout: m.t.DrainTimeout,
	}})
}

// onStopLeave handles the answer to the leave of a stop. A failed leave is repeated while the runs
// drain: without it their rows are not revoked, and the units stay here until this node is declared
// dead.
func (m *Member) onStopLeave(now, sent lease.Instant, err error) {
	m.stop.leaveInFlight = false
	if err == nil || errors.Is(err, storage.ErrNotRegistered) {
		m.stop.drainKnown = true
		m.revokeListed(sent)
	} else {
		m.stop.retry = now.Add(m.jitter(4 * firstRetry))
	}
	m.beginDrain(now, sent)
}

// revokeListed applies to the listed records what the leave did in the store. Runs that have ended
// can then be confirmed without another round trip.
func (m *Member) revokeListed(sent lease.Instant) {
	for _, l := range m.runs.listed {
		if l.rec.State == daemon.Assigning || l.rec.State == daemon.Active {
			d := m.drainTimeout(l)
			l.rec.State, l.end = daemon.Revoking, sent.Add(d-m.t.Margin(d))
			if r := m.runs.live[l.rec.Unit]; r != nil && r.Generation == l.rec.Generation {
				r.ackBy = lease.Never
			}
			if p, ok := m.runs.pending[l.rec.Unit]; ok && p.Step != daemon.Confirm {
				delete(m.runs.pending, l.rec.Unit)
			}
		}
	}
}

// drainTimeout returns the drain timeout that the store uses for the unit, or the node's own if the
// unit is not listed.
func (m *Member) drainTimeout(l *listing) time.Duration {
	if l != nil && l.rec.DrainTimeout > 0 {
		return l.rec.DrainTimeout
	}
	return m.t.DrainTimeout
}

// longestDrain returns the time within which every run on this node has drained: the node's
// timeout, or the longest of a daemon that needs more.
func (m *Member) longestDrain() time.Duration {
	longest := m.t.DrainTimeout
	for u := range m.runs.live {
		longest = max(longest, m.drainTimeout(m.runs.listed[u]))
	}
	return longest
}

// beginDrain drains every run. The store counts their drain timeouts from a moment after sent, when
// the leave was sent. While it is unknown whether the leave arrived, the acknowledge deadlines
// stay.
func (m *Member) beginDrain(now, sent lease.Instant) {
	if m.stop.phase != stopLeaving {
		return
	}
	m.stop.phase, m.stop.drain = stopDraining, now
	m.stop.deadline = min(m.stop.deadline, now.Add(m.longestDrain()+m.t.StopTimeout+m.t.QueryTimeout))
	// At the end of the stop, every run has been cancelled for StopTimeout and has either returned
	// or been abandoned.
	last := m.stop.deadline.Add(-m.t.StopTimeout)
	for _, u := range m.runs.sorted {
		r := m.runs.live[u]
		switch ackBy := r.ackBy; {
		case r.Cancelled:
		case r.Draining: // it was revoked before, perhaps with more time than is left
			r.drainBy = min(r.drainBy, last)
		default:
			m.drain(u, r, min(sent.Add(m.drainTimeout(m.runs.listed[u])), last))
			if !m.stop.drainKnown {
				r.ackBy = ackBy
			}
		}
	}
	m.recomputeNext()
	for _, u := range slices.SortedFunc(maps.Keys(m.runs.listed), daemon.Unit.Compare) {
		m.reconcile(now, u)
	}
}

// checkStopDeadline ends a phase that has used up its time. A process that was paused may not have told its
// runs to end, or only just now: they get the time of a cancelled run.
func (m *Member) checkStopDeadline(now lease.Instant) {
	if now < m.stop.deadline {
		return
	}
	switch m.stop.phase {
	case stopLeaving:
		m.stop.deadline = now.Add(m.t.StopTimeout)
		m.beginDrain(now, now)
	case stopDraining:
		if last := m.runs.lastCancelDeadline(); last > now {
			m.stop.deadline = last
			return
		}
		m.deregister(now)
	}
}

// advanceStop moves on when a phase has nothing left to do.
func (m *Member) advanceStop(now lease.Instant) {
	switch m.stop.phase {
	case stopLeaving:
		if m.election.resigning.number == 0 && !m.stop.leaveInFlight {
			m.sendDrainLeave(now) // resigning was given up: the lease runs out
		}
	case stopDraining:
		if !m.stop.drainKnown && !m.stop.leaveInFlight && now >= m.stop.retry {
			m.sendDrainLeave(now)
		}
		if m.drained() {
			m.deregister(now)
		}
	}
}

// drained reports whether every run has returned or was abandoned, and the store knows it.
func (m *Member) drained() bool {
	for _, r := range m.runs.live {
		if !r.Abandoned {
			return false
		}
	}
	if m.heartbeats.failures > 0 {
		return true // the store cannot be reached; it frees the units when this node is declared dead
	}
	return len(m.runs.pending) == 0 && m.runs.inFlight == 0 && m.stop.drainKnown
}

// deregister sends the last call. Its answer or its timeout ends the member.
func (m *Member) deregister(now lease.Instant) {
	m.stop.phase = stopDeregister
	if !m.heartbeats.everAnswered && m.heartbeats.inFlight == 0 {
		m.finish()
		return
	}
	m.send(now, callDeregister, Call{Leave: &storage.Leave{
		Node: m.cfg.Node, Seq: m.nextSeq(), Resign: m.stop.resign, Drain: true, Deregister: true, Reason: node.Shutdown, DrainTimeout: m.t.DrainTimeout,
	}})
}

// finish ends the member with the effect Stopped.
func (m *Member) finish() {
	m.stop.phase = stopDone
	m.emit(Stopped{Err: m.stop.err})
}
