package object

import (
	"context"
	"encoding/json"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/node"
	"github.com/emitd/emitd/storage"
)

// leave gives things up as one step of the cluster object.
func (s *Store) leave(ctx context.Context, l storage.Leave) error {
	_, err := s.run(ctx, step{
		prepare: func(ctx context.Context, c *cluster, _ time.Time) error {
			return s.refresh(ctx, c, []node.Incarnation{l.Node.Incarnation})
		},
		apply: func(c *cluster, now time.Time) (bool, error) {
			err := c.leave(l, now)
			return err == nil, err
		},
	})
	return err
}

// leave goes in the order term, units, row. What already is so is left as it is: a term that is not
// held exactly so is not touched, and a tombstone may be deregistered again, which keeps it from
// being revived.
func (c *cluster) leave(l storage.Leave, now time.Time) error {
	row := c.row(l.Node.Incarnation)
	switch {
	case row == nil || !row.Present() && !l.Deregister:
		return storage.ErrNotRegistered
	case l.Seq <= row.Seq:
		return storage.ErrStaleSeq
	}
	row.Seq = l.Seq
	c.resign(l, now)
	switch {
	case l.Deregister:
		c.deregister(row, l, now)
	case l.Drain:
		c.drain(row, l, now)
	}
	c.fulfil(l, now)
	return nil
}

// resign vacates the term if this process holds exactly it.
func (c *cluster) resign(l storage.Leave, now time.Time) {
	t := c.Term
	if l.Resign == 0 || !t.Held() || t.Number != l.Resign || t.Leader.ID != l.Node.ID || t.Leader.Incarnation != l.Node.Incarnation {
		return
	}
	c.Term.Vacant = true
	e := termEvent(daemon.LeaderLost, t, string(l.Reason))
	e.Detail = commandDetail(l.Command, l.Actor, "")
	c.emit(e, now)
}

// drain marks the node draining and asks its units back.
func (c *cluster) drain(row *member, l storage.Leave, now time.Time) {
	row.State = node.Draining
	for _, rec := range c.heldBy(row.Incarnation) {
		next, ok := daemon.Next(rec.State, daemon.Revoke)
		if !ok {
			continue
		}
		rec.State, rec.Since, rec.RevokedAt, rec.Reason = next, now, now, string(l.Reason)
		if rec.DrainTimeout == 0 {
			rec.DrainTimeout = l.DrainTimeout
		}
		c.put(rec)
		c.emit(unitEvent(daemon.AssignmentRevoking, rec), now)
	}
}

// deregister makes the row a tombstone. Units still held are freed without waiting: the process
// says that it ends, not that its runs have.
func (c *cluster) deregister(row *member, l storage.Leave, now time.Time) {
	row.Left = true
	if !row.Present() {
		return
	}
	for _, rec := range c.heldBy(row.Incarnation) {
		next, ok := daemon.Next(rec.State, daemon.Expire)
		if !ok {
			continue
		}
		rec.State, rec.Since, rec.Reason, rec.Forced = next, now, string(l.Reason), true
		c.put(rec)
		c.emit(unitEvent(daemon.AssignmentForced, rec), now)
	}
	c.entomb(row, string(l.Reason), now)
}

// entomb turns a row into a tombstone.
func (c *cluster) entomb(row *member, reason string, now time.Time) {
	row.State, row.EndedAt, row.EndReason, row.Doubt = node.Removed, now, reason, nil
	c.emit(nodeEvent(daemon.NodeRemoved, row.Identity, reason), now)
}

// fulfil marks the operator's command done: with a conflict if it expected another term than the
// one that was given up.
func (c *cluster) fulfil(l storage.Leave, now time.Time) {
	for i, old := range c.Commands {
		if l.Command == "" || old.ID != l.Command || !old.DoneAt.IsZero() {
			continue
		}
		done := *old
		done.DoneAt, done.Result = now, "done"
		if done.Term != 0 && done.Term != l.Resign {
			done.Result = conflict(done.Term, c.Term)
		}
		c.Commands[i] = &done
	}
}

// commandDetail is the detail of an event that a command caused; nil if none did.
func commandDetail(command, actor, result string) json.RawMessage {
	if command == "" && actor == "" {
		return nil
	}
	text, err := json.Marshal(struct {
		Command string `json:"command,omitempty"`
		Actor   string `json:"actor,omitempty"`
		Result  string `json:"result,omitempty"`
	}{command, actor, result})
	if err != nil {
		panic("object: strings always marshal: " + err.Error())
	}
	return text
}
