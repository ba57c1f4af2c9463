package member

import (
	"cmp"
	"slices"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/internal/coordinator/lease"
	"github.com/emitd/emitd/storage"
)

// maxAbandonEmbargo bounds how long a unit is kept from a process in which a run of it was abandoned. The process
// starts nothing of the unit before that run has returned, so the embargo only saves useless attempts. It ends
// when the run returns; the bound helps if the store lost the report of that.
const maxAbandonEmbargo = time.Minute

// abandon reports that a run of the unit ignored its cancellation, so that another node may get the unit. From
// then on this process starts nothing under that generation, even if the run returns before the report is
// answered: the unit may already run elsewhere.
func (m *Member) abandon(u daemon.Unit, r *run, rec daemon.Record) {
	r.abandonedAs = rec.Generation
	m.runs.ran[u] = max(m.runs.ran[u], rec.Generation)
	m.report(u, rec.Generation, daemon.Abandon, storage.UnitReport{
		Reason:  "cancellation ignored",
		Embargo: min(embargoFor(rec, m.cfg.Node, m.t.AcknowledgeTimeout, true), maxAbandonEmbargo),
	})
}

// returned notes that a run which was reported as abandoned has returned. A queued report of the abandoning is
// dropped, because it is no longer true. One in flight has a lower sequence number than the heartbeat that
// reports the return, so it arrives before that heartbeat or is refused. Perhaps no node runs the unit now. The
// heartbeat therefore goes out early, but late enough to carry many returns at once.
func (m *Member) returned(now lease.Instant, run daemon.Fence) {
	if m.runs.pending[run.Unit].Step == daemon.Abandon {
		delete(m.runs.pending, run.Unit)
	}
	m.heartbeats.returned[run.Unit] = run.Generation
	if m.heartbeats.failures == 0 {
		m.heartbeats.wake = min(m.heartbeats.wake, now.Add(m.t.HeartbeatInterval/10))
	}
}

// returnedRuns lists the abandoned runs whose return the store may not know yet.
func (b *heartbeatState) returnedRuns() []daemon.Fence {
	out := make([]daemon.Fence, 0, len(b.returned))
	for u, generation := range b.returned {
		out = append(out, daemon.Fence{Unit: u, Generation: generation})
	}
	slices.SortFunc(out, func(a, b daemon.Fence) int {
		return cmp.Or(a.Unit.Compare(b.Unit), cmp.Compare(a.Generation, b.Generation))
	})
	return out
}

// forgetReportedReturns drops what the answered heartbeat reported.
func (b *heartbeatState) forgetReportedReturns() {
	for _, run := range b.returnsInFlight {
		if b.returned[run.Unit] == run.Generation {
			delete(b.returned, run.Unit)
		}
	}
	b.returnsInFlight = nil
}
