package object

import (
	"context"
	"fmt"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/node"
	"github.com/emitd/emitd/storage"
)

// commit applies a leader's batch as one step of the cluster object. One that declares somebody
// dead takes two, because what a node's heartbeats say stands in another object:
//
//	leader                                   node
//	1  write its doubt into the node's row   1  write the heartbeat to its own object
//	2  read the node's own object            2  read the cluster
//	3  if it has not moved and the doubt     3  if there is a doubt in its row,
//	   still stands: write the death            write that it lives, which takes the doubt away
//
// Whichever way these are interleaved, the leader sees the heartbeat or the node sees the doubt;
// and of the two writes that follow from the latter, one happens.
func (s *Store) commit(ctx context.Context, commit storage.Commit) (out []storage.Outcome, err error) {
	if len(commit.Changes) > storage.MaxChanges {
		return nil, fmt.Errorf("%d changes, the limit is %d", len(commit.Changes), storage.MaxChanges)
	}
	dead, assigns := deaths(commit)
	if len(dead) > 0 {
		if err := s.doubt(ctx, commit.Term, dead); err != nil {
			return nil, err
		}
	}
	_, err = s.run(ctx, step{
		guess: true,
		prepare: func(ctx context.Context, c *cluster, _ time.Time) error {
			if assigns {
				return s.refresh(ctx, c, c.everybody()) // for the numbers of the new runs
			}
			return s.refresh(ctx, c, incarnations(append(dead[:len(dead):len(dead)], judged(commit)...)))
		},
		apply: func(c *cluster, now time.Time) (bool, error) {
			out, err = c.commit(commit, dead, now)
			return err == nil, err
		},
	})
	if err != nil {
		return nil, err
	}
	return out, nil
}

// deaths lists the rows that must not have moved, and says whether the batch assigns.
func deaths(commit storage.Commit) (dead []storage.NodeGuard, assigns bool) {
	for _, n := range commit.Nodes {
		if n.State == node.Removed {
			dead = append(dead, n.Guard)
		}
	}
	for _, ch := range commit.Changes {
		if ch.Step == daemon.Expire && ch.Dead != nil {
			dead = append(dead, *ch.Dead)
		}
		assigns = assigns || ch.Step == daemon.Assign
	}
	return dead, assigns
}

// judged lists the nodes whose stamps a judgement is made of: they stand in objects of their own.
func judged(commit storage.Commit) []storage.NodeGuard {
	var out []storage.NodeGuard
	for _, n := range commit.Nodes {
		if !n.Stamp.IsZero() {
			out = append(out, n.Guard)
		}
	}
	return out
}

func incarnations(guards []storage.NodeGuard) []node.Incarnation {
	var out []node.Incarnation
	seen := map[node.Incarnation]bool{}
	for _, g := range guards {
		if !seen[g.Incarnation] {
			out, seen[g.Incarnation] = append(out, g.Incarnation), true
		}
	}
	return out
}

// doubt writes into the rows at which sequence number the leader saw them stand still. Rows that
// have moved already get none.
func (s *Store) doubt(ctx context.Context, term node.TermRef, dead []storage.NodeGuard) error {
	_, err := s.run(ctx, step{
		guess: true,
		prepare: func(ctx context.Context, c *cluster, _ time.Time) error {
			return s.refresh(ctx, c, incarnations(dead))
		},
		apply: func(c *cluster, _ time.Time) (bool, error) {
			if !c.Term.Held() || c.Term.Ref() != term {
				return false, storage.ErrTermLost
			}
			wrote := false
			for _, g := range dead {
				row := c.present(g.Incarnation)
				if row != nil && row.Seq == g.Seq && (row.Doubt == nil || *row.Doubt != g.Seq) {
					row.Doubt, wrote = &g.Seq, true
				}
			}
			return wrote, nil
		},
	})
	return err
}

// still reports whether a row stands exactly as the leader saw it: it doubted it then, and the row
// has not moved since.
func (m *member) still(g storage.NodeGuard) bool {
	return m.Seq == g.Seq && m.Doubt != nil && *m.Doubt == g.Seq
}

// commit applies all of it under the exact term, each change under its row. Nodes come first (the
// cause), then units in the order given.
func (c *cluster) commit(commit storage.Commit, dead []storage.NodeGuard, now time.Time) ([]storage.Outcome, error) {
	if !c.Term.Held() || c.Term.Ref() != commit.Term {
		return nil, storage.ErrTermLost
	}
	for _, n := range commit.Nodes {
		c.changeNode(n, now)
	}
	_, highest := c.highest()
	commit.HighestGeneration = max(commit.HighestGeneration, highest)
	out := make([]storage.Outcome, len(commit.Changes))
	for i, change := range commit.Changes {
		out[i] = c.changeUnit(commit, change, now)
	}
	for _, g := range dead {
		if row := c.row(g.Incarnation); row != nil && row.Doubt != nil && *row.Doubt == g.Seq {
			row.Doubt = nil
		}
	}
	return out, nil
}

