package member

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/internal/coordinator/lease"
	"github.com/emitd/emitd/node"
	"github.com/emitd/emitd/storage"
)

// runs holds the runs of this process and the units that the store lists for it.
type runs struct {
	live   map[daemon.Unit]*run     // runs that have not returned
	sorted []daemon.Unit            // the units of live
	listed map[daemon.Unit]*listing // units held by this incarnation, as in the newest reply
	// ran is the highest generation of each unit under which this process started a run.
	ran map[daemon.Unit]int64
	// endings are runs that have ended although the store still lists them.
	endings map[daemon.Unit]ending

	pending  map[daemon.Unit]storage.UnitReport // the next report of each unit
	inFlight uint64                             // the ID of the report in flight; 0 = none
	batch    []storage.UnitReport
	size     batch
	failures int
	retry    lease.Instant
	// reportFailedAt is when a report last failed, even though the store may have applied it. The next report waits for a
	// reply to a heartbeat that was sent since.
	reportFailedAt lease.Instant
	// lastAnsweredSent is when the newest answered heartbeat was sent. A state that its reply did not show is younger than
	// that.
	lastAnsweredSent lease.Instant
	// next is the earliest deadline of a live run.
	next lease.Instant
}

// listing is a record of this node's own unit, as the store returned it.
type listing struct {
	rec  daemon.Record
	sent lease.Instant // when the newest call that returned it was sent
	// end is when the acknowledge or drain timeout of the state may be over for the leader, less the margin.
	end lease.Instant
}

// run is one run that has not returned.
type run struct {
	localRun
	validUntil      lease.Instant // end of the validity, less StopTimeout
	ackBy           lease.Instant // deadline to be acknowledged; Never once it is
	drainBy         lease.Instant // drain deadline; Never until draining
	abandonAt       lease.Instant // when to ask (again) whether the agent ignores the cancellation; Never until cancelled
	abandonReported bool          // whether that was reported at least once
	// abandonedAs is the newest generation under which this run was reported as abandoned; 0 = not reported.
	abandonedAs int64
	cause       CancelCause
	health      health
	// recoversAfter is after how long an attempt that has not failed has cleared the failures before it.
	recoversAfter time.Duration
	began         lease.Instant
}

// ending is how a run ended. cause is the reason of its cancellation, if it was cancelled.
type ending struct {
	RunEnded
	cause    CancelCause
	failures int // in a row, those of the unit's earlier runs included
}

// phase returns the phase of the run for status.
func (r *run) phase() string {
	switch {
	case r.Abandoned:
		return "abandoned"
	case r.Cancelled:
		return "cancelled"
	case r.Draining:
		return "draining"
	case r.Started:
		return "running"
	}
	return "starting"
}

// deadline returns the next moment at which time alone decides something about the run.
func (r *run) deadline() lease.Instant {
	switch {
	case r.Abandoned:
		return lease.Never
	case r.Cancelled:
		return r.abandonAt
	}
	return min(r.validUntil, r.ackBy, r.drainBy)
}

// add adds a run that begins.
func (rs *runs) add(u daemon.Unit, r *run) {
	if i, found := slices.BinarySearchFunc(rs.sorted, u, daemon.Unit.Compare); !found {
		rs.sorted = slices.Insert(rs.sorted, i, u)
	}
	rs.live[u], rs.ran[u] = r, r.Generation
}

// remove removes a run that has returned.
func (rs *runs) remove(u daemon.Unit) {
	if i, found := slices.BinarySearchFunc(rs.sorted, u, daemon.Unit.Compare); found {
		rs.sorted = slices.Delete(rs.sorted, i, i+1)
	}
	delete(rs.live, u)
}

func (rs *runs) init() {
	rs.live, rs.listed = map[daemon.Unit]*run{}, map[daemon.Unit]*listing{}
	rs.ran, rs.endings = map[daemon.Unit]int64{}, map[daemon.Unit]ending{}
	rs.pending = map[daemon.Unit]storage.UnitReport{}
	rs.next, rs.size = lease.Never, newBatch()
}

