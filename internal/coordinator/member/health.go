package member

import (
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/internal/coordinator/lease"
	"github.com/emitd/emitd/storage"
)

// health tracks the failures of a run, for the cluster to see. The supervisor restarts a run that fails, and the
// unit stays active in the store. Without a report, a unit in a crash loop would look like one that works.
// Reports follow heartbeats: at most one per interval and unit, and none for a run that failed once.
type health struct {
	before   int           // failures of the unit in the store when the run began; 0 once an attempt has lasted
	failures int           // attempts of this run that have failed and returned
	hangs    bool          // the present attempt has failed, and has not returned
	err      error         // the last failure
	retryAt  lease.Instant // when the supervisor starts it again
	// recoveredAt is when it will have run long enough to clear the failures; Never until it has begun, and while it hangs.
	recoveredAt lease.Instant
}

// crashLoopFailures is the number of failures in a row from which on a run counts as being in a crash loop.
const crashLoopFailures = 2

// onRunFailed counts a failure of a run that the supervisor will start again.
func (m *Member) onRunFailed(now lease.Instant, in RunFailed) {
	m.emit(Notice{Kind: UnitFailed, Fence: in.Fence, Err: in.Err})
	r := m.runs.live[in.Fence.Unit]
	if r == nil || r.Generation != in.Fence.Generation {
		return
	}
	if in.Lasted && r.Started { // one that never gets ready has not worked, however long it takes to fail
		r.health.before, r.health.failures = 0, 0
	}
	retry := now.Add(in.RetryIn)
	r.health.err, r.health.retryAt, r.health.hangs = in.Err, retry, in.Hangs
	if in.Hangs {
		r.health.recoveredAt = lease.Never // the failure is reported again when the attempt has returned, and counts then
		return
	}
	r.health.failures++
	r.health.recoveredAt = retry.Add(r.recoversAfter)
}

// recoversAfter returns after how long an attempt that has not failed has cleared the failures before it. If it fails
// sooner, the supervisor knows how long it lasted. What it counts of an attempt that stalls ends when its progress ceased.
// That it has stalled is known a quarter more than the stall timeout later at the latest, and its failure once it has
// returned or has ignored its cancellation for StopTimeout.
func (m *Member) recoversAfter(s *daemon.Spec) time.Duration {
	if s.StallTimeout == 0 {
		return daemon.FailuresResetAfter
	}
	return daemon.FailuresResetAfter + s.StallTimeout + s.StallTimeout/4 + m.t.StopTimeout
}

// count returns the number of the unit's failures in a row.
func (h health) count() int {
	if h.hangs {
		return h.before + h.failures + 1
	}
	return h.before + h.failures
}

// total returns the number of the unit's failures after the run has ended.
func (h health) total(e RunEnded) int {
	if e.How == GaveUp {
		return h.before + max(h.failures+1, e.Failures) // the last failure ended the run
	}
	return h.count()
}

// reportHealth queues reports of runs in a crash loop, and of runs that have recovered. It is called after an
// answered heartbeat.
func (m *Member) reportHealth(now lease.Instant) {
	for _, u := range m.runs.sorted {
		r, l := m.runs.live[u], m.runs.listed[u]
		if _, busy := m.runs.pending[u]; busy || l == nil || l.rec.Generation != r.Generation || r.Draining || r.Cancelled {
			continue
		}
		if now >= r.health.recoveredAt && l.rec.State == daemon.Active {
			r.health = health{recoveredAt: lease.Never}
		}
		h, failures := r.health, r.health.count()
		switch {
		case failures < l.rec.Failures && l.rec.State == daemon.Active: // an attempt has lasted, though it may have failed since
			m.report(u, r.Generation, daemon.Recover, storage.UnitReport{})
		case failures >= crashLoopFailures && failures > l.rec.Failures && h.err != nil:
			text := h.err.Error()
			m.report(u, r.Generation, daemon.Fail, storage.UnitReport{
				Reason: text, Error: text, Failures: failures, RetryIn: max(h.retryAt.Sub(now), 0),
			})
		}
	}
}