// changeNode takes the leader's step with a node.
//
//   - Removed: the row must stand exactly as the leader saw it: a node that beat meanwhile is not
//     dead.
//   - Late, Deaf: a judgement beside the state, told once, of a row that still has the stamp it
//     was made of.
//   - Live: takes a judgement back, which is no news.
func (c *cluster) changeNode(n storage.NodeChange, now time.Time) {
	row := c.present(n.Guard.Incarnation)
	if row == nil {
		return
	}
	switch n.State {
	case node.Removed:
		if row.still(n.Guard) {
			c.entomb(row, n.Reason, now)
		}
	case node.Live:
		row.Judged = ""
	case node.Late, node.Deaf:
		if row.Judged == n.State || !judgedBy(n, row.Member) {
			return
		}
		row.Judged = n.State
		kind := daemon.NodeLate
		if n.State == node.Deaf {
			kind = daemon.NodeDeaf
		}
		c.emit(nodeEvent(kind, row.Identity, n.Reason), now)
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

// changeUnit takes the leader's step with a unit, or skips it and changes nothing.
func (c *cluster) changeUnit(commit storage.Commit, change storage.Change, now time.Time) storage.Outcome {
	old := c.unit(change.Unit)
	if change.Step == "" {
		return c.declare(old, change, now)
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
		kind, ok = daemon.AssignmentAssigned, c.assign(&rec, commit, change, now)
	case daemon.Revoke:
		// The deadline of a drain is counted from here and never extended: a second revoke is
		// not in the table.
		kind, rec.RevokedAt, rec.Term = daemon.AssignmentRevoking, now, commit.Term.Number
	case daemon.Expire:
		kind, ok = c.expire(&rec, change, now)
	default:
		return skipped // the holder's to take
	}
	if !ok {
		return skipped
	}
	c.put(rec)
	e := unitEvent(kind, rec)
	e.Term, e.Detail = commit.Term.Number, change.Detail
	c.emit(e, now)
	return storage.Outcome{Unit: change.Unit, Applied: true, Record: rec}
}

// declare creates the row (guard: none), or marks an existing one retired or not. A unit that is
// declared again takes its retired row back, with its last generation.
func (c *cluster) declare(old *daemon.Record, change storage.Change, now time.Time) storage.Outcome {
	fresh := change.Generation == 0 && change.State == ""
	var rec daemon.Record
	switch {
	case old == nil && fresh:
		rec = daemon.Record{Unit: change.Unit, State: daemon.Unassigned, Since: now, Reason: change.Reason, Retired: change.Retired}
	case old == nil:
		return storage.Outcome{Unit: change.Unit}
	case fresh && old.Retired && !change.Retired,
		!fresh && old.State == change.State && old.Generation == change.Generation:
		rec = *old
		rec.Retired = change.Retired
	default:
		return storage.Outcome{Unit: change.Unit, Record: *old}
	}
	c.put(rec)
	return storage.Outcome{Unit: change.Unit, Applied: true, Record: rec}
}

// assign gives the unit to a node that is present and neither leaving nor gone. Failures, the last
// error and embargoes belong to the unit and stay.
func (c *cluster) assign(rec *daemon.Record, commit storage.Commit, change storage.Change, now time.Time) bool {
	to := c.present(change.To.Incarnation)
	if to == nil || to.State != node.Live {
		return false
	}
	rec.Holder, rec.Term = to.Identity, commit.Term.Number
	rec.Generation = c.nextGeneration(*rec, commit.HighestGeneration)
	rec.AssignedAt, rec.RevokedAt = now, time.Time{}
	rec.AcknowledgeTimeout, rec.DrainTimeout = change.AcknowledgeTimeout, change.DrainTimeout
	rec.Forced = false
	return true
}

// expire frees the unit without or after the holder's word. Where the reason is the holder's death,
// its row must not have moved.
func (c *cluster) expire(rec *daemon.Record, change storage.Change, now time.Time) (daemon.EventKind, bool) {
	if dead := change.Dead; dead != nil {
		if row := c.present(dead.Incarnation); row != nil && !row.still(*dead) {
			return "", false
		}
	}
	rec.Forced = change.Forced
	rec.Retired = rec.Retired || change.Retired
	if change.Embargo != 0 {
		rec.Embargoes = c.embargo(rec.Embargoes, rec.Holder.Incarnation, change.Embargo, change.Reason, now)
	}
	if change.Forced {
		return daemon.AssignmentForced, true
	}
	return daemon.AssignmentDeleted, true
}