// runsValidUntil returns until when all runs of this node may go on without another answered heartbeat: the earliest
// of their bounds.
func (m *Member) runsValidUntil() lease.Instant {
	trust := lease.Never
	for _, r := range m.runs.live {
		if !r.Abandoned {
			trust = min(trust, r.validUntil)
		}
	}
	return trust
}

// nextRun returns when the next run has a deadline or a report must be sent.
func (m *Member) nextRun() lease.Instant {
	if m.mayReport() {
		return min(m.runs.next, m.runs.retry)
	}
	return m.runs.next
}

// mayReport reports whether there is something to report and it may be sent now. The newest heartbeat must have
// been answered: after an outage its reply comes first. It must have been sent after the last report failed,
// because the store may have been replaced by another one to which the report does not apply. No report or
// heartbeat may be in flight: they share one sequence of numbers, and a call that is overtaken by a later one is
// refused as stale.
func (m *Member) mayReport() bool {
	rs := &m.runs
	return len(rs.pending) > 0 && rs.inFlight == 0 && m.heartbeats.inFlight == 0 &&
		m.heartbeats.everAnswered && m.heartbeats.failures == 0 && m.heartbeats.lastAnsweredSent >= rs.reportFailedAt && m.stop.phase < stopDeregister
}

// ageDeadlines moves all deadlines that were counted from earlier replies to d earlier, because the local clock may have
// stood still for that long. The leader decides the timeouts of runs that drain or are not acknowledged, and its
// clock went on. If instead the store's clock was set forward, such a run only ends early. The validity of runs
// and of leadership counts from the reply that showed the step, so it does not change.
func (m *Member) ageDeadlines(d time.Duration) {
	if d == 0 {
		return
	}
	earlier := func(at lease.Instant) lease.Instant {
		if at == lease.Never {
			return at
		}
		return at.Add(-d)
	}
	m.runs.lastAnsweredSent = earlier(m.runs.lastAnsweredSent)
	for _, l := range m.runs.listed {
		l.end = earlier(l.end)
	}
	for _, r := range m.runs.live {
		r.ackBy, r.drainBy = earlier(r.ackBy), earlier(r.drainBy)
	}
	m.recomputeNext()
}

// recomputeNext recomputes the earliest deadline of all runs.
func (m *Member) recomputeNext() {
	m.runs.next = lease.Never
	for _, r := range m.runs.live {
		m.runs.next = min(m.runs.next, r.deadline())
	}
}

// checkRunDeadlines acts on deadlines of runs that have passed: validity, acknowledgement, drain, and the time to return
// after a cancellation.
func (m *Member) checkRunDeadlines(now lease.Instant) {
	if now < m.runs.next {
		return
	}
	for _, u := range m.runs.sorted {
		r := m.runs.live[u]
		switch {
		case r.Abandoned:
		case r.Cancelled:
			if now >= r.abandonAt {
				r.abandonReported, r.abandonAt = true, now.Add(m.t.StopTimeout)
				m.emit(Abandon{Fence: daemon.Fence{Unit: u, Generation: r.Generation}})
			}
		case now >= r.validUntil:
			m.cancel(now, u, r, CauseValidityEnded)
		case now >= r.ackBy:
			m.starts.halveLimit(now, r.began)
			m.cancel(now, u, r, CauseAckDeadline)
		case now >= r.drainBy:
			m.cancel(now, u, r, CauseDrainDeadline)
		}
	}
	m.recomputeNext()
}

// lastCancelDeadline returns when the last cancelled run has had StopTimeout to return.
func (rs *runs) lastCancelDeadline() lease.Instant {
	var last lease.Instant
	for _, r := range rs.live {
		if r.Cancelled && !r.abandonReported {
			last = max(last, r.abandonAt)
		}
	}
	return last
}

// cancel cancels the run's context. The agent then has StopTimeout to return.
func (m *Member) cancel(now lease.Instant, u daemon.Unit, r *run, why CancelCause) {
	r.Cancelled, r.cause, r.abandonAt = true, why, now.Add(m.t.StopTimeout)
	m.runs.next = min(m.runs.next, r.abandonAt)
	m.emit(Cancel{Fence: daemon.Fence{Unit: u, Generation: r.Generation}, Cause: why})
}

