package memory

import (
	"encoding/json"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/internal/planted"
	"github.com/emitd/emitd/node"
	"github.com/emitd/emitd/storage"
)

// leave gives things up in one step, in the order term, units, row. What already is so is left
// as it is: a term that is not held exactly so is not touched, and a tombstone may be
// deregistered again (which keeps it from being revived).
func (s *state) leave(l storage.Leave, now time.Time) error {
	row := s.nodes[l.Node.Incarnation]
	switch {
	case row == nil || !row.Present() && !l.Deregister:
		return storage.ErrNotRegistered
	case l.Seq <= row.Seq && !planted.Bug(planted.LateSeqAccepted):
		return storage.ErrStaleSeq
	}
	row.Seq = l.Seq
	s.resign(l, now)
	switch {
	case l.Deregister:
		s.deregister(row, l, now)
	case l.Drain:
		s.drain(row, l, now)
	}
	s.fulfil(l, now)
	return nil
}

// resign vacates the term if this process holds exactly it. Everybody is told: whoever may
// stand, should.
func (s *state) resign(l storage.Leave, now time.Time) {
	t := s.term
	if l.Resign == 0 || !t.Held() || t.Number != l.Resign || t.Leader.ID != l.Node.ID || t.Leader.Incarnation != l.Node.Incarnation {
		return
	}
	s.term.Vacant = true
	e := termEvent(daemon.LeaderLost, t, string(l.Reason))
	e.Detail = commandDetail(l.Command, l.Actor, "")
	s.emit(e, now)
	s.wakeAll()
}

// drain marks the node draining and asks its units back.
func (s *state) drain(row *member, l storage.Leave, now time.Time) {
	row.State = node.Draining
	for _, rec := range s.heldBy(row.Incarnation) {
		next, ok := daemon.Next(rec.State, daemon.Revoke)
		if !ok {
			continue
		}
		rec.State, rec.Since, rec.RevokedAt, rec.Reason = next, now, now, string(l.Reason)
		if rec.DrainTimeout == 0 {
			rec.DrainTimeout = l.DrainTimeout
		}
		s.put(rec)
		s.emit(unitEvent(daemon.AssignmentRevoking, rec), now)
	}
	s.wakeLeader()
}

// deregister makes the row a tombstone. Units still held are freed without waiting: the process
// says that it ends, not that its runs have.
func (s *state) deregister(row *member, l storage.Leave, now time.Time) {
	row.left = true
	if !row.Present() {
		return
	}
	for _, rec := range s.heldBy(row.Incarnation) {
		next, ok := daemon.Next(rec.State, daemon.Expire)
		if !ok {
			continue
		}
		rec.State, rec.Since, rec.Reason, rec.Forced = next, now, string(l.Reason), true
		s.put(rec)
		s.emit(unitEvent(daemon.AssignmentForced, rec), now)
	}
	s.entomb(row, string(l.Reason), now)
	s.wakeLeader()
}

// entomb turns a row into a tombstone.
func (s *state) entomb(row *member, reason string, now time.Time) {
	row.State, row.EndedAt, row.EndReason = node.Removed, now, reason
	s.emit(nodeEvent(daemon.NodeRemoved, row.Identity, reason), now)
}

// fulfil marks the operator's command done: with a conflict if it expected another term than
// the one that was given up.
func (s *state) fulfil(l storage.Leave, now time.Time) {
	for i, c := range s.commands {
		if l.Command == "" || c.ID != l.Command || !c.DoneAt.IsZero() {
			continue
		}
		done := *c
		done.DoneAt, done.Result = now, "done"
		if c.Term != 0 && c.Term != l.Resign {
			done.Result = conflict(c.Term, s.term)
		}
		s.commands[i] = &done
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
		panic("memory: strings always marshal: " + err.Error())
	}
	return text
}
