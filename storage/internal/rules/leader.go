package rules

import (
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/node"
	"github.com/emitd/emitd/storage"
)

// Commit applies a leader's batch under its term, which the store has checked. It first writes the
// events that change no row. Then it changes nodes, because they are the cause, and then units in the given order. It returns one outcome for
// each of Changes. A change of a node whose guard fails is skipped silently; the next snapshot
// shows it.
func Commit(r Rows, c storage.Commit, now time.Time) []storage.Outcome {
	for _, e := range c.Events {
		r.Emit(daemon.Event{Kind: e.Kind, Node: e.Node, Daemon: e.Daemon, Term: c.Term.Number, Reason: e.Reason, Detail: e.Detail}, now)
	}
	for _, n := range c.Nodes {
		changeNode(r, n, now)
	}
	_, highest := r.Highest()
	c.HighestGeneration = max(c.HighestGeneration, highest)
	out := make([]storage.Outcome, len(c.Changes))
	for i, change := range c.Changes {
		out[i] = step(r, c, change, now)
	}
	return out
}

// changeNode applies the leader's step with a node.
//
//   - Removed: the row must be exactly as the leader saw it. A node that has sent a heartbeat
//     meanwhile is not dead.
//   - Late, Deaf: a mark beside the state, with one event. The row must still have the stamp that
//     was too old.
//   - Live: takes the mark back, without an event.
func changeNode(r Rows, n storage.NodeChange, now time.Time) {
	old := present(r, n.Guard.Incarnation)
	if old == nil {
		return
	}
	row := *old
	switch n.State {
	case node.Removed:
		if r.Unchanged(n.Guard) {
			MakeTombstone(r, row, n.Reason, now)
		}
	case node.Live:
		row.LeaderState = ""
		r.PutNode(row)
	case node.Late, node.Deaf:
		if row.LeaderState == n.State || !hasStamp(n, row) {
			return
		}
		row.LeaderState = n.State
		r.PutNode(row)
		kind := daemon.NodeLate
		if n.State == node.Deaf {
			kind = daemon.NodeDeaf
		}
		r.Emit(NodeEvent(kind, row.Identity, n.Reason), now)
	}
}

// hasStamp reports whether the row still has the stamp that was too old.
func hasStamp(n storage.NodeChange, row node.Member) bool {
	stamp := row.LastHeartbeatAt
	if n.State == node.Deaf {
		stamp = row.ConfirmedAt
	}
	return n.ObservedAt.IsZero() || n.ObservedAt.Equal(stamp)
}

// MakeTombstone turns a row into a tombstone.
func MakeTombstone(r Rows, row node.Member, reason string, now time.Time) {
	row.State, row.EndedAt, row.EndReason = node.Removed, now, reason
	r.PutNode(row)
	r.Emit(NodeEvent(daemon.NodeRemoved, row.Identity, reason), now)
}

// step applies the leader's step with a unit, or skips it and changes nothing.
func step(r Rows, c storage.Commit, change storage.Change, now time.Time) storage.Outcome {
	old := r.Unit(change.Unit)
	if change.Step == "" {
		return declare(r, old, change, now)
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
	rec.State, rec.Since, rec.Reason = next, now, change.Reason
	var kind daemon.EventKind
	switch change.Step {
	case daemon.Assign:
		kind, ok = daemon.AssignmentAssigned, assign(r, &rec, c, change, now)
	case daemon.Revoke:
		// The deadline of a drain counts from here and is never extended: the lifecycle table has
		// no second revoke.
		kind, rec.RevokedAt, rec.Term = daemon.AssignmentRevoking, now, c.Term.Number
	case daemon.Expire:
		kind, ok = expire(r, &rec, change, now)
	default:
		return skipped // a step that only the holder takes
	}
	if !ok {
		return skipped
	}
	r.Put(rec)
	e := unitEvent(kind, rec)
	e.Term, e.Detail = c.Term.Number, change.Detail
	r.Emit(e, now)
	return storage.Outcome{Unit: change.Unit, Applied: true, Record: rec}
}

// declare creates the row (its guard: there is none), or marks an existing one retired or not. A
// unit that is declared again reuses its retired row, with its last generation.
func declare(r Rows, old *daemon.Record, change storage.Change, now time.Time) storage.Outcome {
	fresh := change.Generation == 0 && change.State == ""
	var rec daemon.Record
	switch {
	case old == nil && fresh:
		rec = daemon.Record{Unit: change.Unit, State: daemon.Unassigned, Since: now, Reason: change.Reason, Retired: change.Retired}
	case old == nil:
		return storage.Outcome{Unit: change.Unit}
	case fresh && old.Retired && !change.Retired,
		!fresh && old.State == change.State && old.Generation == change.Generation:
		if rec = *old; rec.Unit.Key == "" { // whether a key was removed is not the leader's to say
			rec.Retired = change.Retired
		}
	default:
		return storage.Outcome{Unit: change.Unit, Record: *old}
	}
	r.Put(rec)
	return storage.Outcome{Unit: change.Unit, Applied: true, Record: rec}
}

// assign gives the unit to a node that is present, and neither leaving nor gone. Failures, the last
// error and embargoes belong to the unit and stay.
func assign(r Rows, rec *daemon.Record, c storage.Commit, change storage.Change, now time.Time) bool {
	to := present(r, change.To.Incarnation)
	if to == nil || to.State != node.Live {
		return false
	}
	rec.Holder, rec.Term = to.Identity, c.Term.Number
	rec.Generation = nextGeneration(r, *rec, c.HighestGeneration)
	rec.AssignedAt, rec.RevokedAt = now, time.Time{}
	rec.AcknowledgeTimeout, rec.DrainTimeout = change.AcknowledgeTimeout, change.DrainTimeout
	rec.Forced, rec.RetryAt = false, time.Time{}
	return true
}

// expire frees the unit, with or without the holder's confirmation. If the reason is the holder's
// death, it checks the holder's row again: a node whose row has changed since is not dead.
func expire(r Rows, rec *daemon.Record, change storage.Change, now time.Time) (daemon.EventKind, bool) {
	if dead := change.Dead; dead != nil {
		if present(r, dead.Incarnation) != nil && !r.Unchanged(*dead) {
			return "", false
		}
	}
	rec.Forced = change.Forced
	rec.Retired = rec.Retired || change.Retired && rec.Unit.Key == ""
	if change.Embargo != 0 {
		rec.Embargoes = embargo(r, rec.Embargoes, daemon.Embargo{Incarnation: rec.Holder.Incarnation, Node: rec.Holder.Name, Length: change.Embargo, Reason: change.Reason}, now)
	}
	if change.Forced {
		return daemon.AssignmentForced, true
	}
	return daemon.AssignmentDeleted, true
}