// onRunAbandoned handles the report that an agent still executes although its context was cancelled. A run that
// has not entered its agent, or has returned by now, is not abandoned: its RunEnded is on its way.
func (m *Member) onRunAbandoned(now lease.Instant, f daemon.Fence) {
	r := m.runs.live[f.Unit]
	if r == nil || r.Generation != f.Generation || !r.Cancelled || r.Abandoned {
		return
	}
	r.Abandoned = true
	m.recomputeNext()
	m.emit(Notice{Kind: UnitAbandoned, Fence: f, Reason: string(r.cause)})
	m.reconcile(now, f.Unit)
}

// onListed handles the complete list of own units in the reply to the heartbeat sent at sent.
func (m *Member) onListed(now, sent lease.Instant, records []daemon.Record) {
	seen := make(map[daemon.Unit]bool, len(records))
	for i := range records {
		seen[records[i].Unit] = true
		m.applyListed(now, sent, &records[i])
		m.reconcile(now, records[i].Unit)
	}
	for u := range m.runs.listed {
		if !seen[u] {
			m.unlist(u)
		}
	}
	for _, u := range m.runs.sorted {
		if !seen[u] {
			m.reconcile(now, u)
		}
	}
	m.runs.lastAnsweredSent = sent
	m.reportHealth(now)
	m.recomputeNext()
}

// unlist drops what was noted of a unit that the store no longer lists for this node.
func (m *Member) unlist(u daemon.Unit) {
	delete(m.runs.listed, u)
	delete(m.runs.endings, u)
	delete(m.runs.pending, u)
}

// applyListed handles one record of an own unit, returned by a call that was sent at sent.
func (m *Member) applyListed(now, sent lease.Instant, rec *daemon.Record) {
	u := rec.Unit
	m.noteHighest(rec.Term, rec.Generation)
	old := m.runs.listed[u]
	switch {
	case old != nil && rec.Generation < old.rec.Generation && !m.storeChangedWithin(now, m.t.NodeRegistrationTTL):
		return // this was read before a report that has been answered since
	case old == nil || old.rec.Generation != rec.Generation:
		delete(m.runs.pending, u)
		if w := m.starts.queued[u]; rec.State == daemon.Assigning && (old == nil || w == nil || w.postponeReported != old.rec.Generation) {
			m.emit(Notice{Kind: UnitAssigned, Fence: rec.Fence(), Term: rec.Term})
		}
		fallthrough
	case old.rec.State != rec.State:
		if !rec.State.Known() {
			m.emit(Notice{Kind: UnitUnknown, Fence: rec.Fence(), Reason: string(rec.State)})
		}
		m.runs.listed[u] = &listing{rec: m.copyOf(rec), sent: sent, end: m.stateDeadline(rec)}
	default:
		old.rec, old.sent = m.copyOf(rec), sent
	}
	if r := m.runs.live[u]; r != nil && r.Generation == rec.Generation && !r.Cancelled {
		r.validUntil = max(r.validUntil, m.runValidUntil(sent))
		if rec.State == daemon.Active {
			r.ackBy = lease.Never
		}
	}
}

// copyOf copies the record of an own unit. The texts that name the holder are this node's, because it may have thousands of units.
func (m *Member) copyOf(rec *daemon.Record) daemon.Record {
	own := *rec
	if own.Holder == m.cfg.Node {
		own.Holder = m.cfg.Node
	}
	return own
}

// runValidUntil returns until when a run may go on if a call sent at sent listed it.
func (m *Member) runValidUntil(sent lease.Instant) lease.Instant {
	return sent.Add(m.t.ValidFor(m.t.NodeRegistrationTTL) - m.t.StopTimeout)
}

