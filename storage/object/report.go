package object

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/node"
	"github.com/emitd/emitd/storage"
)

// report takes the holder's steps as one step of the cluster object.
func (s *Store) report(ctx context.Context, r storage.Report) (out []storage.Outcome, err error) {
	resumes := slices.ContainsFunc(r.Units, func(u storage.UnitReport) bool { return u.Step == daemon.Resume })
	_, err = s.run(ctx, step{
		prepare: func(ctx context.Context, c *cluster, _ time.Time) error {
			if resumes {
				return s.refresh(ctx, c, c.everybody()) // for the number of the new run
			}
			return s.refresh(ctx, c, []node.Incarnation{r.Node.Incarnation})
		},
		apply: func(c *cluster, now time.Time) (bool, error) {
			out, err = c.report(r, now)
			return err == nil, err
		},
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

// report judges each step by itself.
func (c *cluster) report(r storage.Report, now time.Time) ([]storage.Outcome, error) {
	row := c.present(r.Node.Incarnation)
	switch {
	case row == nil:
		return nil, storage.ErrNotRegistered
	case r.Seq <= row.Seq:
		return nil, storage.ErrStaleSeq
	}
	row.Seq = r.Seq
	row.HighestGeneration = max(row.HighestGeneration, r.HighestGeneration)
	for _, inc := range r.Witness {
		if m := c.present(inc); m != nil && inc != r.Node.Incarnation {
			m.Witnessed = true
		}
	}
	out := make([]storage.Outcome, len(r.Units))
	for i, u := range r.Units {
		out[i] = c.reportUnit(row.Identity, u, now)
	}
	return out, nil
}

// reportUnit applies one report, or refuses it and changes nothing. It wants the exact holder and
// generation, and a pair of the lifecycle table. Repeating one's own report is harmless.
func (c *cluster) reportUnit(who node.Identity, r storage.UnitReport, now time.Time) storage.Outcome {
	old := c.unit(r.Unit)
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
	rec.State, rec.Since = next, now
	if !r.Step.Stays() {
		rec.Reason = r.Reason
	}
	rec.Error = cmp.Or(r.Error, rec.Error)
	event := unitEvent(c.takeStep(&rec, r, now), rec)
	event.Generation, event.Reason = rec.Generation, r.Reason
	c.put(rec)
	c.emit(event, now)
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

// already reports whether a row of the same holder and generation shows that a step was taken. A
// resumption is not seen that way: it gave the row another generation.
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
// of it: a release that carries a failure is told as the failure.
func (c *cluster) takeStep(rec *daemon.Record, r storage.UnitReport, now time.Time) daemon.EventKind {
	switch r.Step {
	case daemon.Acknowledge:
		rec.Failures = 0
		return daemon.AssignmentActive
	case daemon.Release:
		rec.Forced = false
		if r.Embargo != 0 {
			rec.Embargoes = c.embargo(rec.Embargoes, rec.Holder.Incarnation, r.Embargo, r.Reason, now)
		}
		if r.Error != "" {
			rec.Failures += max(r.Failures, 1)
			return daemon.AssignmentFailed
		}
	case daemon.Abandon:
		// The run goes on somewhere in the process: the hand-over is forced, and the process
		// never gets the unit again.
		rec.Forced = true
		rec.Embargoes = c.embargo(rec.Embargoes, rec.Holder.Incarnation, -1, r.Reason, now)
		return daemon.AssignmentAbandoned
	case daemon.Resume:
		// Not below the present term: its number is above all that a lost history gave out.
		_, seen := c.highest()
		rec.Generation = max(c.nextGeneration(*rec, seen), c.Term.Number)
		return daemon.AssignmentResumed
	default:
		rec.Forced = false
	}
	return daemon.AssignmentDeleted
}

// nextGeneration returns the generation of the unit's next run: higher than its last one and
// whatever anybody has seen, not below its term, and higher than its fence was stamped with.
func (c *cluster) nextGeneration(rec daemon.Record, seen int64) int64 {
	return storage.NextGeneration(rec.Generation, rec.Term, max(seen, c.Fences[rec.Unit]))
}

// embargo returns the list with one process's embargo added or raised by a strike: until the later
// of the two ends, for ever if either is (a negative duration, a zero Until). Embargoes of
// processes whose row is gone are dropped on this occasion, which bounds the list.
func (c *cluster) embargo(list []daemon.Embargo, inc node.Incarnation, d time.Duration, reason string, now time.Time) []daemon.Embargo {
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
		case c.row(old.Incarnation) != nil:
			out = append(out, old)
		}
	}
	out = append(out, e)
	slices.SortFunc(out, func(a, b daemon.Embargo) int { return cmp.Compare(a.Incarnation, b.Incarnation) })
	return out
}
