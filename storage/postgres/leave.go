package postgres

import (
	"context"
	"encoding/json"

	"github.com/emitd/emitd/storage"
)

// Leave implements [storage.Store]: it changes the term, then the units, then the own row, in one
// transaction.
func (s *Store) Leave(ctx context.Context, l storage.Leave) error {
	admitted := false
	reason := cleanText(string(l.Reason))
	me, seq := inc(l.Node), number(l.Seq)
	err := s.call(ctx, "leave", writing, func(m *message) {
		if l.Resign != 0 {
			m.do("term_lock")
		}
		m.do("node_lock", me)
		if l.Drain || l.Deregister {
			m.do("leave_units_lock", me)
		}
		m.count(func(n int64) { admitted = n == 1 }, "leave_row", me, seq, l.Deregister)
		if l.Command != "" {
			m.do("fulfil", me, cleanText(l.Command), l.Resign) // before the counter's row is locked
		}
		if l.Resign != 0 {
			m.do("lease_lock", me, true) // before the term changes, which locks the counter
			m.do("resign", me, l.Resign, string(l.Node.ID), reason, commandDetail(l.Command, l.Actor))
		}
		switch {
		case l.Deregister:
			m.do("deregister", me, reason)
		case l.Drain:
			m.do("drain", me, reason, int64(l.DrainTimeout))
		}
		if l.Command != "" {
			m.recount()
		}
	})
	s.known.Delete(l.Node.Incarnation)
	s.unanswered.Delete(l.Node.Incarnation)
	if l.Deregister {
		s.answered.Delete(l.Node.Incarnation)
	}
	if err == nil && !admitted {
		err = s.refused(ctx, l.Node, storage.IDInUseError{}, func(present, _ bool) bool { return present || l.Deregister })
	}
	return s.fail(attempt("leave of", l.Node), err)
}

// commandDetail is the detail of an event that a command caused; nil if no command did.
func commandDetail(command, actor string) any {
	if command == "" && actor == "" {
		return nil
	}
	text, err := json.Marshal(struct {
		Command string `json:"command,omitempty"`
		Actor   string `json:"actor,omitempty"`
	}{cleanText(command), cleanText(actor)})
	if err != nil {
		panic("postgres: strings always marshal: " + err.Error())
	}
	return string(text)
}
