package member

import (
	"maps"
	"slices"

	"github.com/emitd/emitd/coordinator/lease"
	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/storage"
)

// health is how a run does, as far as the cluster should know. A run that fails is started again by the
// supervisor and stays active in the store, so without a word a unit that crashes in a loop looks like one
// that works. Reports go with the rhythm of heartbeats: at most one per interval and unit, and none for a
// run that failed once.
type health struct {
	before   int           // failures of the unit that the store knew when the run began
	failures int           // those of the run
	err      error         // of the last one
	retryAt  lease.Instant // when the supervisor starts it again
	wellAt   lease.Instant // when it will have lived long enough to forget them; Never until it was entered
}

// loopsFrom is how many failures in a row are a crash loop.
const loopsFrom = 2

// onRunFailed counts a failure of a run that will be started again.
func (m *Member) onRunFailed(now lease.Instant, in RunFailed) {
	m.emit(Notice{Kind: UnitFailed, Fence: in.Fence, Err: in.Err})
	r := m.runs.live[in.Fence.Unit]
	if r == nil || r.Generation != in.Fence.Generation {
		return
	}
	retry := now.Add(in.RetryIn)
	r.health.failures++
	r.health.err, r.health.retryAt, r.health.wellAt = in.Err, retry, retry.Add(daemon.WellAfter)
}

// total returns the unit's failures after the end of the run.
func (h health) total(e RunEnded) int {
	if e.How == GaveUp {
		return h.before + max(h.failures+1, e.Failures) // the last one ended it
	}
	return h.before + h.failures
}

// reportHealth tells the store which runs fail again and again, and which are well again. It follows an
// answered heartbeat.
func (m *Member) reportHealth(now lease.Instant) {
	for _, u := range slices.SortedFunc(maps.Keys(m.runs.live), daemon.Unit.Compare) {
		r, l := m.runs.live[u], m.runs.listed[u]
		if _, busy := m.runs.pending[u]; busy || l == nil || l.rec.Generation != r.Generation || r.Draining || r.Cancelled {
			continue
		}
		h := r.health
		switch {
		case now >= h.wellAt && l.rec.State == daemon.Active:
			if l.rec.Failures > 0 {
				m.report(u, r.Generation, daemon.Recover, storage.UnitReport{})
			}
			r.health = health{wellAt: lease.Never}
		case h.before+h.failures >= loopsFrom && h.before+h.failures > l.rec.Failures && h.err != nil:
			text := h.err.Error()
			m.report(u, r.Generation, daemon.Fail, storage.UnitReport{
				Reason: text, Error: text, Failures: h.before + h.failures, RetryIn: max(h.retryAt.Sub(now), 0),
			})
		}
	}
}
