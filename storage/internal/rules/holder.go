package rules

import (
	"cmp"
	"slices"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/node"
	"github.com/emitd/emitd/storage"
)

// Report applies one report of a holder, or refuses it and changes nothing. It requires the exact holder and
// generation, and a pair of state and step that the lifecycle table has. Repeating one's own report is harmless.
// Term is the number of the present term.
func Report(r Rows, who node.Identity, u storage.UnitReport, term int64, now time.Time) storage.Outcome {
	old := r.Unit(u.Unit)
	if old == nil {
		return storage.Outcome{Unit: u.Unit}
	}
	own := old.Holder.ID == who.ID && old.Holder.Incarnation == who.Incarnation && old.Generation == u.Generation
	if own && alreadyTaken(*old, u.Step) {
		return storage.Outcome{Unit: u.Unit, Applied: true, Record: *old}
	}
	next, ok := daemon.Next(old.State, u.Step)
	if !own || !ok || !isHolderStep(u.Step) {
		return storage.Outcome{Unit: u.Unit, Record: *old}
	}
	rec := *old
	rec.State = next
	if !u.Step.IsHealthReport() {
		rec.Since = now
	}
	if !u.Step.KeepsHolder() {
		rec.Reason = u.Reason
	}
	rec.Error = cmp.Or(u.Error, rec.Error)
	if !u.Step.KeepsHolder() {
		rec.RetryAt = time.Time{}
	}
	kind := takeStep(r, &rec, u, term, now)
	r.Put(rec)
	if kind != "" {
		event := unitEvent(kind, rec)
		event.Reason = u.Reason
		r.Emit(event, now)
	}
	return storage.Outcome{Unit: u.Unit, Applied: true, Record: rec}
}

// isHolderStep reports whether the holder takes a step; the leader takes the others.
func isHolderStep(step daemon.Step) bool {
	switch step {
	case daemon.Acknowledge, daemon.Postpone, daemon.Confirm, daemon.Release, daemon.Abandon, daemon.Resume, daemon.Fail, daemon.Recover:
		return true
	}
	return false
}

// alreadyTaken reports whether a row of the same holder and generation shows that a step was taken. It cannot show a
// resumption or postponement, because those gave the row another generation.
func alreadyTaken(rec daemon.Record, step daemon.Step) bool {
	switch step {
	case daemon.Acknowledge:
		return rec.State == daemon.Active
	case daemon.Recover:
		return rec.State == daemon.Active && rec.Failures == 0
	case daemon.Confirm, daemon.Release, daemon.Abandon:
		return rec.State == daemon.Deleted
	}
	return false
}

// takeStep writes what a step changes besides state, time and reason, and returns the kind of its event. Every
// change of state has exactly one event; a release with a failure has the event of the failure. If a run fails
// again and again, only the first report has an event. Otherwise a unit that crashes in a loop would fill the
// history.
func takeStep(r Rows, rec *daemon.Record, u storage.UnitReport, term int64, now time.Time) daemon.EventKind {
	switch u.Step {
	case daemon.Acknowledge:
		return daemon.AssignmentActive
	case daemon.Fail:
		first := rec.FailingSince.IsZero()
		rec.Failures = max(rec.Failures, u.Failures, 1)
		setFailingSince(rec, now)
		rec.RetryAt = now.Add(u.RetryIn)
		if first {
			return daemon.AssignmentFailing
		}
		return ""
	case daemon.Recover:
		rec.Failures, rec.FailingSince, rec.RetryAt = 0, time.Time{}, time.Time{}
		return daemon.AssignmentRecovered
	case daemon.Release:
		rec.Forced = false
		if u.Embargo != 0 {
			rec.Embargoes = embargo(r, rec.Embargoes, daemon.Embargo{Incarnation: rec.Holder.Incarnation, Node: rec.Holder.Name, Length: u.Embargo, Reason: u.Reason}, now)
		}
		if u.Error != "" {
			rec.Failures += max(u.Failures, 1)
			setFailingSince(rec, now)
			return daemon.AssignmentFailed
		}
	case daemon.Abandon:
		// The run continues somewhere in the process, so the unit changes hands by force.
		rec.Forced = true
		if u.Embargo != 0 {
			rec.Embargoes = embargo(r, rec.Embargoes,
				daemon.Embargo{Incarnation: rec.Holder.Incarnation, Node: rec.Holder.Name, Length: u.Embargo, Reason: u.Reason, AbandonedGeneration: rec.Generation}, now)
		}
		return daemon.AssignmentAbandoned
	case daemon.Resume:
		rec.Generation = renewedGeneration(r, *rec, term)
		return daemon.AssignmentResumed
	case daemon.Postpone:
		// Because of the higher generation, an expiry that the leader decided before fails its guard.
		rec.Generation, rec.AssignedAt = renewedGeneration(r, *rec, term), now
		rec.AcknowledgeTimeout = cmp.Or(u.AcknowledgeTimeout, rec.AcknowledgeTimeout)
		return daemon.AssignmentPostponed
	default:
		rec.Forced = false
	}
	return daemon.AssignmentDeleted
}

