package sqlite

import (
	"context"

	"github.com/emitd/emitd/storage"
	"github.com/emitd/emitd/storage/internal/rules"
)

// Leave implements [storage.Store].
func (s *Store) Leave(ctx context.Context, leave storage.Leave) error {
	return attempted(s.call(ctx, "leave", func(st *step) error { return st.leave(leave) }), "leave of", leave.Node)
}

// leave gives up what the call asks for in one step, in the order term, units, row. It does not
// change what is already so: a term that this process does not hold stays. A tombstone may be
// deregistered again, which prevents its revival.
func (st *step) leave(l storage.Leave) error {
	row := st.node(l.Node.Incarnation)
	switch {
	case row == nil || !row.Present() && !l.Deregister:
		return storage.ErrNotRegistered
	case l.Seq <= row.Seq:
		return storage.ErrStaleSeq
	}
	st.exec(`UPDATE ~node SET seq = ? WHERE incarnation = ?`, int64(l.Seq), row.Incarnation)
	if rules.Resign(st, &st.term, l, st.now) {
		st.putTerm()
		st.woken = true // wakes every node: the candidates should campaign
	}
	switch {
	case l.Deregister:
		st.exec(`UPDATE ~node SET left_itself = 1 WHERE incarnation = ?`, row.Incarnation)
		if row.Present() {
			rules.Deregister(st, row.Member, l, st.now)
			st.wakeLeader()
		}
	case l.Drain:
		rules.Drain(st, row.Member, l, st.now)
		st.wakeLeader()
	}
	st.fulfil(l)
	return nil
}

// fulfil marks the command as done that a node has carried out by its leave.
func (st *step) fulfil(l storage.Leave) {
	if l.Command == "" {
		return
	}
	if c := st.command(l.Command); c != nil && c.DoneAt.IsZero() {
		st.putResult(rules.Done(*c, l, st.term, st.now))
	}
}

// putResult writes a command's result, and when it was done.
func (st *step) putResult(c storage.Command) {
	st.exec(`UPDATE ~command SET done_at = ?, result = ? WHERE id = ?`, nanos(c.DoneAt), c.Result, c.ID)
}