// stateDeadline returns until when this node may use the timeout of a state that it sees for the first time. The
// leader counts the timeout from the store's stamp. Two lower bounds for its end hold, and the later one counts.
// First, the stamp is not older than the newest answered heartbeat before, which did not show the state. Second,
// if the store's clock did not step since the stamp, the time left by that clock counts from before the call.
func (m *Member) stateDeadline(rec *daemon.Record) lease.Instant {
	stamp, d := rec.AssignedAt, rec.AcknowledgeTimeout
	switch rec.State {
	case daemon.Assigning:
	case daemon.Revoking:
		stamp, d = rec.RevokedAt, rec.DrainTimeout
	default:
		return lease.Never
	}
	end := m.runs.lastAnsweredSent.Add(d)
	if at, left, ok := m.clock.Left(stamp, d); ok {
		end = max(end, at.Add(left))
	}
	return end.Add(-m.t.Margin(d))
}

// reconcile carries out what the table in reconcile.go says about the unit.
func (m *Member) reconcile(now lease.Instant, u daemon.Unit) {
	var listed *daemon.Record
	l := m.runs.listed[u]
	if l != nil {
		listed = &l.rec
	}
	var local *localRun
	r := m.runs.live[u]
	if r != nil {
		local = &r.localRun
	}
	//exhaustive:enforce
	switch reconcile(listed, local, m.runs.ran[u]) {
	case actionNothing:
	case actionStart:
		m.start(now, l)
	case actionAcknowledge:
		m.report(u, listed.Generation, daemon.Acknowledge, storage.UnitReport{})
	case actionResume:
		m.resume(now, *listed)
	case actionDrain:
		m.drain(u, r, l.end)
	case actionCancel:
		m.cancel(now, u, r, CauseNotListed)
	case actionConfirm:
		m.report(u, listed.Generation, daemon.Confirm, storage.UnitReport{Reason: m.endReason(u)})
	case actionAbandon:
		m.abandon(u, r, *listed)
	case actionRelease:
		m.release(u, *listed)
	}
}

// endReason returns why the unit's run ended, for the report that confirms the end.
func (m *Member) endReason(u daemon.Unit) string {
	switch e := m.runs.endings[u]; {
	case e.cause != "" && e.Err != nil:
		return fmt.Sprintf("cancelled: %s: %v", e.cause, e.Err)
	case e.cause != "":
		return "cancelled: " + string(e.cause)
	case e.Err != nil:
		return e.Err.Error()
	}
	return "drained"
}

// spec returns this node's own spec of the daemon.
func (m *Member) spec(id daemon.ID) daemon.Spec {
	for _, s := range m.cfg.Advert.Specs {
		if s.ID == id {
			return s
		}
	}
	return daemon.Spec{ID: id}
}

// resume asks for a new generation of an active unit whose run on this node has ended.
func (m *Member) resume(now lease.Instant, rec daemon.Record) {
	u := rec.Unit
	if e, ok := m.runs.endings[u]; ok && e.How != Returned && e.How != FenceRefused {
		m.release(u, rec)
		return
	}
	switch {
	case m.stop.phase != stopNone:
		m.report(u, rec.Generation, daemon.Release, storage.UnitReport{Reason: "node stops"})
	case m.lostUnitsMayRun(now):
	case m.store.changedAt != 0 && m.election.seen.Number <= m.store.term:
		// This node comes from a former primary with higher terms. The present leader may go on for long: give the unit back.
		m.report(u, rec.Generation, daemon.Release, storage.UnitReport{Reason: "former run had ended"})
	default:
		m.report(u, rec.Generation, daemon.Resume, storage.UnitReport{Reason: "former run had ended"})
	}
}

// drain tells the run to finish by the given moment.
func (m *Member) drain(u daemon.Unit, r *run, by lease.Instant) {
	r.Draining, r.drainBy, r.ackBy = true, by, lease.Never
	m.runs.next = min(m.runs.next, r.deadline())
	f := daemon.Fence{Unit: u, Generation: r.Generation}
	m.emit(Drain{Fence: f})
	m.emit(Notice{Kind: UnitDraining, Fence: f})
}

