package sqlite

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/node"
	"github.com/emitd/emitd/storage"
)

// Report implements [storage.Store].
func (s *Store) Report(ctx context.Context, report storage.Report) ([]storage.Outcome, error) {
	var out []storage.Outcome
	err := s.call(ctx, "report", func(st *step) (err error) {
		if err := s.same(st, report.StoreID); err != nil {
			return err
		}
		out, err = st.report(report)
		return err
	})
	if err != nil {
		return nil, attempted(err, "report of", report.Node)
	}
	return out, nil
}

// report takes the holder's steps, each judged by itself.
func (st *step) report(r storage.Report) ([]storage.Outcome, error) {
	row := st.present(r.Node.Incarnation)
	switch {
	case row == nil:
		return nil, storage.ErrNotRegistered
	case r.Seq <= row.Seq:
		return nil, storage.ErrStaleSeq
	}
	st.exec(`UPDATE ~node SET seq = ?, highest_generation = max(highest_generation, ?) WHERE incarnation = ?`,
		int64(r.Seq), r.HighestGeneration, row.Incarnation)
	for _, inc := range r.Witness {
		if inc != r.Node.Incarnation &&
			st.exec(`UPDATE ~node SET witnessed = 1 WHERE incarnation = ? AND state <> 'removed' AND NOT witnessed`, inc) > 0 {
			st.wakeLeader()
		}
	}
	out := make([]storage.Outcome, len(r.Units))
	for i, u := range r.Units {
		out[i] = st.reportUnit(row.Identity, u)
	}
	return out, nil
}

// reportUnit applies one report, or refuses it and changes nothing. It wants the exact holder
// and generation, and a pair of the lifecycle table. Repeating one's own report is harmless.
func (st *step) reportUnit(who node.Identity, r storage.UnitReport) storage.Outcome {
	old := st.unit(r.Unit)
	if old == nil {
		return storage.Outcome{Unit: r.Unit}
	}
	own := old.Holder.ID == who.ID && old.Holder.Incarnation == who.Incarnation && old.Generation == r.Generation
	if own && already(old.State, r.Step) {
		return storage.Outcome{Unit: r.Unit, Applied: true, Record: *old}
	}
	next, ok := daemon.Next(old.State, r.Step)
	if !own || !ok || !holders(r.Step) {
		return storage.Outcome{Unit: r.Unit, Record: *old}
	}
	rec := *old
	rec.State, rec.Since = next, st.now
	if !r.Step.Stays() {
		rec.Reason = r.Reason
	}
	if r.Error != "" {
		rec.Error = r.Error
	}
	kind := st.takeStep(&rec, r)
	st.put(rec)
	event := unitEvent(kind, rec)
	event.Reason = r.Reason
	st.emit(event)
	st.wakeLeader()
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

// takeStep writes what a step changes besides state, time and reason, and returns how to tell of
// it: every change of state has exactly one event.
func (st *step) takeStep(rec *daemon.Record, r storage.UnitReport) daemon.EventKind {
	switch r.Step {
	case daemon.Acknowledge:
		rec.Failures = 0
		return daemon.AssignmentActive
	case daemon.Resume:
		// Not below the present term: its number is above all that a lost history gave out.
		rec.Generation = st.nextGeneration(*rec, max(rec.Term, st.term.Number), 0)
		return daemon.AssignmentResumed
	case daemon.Abandon:
		// The run goes on somewhere in the process: the hand-over is forced, and the process
		// never gets the unit again.
		rec.Forced = true
		rec.Embargoes = st.embargo(rec.Embargoes, rec.Holder.Incarnation, -1, r.Reason)
		return daemon.AssignmentAbandoned
	}
	rec.Forced = false // Confirm, Release
	if r.Step == daemon.Release && r.Embargo != 0 {
		rec.Embargoes = st.embargo(rec.Embargoes, rec.Holder.Incarnation, r.Embargo, r.Reason)
	}
	if r.Step == daemon.Release && r.Error != "" {
		rec.Failures += max(r.Failures, 1)
		return daemon.AssignmentFailed
	}
	return daemon.AssignmentDeleted
}

// embargo returns the list with one process's embargo added or raised by a strike: until the
// later of the two ends, for ever if either is (a negative duration, a zero Until). Embargoes of
// processes whose row is gone are dropped on this occasion, which bounds the list.
func (st *step) embargo(list []daemon.Embargo, inc node.Incarnation, d time.Duration, reason string) []daemon.Embargo {
	e := daemon.Embargo{Incarnation: inc, Strikes: 1, Reason: reason}
	if d >= 0 {
		e.Until = st.now.Add(d)
	}
	out := make([]daemon.Embargo, 0, len(list)+1)
	for _, old := range list {
		switch {
		case old.Incarnation == inc:
			e.Strikes = old.Strikes + 1
			if old.Until.IsZero() || !e.Until.IsZero() && old.Until.After(e.Until) {
				e.Until = old.Until
			}
		case st.node(old.Incarnation) != nil:
			out = append(out, old)
		}
	}
	out = append(out, e)
	slices.SortFunc(out, func(a, b daemon.Embargo) int { return cmp.Compare(a.Incarnation, b.Incarnation) })
	return out
}
