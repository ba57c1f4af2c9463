package memory

import (
	"cmp"
	"slices"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/internal/planted"
	"github.com/emitd/emitd/node"
	"github.com/emitd/emitd/storage"
)

// report takes the holder's steps, each judged by itself.
func (s *state) report(r storage.Report, now time.Time) ([]storage.Outcome, error) {
	row := s.present(r.Node.Incarnation)
	switch {
	case row == nil:
		return nil, storage.ErrNotRegistered
	case r.Seq <= row.Seq && !planted.Bug(planted.LateSeqAccepted):
		return nil, storage.ErrStaleSeq
	}
	row.Seq = r.Seq
	row.HighestGeneration = max(row.HighestGeneration, r.HighestGeneration)
	for _, inc := range r.Witness {
		if m := s.present(inc); m != nil && inc != r.Node.Incarnation && !m.Witnessed {
			m.Witnessed = true
			s.wakeLeader()
		}
	}
	out := make([]storage.Outcome, len(r.Units))
	for i, u := range r.Units {
		out[i] = s.reportUnit(row.Identity, u, now)
	}
	return out, nil
}

// reportUnit applies one report, or refuses it and changes nothing. It wants the exact holder
// and generation, and a pair of the lifecycle table. Repeating one's own report is harmless.
func (s *state) reportUnit(who node.Identity, r storage.UnitReport, now time.Time) storage.Outcome {
	old := s.units.get(r.Unit)
	if old == nil {
		return storage.Outcome{Unit: r.Unit}
	}
	own := old.Holder.ID == who.ID && old.Holder.Incarnation == who.Incarnation && old.Generation == r.Generation
	if own && already(old.State, r.Step) {
		return storage.Outcome{Unit: r.Unit, Applied: true, Record: *old}
	}
	next, ok := daemon.Next(old.State, r.Step)
	if planted.Bug(planted.AckFromRevoking) && old.State == daemon.Revoking && r.Step == daemon.Acknowledge {
		next, ok = daemon.Active, true
	}
	if !own || !ok || !holders(r.Step) {
		return storage.Outcome{Unit: r.Unit, Record: *old}
	}
	rec := *old
	rec.State, rec.Since = next, now
	if !r.Step.Stays() {
		rec.Reason = r.Reason
	}
	if r.Error != "" {
		rec.Error = r.Error
	}
	kind := s.takeStep(&rec, r, now)
	event := unitEvent(kind, rec)
	event.Reason = r.Reason
	s.put(rec)
	s.emit(event, now)
	s.wakeLeader()
	return storage.Outcome{Unit: r.Unit, Applied: true, Record: rec}
}

// holders reports whether a step is the holder's to take; the others are the leader's.
func holders(step daemon.Step) bool {
	switch step {
	case daemon.Acknowledge, daemon.Confirm, daemon.Release, daemon.Abandon, daemon.Resume:
		return true
	}
	return false
}

// already reports whether a row of the same holder and generation shows that a step was taken.
// Resume is not among them: it gave the row another generation.
func already(s daemon.State, step daemon.Step) bool {
	switch step {
	case daemon.Acknowledge:
		return s == daemon.Active
	case daemon.Confirm, daemon.Release, daemon.Abandon:
		return s == daemon.Deleted
	}
	return false
}

// takeStep writes what a step changes besides state, time and reason, and returns as what to tell
// of it. Every change of state has exactly one event: a release that carries a failure is told
// as the failure.
func (s *state) takeStep(rec *daemon.Record, r storage.UnitReport, now time.Time) daemon.EventKind {
	kind := daemon.AssignmentDeleted
	switch r.Step {
	case daemon.Acknowledge:
		rec.Failures = 0
		kind = daemon.AssignmentActive
	case daemon.Confirm:
		rec.Forced = false
	case daemon.Release:
		rec.Forced = false
		if r.Error != "" {
			rec.Failures += max(r.Failures, 1)
			kind = daemon.AssignmentFailed
		}
		if r.Embargo != 0 {
			rec.Embargoes = s.embargo(rec.Embargoes, rec.Holder.Incarnation, r.Embargo, r.Reason, now)
		}
	case daemon.Abandon:
		// The run goes on somewhere in the process: the hand-over is forced, and the process
		// never gets the unit again.
		rec.Forced = true
		rec.Embargoes = s.embargo(rec.Embargoes, rec.Holder.Incarnation, -1, r.Reason, now)
		kind = daemon.AssignmentAbandoned
	case daemon.Resume:
		// Not below the present term: its number is above all that a lost history gave out.
		rec.Generation = max(s.nextGeneration(*rec, s.highestGeneration()), s.term.Number)
		kind = daemon.AssignmentResumed
	}
	return kind
}

// nextGeneration returns the generation of the unit's next run: higher than its last one and
// whatever anybody has seen, not below its term, and higher than its fence was stamped with (a
// failover may have kept the stamp and lost the row).
func (s *state) nextGeneration(rec daemon.Record, seen int64) int64 {
	return storage.NextGeneration(rec.Generation, rec.Term, max(seen, s.fences[rec.Unit]))
}

// embargo returns the list with one process's embargo added or raised by a strike: until the
// later of the two ends, for ever if either is (a negative duration, a zero Until). Embargoes of
// processes whose row is gone are dropped on this occasion, which bounds the list.
func (s *state) embargo(list []daemon.Embargo, inc node.Incarnation, d time.Duration, reason string, now time.Time) []daemon.Embargo {
	e := daemon.Embargo{Incarnation: inc, Strikes: 1, Reason: reason}
	if d >= 0 {
		e.Until = now.Add(d)
	}
	out := make([]daemon.Embargo, 0, len(list)+1)
	for _, old := range list {
		switch {
		case old.Incarnation == inc:
			e.Strikes = old.Strikes + 1
			if old.Until.IsZero() || !e.Until.IsZero() && old.Until.After(e.Until) {
				e.Until = old.Until
			}
		case s.nodes[old.Incarnation] != nil:
			out = append(out, old)
		}
	}
	out = append(out, e)
	slices.SortFunc(out, func(a, b daemon.Embargo) int { return cmp.Compare(a.Incarnation, b.Incarnation) })
	return out
}