// release gives back a unit whose run on this node has ended.
func (m *Member) release(u daemon.Unit, rec daemon.Record) {
	e, ended := m.runs.endings[u]
	rep := storage.UnitReport{Failures: e.failures - rec.Failures, Embargo: m.embargo(rec)}
	if !ended { // given up before a run began under this generation; see abandon
		m.report(u, rec.Generation, daemon.Release, storage.UnitReport{Reason: "an earlier run had not returned"})
		return
	}
	switch e.How {
	case GaveUp:
		rep.Reason = fmt.Sprintf("gave up after %d failures", e.Failures)
	case Released:
		rep.Reason = "released by the agent"
	case FenceRefused:
		// No fault of the daemon: a store that is too slow for everybody would make it look sick on many nodes.
		rep.Reason = fmt.Sprintf("fence could not be stamped: %v", e.Err)
		if generationTooLow(e.RunEnded) {
			rep.Embargo = 0 // the next generation will be high enough
		}
		m.report(u, rec.Generation, daemon.Release, rep)
		return
	case NoAgent:
		rep.Reason = "no such agent on this node"
	case Returned:
		rep.Reason = "not ready in time"
	}
	if e.Err != nil && e.How != Released {
		rep.Error = e.Err.Error()
	}
	m.report(u, rec.Generation, daemon.Release, rep)
}

// maxEmbargo bounds how long a unit is kept from a process on which it failed.
const maxEmbargo = 10 * time.Minute

// embargo returns how long to keep the unit from this process after a failure. It doubles with each failure.
func (m *Member) embargo(rec daemon.Record) time.Duration {
	return embargoFor(rec, m.cfg.Node, m.t.AcknowledgeTimeout, false)
}

// embargoFor returns how long to keep a unit from a process on which it failed, or in which a run of it was
// abandoned.
func embargoFor(rec daemon.Record, who node.Identity, base time.Duration, abandoned bool) time.Duration {
	strikes := 0
	for _, e := range rec.Embargoes {
		mine := e.Incarnation == who.Incarnation || !abandoned && e.Node != "" && e.Node == who.Name
		if mine && (e.AbandonedGeneration != 0) == abandoned {
			strikes += e.Strikes
		}
	}
	return min(base<<min(strikes, 10), maxEmbargo)
}

// onRunStarted handles the start of a run. It queues the acknowledgement.
func (m *Member) onRunStarted(now lease.Instant, f daemon.Fence) {
	r := m.runs.live[f.Unit]
	if r == nil || r.Generation != f.Generation || r.Started {
		return
	}
	r.Started = true
	if r.health.before > 0 {
		r.health.recoveredAt = now.Add(r.recoversAfter)
	}
	m.starts.started(now, f.Unit)
	m.emit(Notice{Kind: UnitStarted, Fence: f})
	m.reconcile(now, f.Unit)
}

// onRunEnded handles the end of a run. It queues the confirmation, or gives the unit back.
func (m *Member) onRunEnded(now lease.Instant, e RunEnded) {
	u := e.Fence.Unit
	r := m.runs.live[u]
	if r == nil || r.Generation != e.Fence.Generation {
		return
	}
	m.runs.remove(u)
	delete(m.starts.slots, u)
	m.recomputeNext()
	if r.abandonedAs != 0 {
		m.returned(now, daemon.Fence{Unit: u, Generation: r.abandonedAs})
	}
	reason := string(r.cause)
	if reason == "" && r.Draining {
		reason = "drained"
	}
	if e.How == GaveUp {
		m.emit(Notice{Kind: UnitFailed, Fence: e.Fence, Err: e.Err})
	}
	m.emit(Notice{Kind: UnitStopped, Fence: e.Fence, Reason: reason, Err: e.Err})
	if l := m.runs.listed[u]; l != nil && l.rec.Generation == r.Generation {
		m.runs.endings[u] = ending{e, r.cause, r.health.total(e)}
	}
	if m.stop.phase == stopLeaving && r.Draining {
		return // the row is not revoking yet; the leave will make it so
	}
	if l := m.runs.listed[u]; e.How == FenceRefused && !generationTooLow(e) && l != nil && l.rec.State == daemon.Active {
		return // the next heartbeat resumes it: an agent that refuses every start must not cause a tight loop
	}
	m.reconcile(now, u)
}

// generationTooLow reports whether the run was refused because its generation is too low. The next generation will not be.
func generationTooLow(e RunEnded) bool {
	var stale *daemon.StaleError
	return errors.As(e.Err, &stale) && stale.HeldGeneration > e.Fence.Generation
}
