package sqlite

import (
	"context"
	"fmt"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/node"
	"github.com/emitd/emitd/storage"
)

// Commit implements [storage.Store].
func (s *Store) Commit(ctx context.Context, commit storage.Commit) ([]storage.Outcome, error) {
	var out []storage.Outcome
	err := s.call(ctx, "commit", func(st *step) (err error) {
		if err := s.same(st, commit.StoreID); err != nil {
			return err
		}
		out, err = st.commit(commit)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("commit of term %d: %w", commit.Term.Number, err)
	}
	return out, nil
}

// commit applies a leader's batch: all of it under the exact term, each change under its row.
// Nodes come first (the cause), then units in the order given. A node change whose guard fails
// is skipped silently, for the next snapshot shows it.
func (st *step) commit(c storage.Commit) ([]storage.Outcome, error) {
	if len(c.Changes) > storage.MaxChanges {
		return nil, fmt.Errorf("%d changes, the limit is %d", len(c.Changes), storage.MaxChanges)
	}
	if !st.term.Held() || st.term.Ref() != c.Term {
		return nil, storage.ErrTermLost
	}
	for _, n := range c.Nodes {
		st.changeNode(n)
	}
	out := make([]storage.Outcome, len(c.Changes))
	for i, change := range c.Changes {
		out[i] = st.changeUnit(c, change)
	}
	return out, nil
}

// changeNode takes the leader's step with a node.
//
//   - Removed: the row must stand exactly as the leader saw it, (incarnation, seq): a node that
//     beat meanwhile is not dead.
//   - Late, Deaf: a judgement beside the state, told once, of a row that still has the stamp it
//     was made of.
//   - Live: takes a judgement back, which is no news.
func (st *step) changeNode(n storage.NodeChange) {
	row := st.present(n.Guard.Incarnation)
	if row == nil {
		return
	}
	switch n.State {
	case node.Removed:
		if row.Seq == n.Guard.Seq {
			st.entomb(row.Identity, n.Reason)
		}
	case node.Live:
		st.judge(row, "")
	case node.Late, node.Deaf:
		if row.Judged == n.State || !judgedBy(n, row.Member) {
			return
		}
		st.judge(row, n.State)
		kind := daemon.NodeLate
		if n.State == node.Deaf {
			kind = daemon.NodeDeaf
		}
		st.emit(nodeEvent(kind, row.Identity, n.Reason))
	}
}

// judgedBy reports whether the row still has the stamp that a judgement was made of.
func judgedBy(n storage.NodeChange, row node.Member) bool {
	stamp := row.LastHeartbeatAt
	if n.State == node.Deaf {
		stamp = row.HeardAt
	}
	return n.Stamp.IsZero() || n.Stamp.Equal(stamp)
}

func (st *step) judge(row *member, judged node.State) {
	st.exec(`UPDATE ~node SET judged = ? WHERE incarnation = ?`, judged, row.Incarnation)
}

// changeUnit takes the leader's step with a unit, or skips it and changes nothing.
func (st *step) changeUnit(c storage.Commit, change storage.Change) storage.Outcome {
	old := st.unit(change.Unit)
	if change.Step == "" {
		return st.declare(old, change)
	}
	if old == nil {
		return storage.Outcome{Unit: change.Unit}
	}
	skipped := storage.Outcome{Unit: change.Unit, Record: *old}
	next, ok := daemon.Next(old.State, change.Step)
	if !ok || old.State != change.State || old.Generation != change.Generation {
		return skipped
	}
	rec := *old
	rec.State, rec.Since, rec.Reason = next, st.now, change.Reason
	var kind daemon.EventKind
	switch change.Step {
	case daemon.Assign:
		kind, ok = daemon.AssignmentAssigned, st.assign(&rec, c, change)
	case daemon.Revoke:
		// The deadline of a drain is counted from here and never extended: a second revoke is
		// not in the table.
		kind, rec.RevokedAt, rec.Term = daemon.AssignmentRevoking, st.now, c.Term.Number
	case daemon.Expire:
		kind, ok = st.expire(&rec, change)
	default:
		return skipped // the holder's to take
	}
	if !ok {
		return skipped
	}
	st.put(rec)
	e := unitEvent(kind, rec)
	e.Term, e.Detail = c.Term.Number, change.Detail
	st.emit(e)
	st.woken = true
	return storage.Outcome{Unit: change.Unit, Applied: true, Record: rec}
}

// declare creates the row (guard: none), or marks an existing one retired or not. A unit that
// is declared again takes its retired row back, with its last generation.
func (st *step) declare(old *daemon.Record, change storage.Change) storage.Outcome {
	fresh := change.Generation == 0 && change.State == ""
	var rec daemon.Record
	switch {
	case old == nil && fresh:
		rec = daemon.Record{Unit: change.Unit, State: daemon.Unassigned, Since: st.now, Reason: change.Reason, Retired: change.Retired}
	case old == nil:
		return storage.Outcome{Unit: change.Unit}
	case fresh && old.Retired && !change.Retired,
		!fresh && old.State == change.State && old.Generation == change.Generation:
		rec = *old
		rec.Retired = change.Retired
	default:
		return storage.Outcome{Unit: change.Unit, Record: *old}
	}
	st.put(rec)
	return storage.Outcome{Unit: change.Unit, Applied: true, Record: rec}
}

// assign gives the unit to a node that is present and neither leaving nor gone. Failures, the
// last error and embargoes belong to the unit and stay.
func (st *step) assign(rec *daemon.Record, c storage.Commit, change storage.Change) bool {
	to := st.present(change.To.Incarnation)
	if to == nil || to.State != node.Live {
		return false
	}
	rec.Holder = to.Identity
	rec.Generation = st.nextGeneration(*rec, c.Term.Number, c.HighestGeneration)
	rec.Term = c.Term.Number
	rec.AssignedAt, rec.RevokedAt = st.now, time.Time{}
	rec.AcknowledgeTimeout, rec.DrainTimeout = change.AcknowledgeTimeout, change.DrainTimeout
	rec.Forced = false
	return true
}

// expire frees the unit without or after the holder's word. Where the reason is the holder's
// death, its row is looked at again: one that moved since is not dead.
func (st *step) expire(rec *daemon.Record, change storage.Change) (daemon.EventKind, bool) {
	if dead := change.Dead; dead != nil {
		if row := st.present(dead.Incarnation); row != nil && row.Seq != dead.Seq {
			return "", false
		}
	}
	rec.Forced = change.Forced
	rec.Retired = rec.Retired || change.Retired
	if change.Embargo != 0 {
		rec.Embargoes = st.embargo(rec.Embargoes, rec.Holder.Incarnation, change.Embargo, change.Reason)
	}
	if change.Forced {
		return daemon.AssignmentForced, true
	}
	return daemon.AssignmentDeleted, true
}
