package member

import (
	"cmp"
	"slices"
	"time"

	"github.com/emitd/emitd/coordinator/lease"
	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/storage"
)

// longestAbandoned bounds how long a unit is kept from a process in which a run of it was abandoned. The
// process starts nothing of the unit before that run has returned, so the embargo only spares the tries. It
// ends with the return; the bound is for a store that has lost the word of that.
const longestAbandoned = time.Minute

// abandon reports that a run of the unit ignored its cancellation, so that another node may have the unit. From
// then on this process starts nothing under that generation, even if the run returns before the answer: by
// then the unit may run elsewhere.
func (m *Member) abandon(u daemon.Unit, r *run, rec daemon.Record) {
	r.abandonedAs = rec.Generation
	m.runs.ran[u] = max(m.runs.ran[u], rec.Generation)
	m.report(u, rec.Generation, daemon.Abandon, storage.UnitReport{
		Reason:  "context ignored",
		Embargo: min(embargoFor(rec, m.cfg.Node.Incarnation, m.t.AcknowledgeTimeout, true), longestAbandoned),
	})
}

// returned notes that a run which was reported abandoned has returned. A report of it that was not sent is
// not true any more. One that is under way has a lower sequence number than the heartbeat that tells of the return:
// it arrives before that heartbeat or is refused. That heartbeat goes out a little earlier than it would, because
// the unit may run nowhere, and late enough for many returns to go in one.
func (m *Member) returned(now lease.Instant, run daemon.Fence) {
	if m.runs.pending[run.Unit].Step == daemon.Abandon {
		delete(m.runs.pending, run.Unit)
	}
	m.beat.returned[run.Unit] = run.Generation
	if m.beat.failures == 0 {
		m.beat.wake = min(m.beat.wake, now.Add(m.t.HeartbeatInterval/10))
	}
}

// returnedRuns lists the abandoned runs whose return the store is not known to have been told.
func (b *beat) returnedRuns() []daemon.Fence {
	out := make([]daemon.Fence, 0, len(b.returned))
	for u, generation := range b.returned {
		out = append(out, daemon.Fence{Unit: u, Generation: generation})
	}
	slices.SortFunc(out, func(a, b daemon.Fence) int {
		return cmp.Or(a.Unit.Compare(b.Unit), cmp.Compare(a.Generation, b.Generation))
	})
	return out
}

// toldReturned forgets what the store was told by the heartbeat that was answered.
func (b *beat) toldReturned() {
	for _, run := range b.telling {
		if b.returned[run.Unit] == run.Generation {
			delete(b.returned, run.Unit)
		}
	}
	b.telling = nil
}
