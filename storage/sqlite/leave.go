package sqlite

import (
	"context"
	"fmt"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/node"
	"github.com/emitd/emitd/storage"
)

// Leave implements [storage.Store].
func (s *Store) Leave(ctx context.Context, leave storage.Leave) error {
	return attempted(s.call(ctx, "leave", func(st *step) error { return st.leave(leave) }), "leave of", leave.Node)
}

// leave gives things up in one step, in the order term, units, row. What already is so is left
// as it is: a term that is not held exactly so is not touched, and a tombstone may be
// deregistered again (which keeps it from being revived).
func (st *step) leave(l storage.Leave) error {
	row := st.node(l.Node.Incarnation)
	switch {
	case row == nil || !row.Present() && !l.Deregister:
		return storage.ErrNotRegistered
	case l.Seq <= row.Seq:
		return storage.ErrStaleSeq
	}
	st.exec(`UPDATE ~node SET seq = ? WHERE incarnation = ?`, int64(l.Seq), row.Incarnation)
	st.resign(l)
	switch {
	case l.Deregister:
		st.deregister(row, l)
	case l.Drain:
		st.drain(row, l)
	}
	st.fulfil(l)
	return nil
}

// resign vacates the term if this process holds exactly it. Everybody is told: whoever may
// stand, should.
func (st *step) resign(l storage.Leave) {
	t := st.term
	if l.Resign == 0 || !t.Held() || t.Number != l.Resign || t.Leader.ID != l.Node.ID || t.Leader.Incarnation != l.Node.Incarnation {
		return
	}
	st.term.Vacant = true
	st.vacate()
	e := termEvent(daemon.LeaderLost, t, string(l.Reason))
	e.Detail = commandDetail(l.Command, l.Actor, "")
	st.emit(e)
	st.woken = true
}

// drain marks the node draining and asks its units back.
func (st *step) drain(row *member, l storage.Leave) {
	st.exec(`UPDATE ~node SET state = ? WHERE incarnation = ?`, node.Draining, row.Incarnation)
	for _, rec := range st.heldBy(row.Incarnation) {
		next, ok := daemon.Next(rec.State, daemon.Revoke)
		if !ok {
			continue
		}
		rec.State, rec.Since, rec.RevokedAt, rec.Reason = next, st.now, st.now, string(l.Reason)
		if rec.DrainTimeout == 0 {
			rec.DrainTimeout = l.DrainTimeout
		}
		st.put(rec)
		st.emit(unitEvent(daemon.AssignmentRevoking, rec))
	}
	st.wakeLeader()
}

// deregister makes the row a tombstone. Units still held are freed without waiting: the process
// says that it ends, not that its runs have.
func (st *step) deregister(row *member, l storage.Leave) {
	st.exec(`UPDATE ~node SET left_itself = 1 WHERE incarnation = ?`, row.Incarnation)
	if !row.Present() {
		return
	}
	for _, rec := range st.heldBy(row.Incarnation) {
		next, ok := daemon.Next(rec.State, daemon.Expire)
		if !ok {
			continue
		}
		rec.State, rec.Since, rec.Reason, rec.Forced = next, st.now, string(l.Reason), true
		st.put(rec)
		st.emit(unitEvent(daemon.AssignmentForced, rec))
	}
	st.entomb(row.Identity, string(l.Reason))
	st.wakeLeader()
}

// fulfil marks the operator's command done: with a conflict if it expected another term than
// the one that was given up.
func (st *step) fulfil(l storage.Leave) {
	if l.Command == "" {
		return
	}
	c := st.command(l.Command)
	if c == nil || !c.DoneAt.IsZero() {
		return
	}
	result := "done"
	if c.Term != 0 && c.Term != l.Resign {
		result = conflict(c.Term, st.term)
	}
	st.exec(`UPDATE ~command SET done_at = ?, result = ? WHERE id = ?`, nanos(st.now), result, c.ID)
}

// conflict is the result of a command that expected another term.
func conflict(expected int64, t node.Term) string {
	return fmt.Sprintf("conflict: expected term %d, the term is %d", expected, t.Number)
}
