package member

import (
	"errors"
	"slices"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/internal/coordinator/lease"
	"github.com/emitd/emitd/storage"
)

// report queues a step of a unit to be reported to the store. A newer step of the same unit replaces it.
func (m *Member) report(u daemon.Unit, generation int64, step daemon.Step, rep storage.UnitReport) {
	rep.Unit, rep.Generation, rep.Step = u, generation, step
	if old, ok := m.runs.pending[u]; ok && old.Step == step && old.Generation == generation {
		return
	}
	m.runs.pending[u] = rep
}

// sendReports sends the queued reports, as many as one batch may carry.
func (m *Member) sendReports(now lease.Instant) {
	rs := &m.runs
	if now < rs.retry || !m.mayReport() {
		return
	}
	rs.batch = rs.batch[:0]
	for _, rep := range rs.pending {
		rs.batch = append(rs.batch, rep)
	}
	slices.SortFunc(rs.batch, func(a, b storage.UnitReport) int { return a.Unit.Compare(b.Unit) })
	rs.batch = rs.batch[:rs.size.atMost(len(rs.batch))]
	m.send(now, callReport, Call{Report: &storage.Report{
		Node: m.cfg.Node, Seq: m.nextSeq(), StoreID: m.store.id, HighestGeneration: m.highestGeneration,
		Units: slices.Clone(rs.batch),
	}})
	rs.inFlight = m.callID
}

// onReport handles the answer to a report. After a failure it is unknown what was applied, so the next report
// waits for a new list of units.
func (m *Member) onReport(now lease.Instant, res Result) {
	rs := &m.runs
	rs.inFlight = 0
	if res.Err != nil {
		rs.failures++
		rs.size.failed()
		rs.retry = now.Add(m.jitter(m.retryAfter(rs.failures)))
		rs.reportFailedAt = now
		if errors.Is(res.Err, storage.ErrNotRegistered) {
			m.noteRemoved(now)
		}
		if m.heartbeats.failures == 0 {
			m.beatSoon(now)
		}
		return
	}
	rs.failures, rs.retry = 0, now
	rs.size.succeeded()
	for i := range res.Outcomes {
		m.onOutcome(now, &res.Outcomes[i])
	}
	rs.batch, rs.pending = nil, shrunk(rs.pending)
	if m.leading() {
		m.leader.requestPass()
	}
}

// forgetReports drops all queued reports, and the one in flight, after the store was replaced by another one.
// What still holds follows again from the units that the new store lists.
func (m *Member) forgetReports() {
	clear(m.runs.pending)
	m.runs.inFlight = 0
	for id, c := range m.calls {
		if c.kind == callReport {
			delete(m.calls, id)
		}
	}
}

// onOutcome handles the result of one report. Its record counts like a listing, but it extends no validity: the
// leader looks at the node's row, and only the newest answered heartbeat stamped that.
func (m *Member) onOutcome(now lease.Instant, o *storage.Outcome) {
	rs, rec, u := &m.runs, &o.Record, o.Unit
	for _, rep := range rs.batch {
		if p, ok := rs.pending[u]; ok && rep.Unit == u && p.Step == rep.Step && p.Generation == rep.Generation {
			delete(rs.pending, u)
		}
	}
	m.noteHighest(rec.Term, rec.Generation)
	if l := rs.listed[u]; l != nil && rec.Generation < l.rec.Generation && !m.storeChangedWithin(now, m.t.NodeRegistrationTTL) {
		return // a heartbeat that read later has been answered already
	}
	if rec.HeldBy(m.cfg.Node.Incarnation) {
		m.applyListed(now, m.heartbeats.lastAnsweredSent, rec)
	} else {
		m.unlist(u)
	}
	m.reconcile(now, u)
}