// setFailingSince records when the failures of a unit began.
func setFailingSince(rec *daemon.Record, now time.Time) {
	if rec.FailingSince.IsZero() {
		rec.FailingSince = now
	}
}

// renewedGeneration returns the generation that a holder's own step gives its unit. It is at least the present
// term, whose number is higher than every generation of a lost history.
func renewedGeneration(r Rows, rec daemon.Record, term int64) int64 {
	_, seen := r.Highest()
	return max(nextGeneration(r, rec, seen), term)
}

// nextGeneration returns the generation of the unit's next run. It is higher than the unit's last generation, than
// every one that a node has seen, and than the fence's stamp. It is at least the unit's term. The stamp counts
// because a failover may have kept it and lost the row.
func nextGeneration(r Rows, rec daemon.Record, seen int64) int64 {
	return storage.NextGeneration(rec.Generation, rec.Term, max(seen, r.Fence(rec.Unit)))
}

// embargo returns the list with one process's embargo added or raised by a strike. If the older embargo is still in
// force, the later of the two ends counts. An embargo for a failure and one for an abandoned run stand beside each
// other, because only the latter ends when the run returns. The function also drops embargoes of processes whose
// row is gone, which bounds the list.
func embargo(r Rows, list []daemon.Embargo, e daemon.Embargo, now time.Time) []daemon.Embargo {
	e.Until, e.Strikes = now.Add(e.Length), 1
	out := make([]daemon.Embargo, 0, len(list)+1)
	for _, old := range list {
		switch {
		case old.Incarnation == e.Incarnation && (old.AbandonedGeneration == 0) == (e.AbandonedGeneration == 0):
			e.Strikes = old.Strikes + 1
			if old.InForce(now) && old.Until.After(e.Until) {
				e.Until, e.Length = old.Until, old.Length
			}
		case r.Node(old.Incarnation) != nil:
			out = append(out, old)
		}
	}
	out = append(out, e)
	slices.SortFunc(out, func(a, b daemon.Embargo) int {
		return cmp.Or(cmp.Compare(a.Incarnation, b.Incarnation), cmp.Compare(a.AbandonedGeneration, b.AbandonedGeneration))
	})
	return out
}

// EndEmbargoes ends the embargoes of abandoned runs that a heartbeat reports as returned, and reports whether there
// were any.
func EndEmbargoes(r Rows, b storage.Heartbeat) (lifted bool) {
	for _, run := range b.ReturnedRuns {
		old := r.Unit(run.Unit)
		if old == nil {
			continue
		}
		ends := func(e daemon.Embargo) bool { return e.EndsWith(b.Node.Incarnation, run) }
		if !slices.ContainsFunc(old.Embargoes, ends) {
			continue
		}
		rec := *old
		rec.Embargoes = slices.DeleteFunc(slices.Clone(old.Embargoes), ends)
		r.Put(rec)
		lifted = true
	}
	return lifted
}
