package postgres

import (
	"context"
	"encoding/json"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/emitd/emitd/storage"
)

// Leave implements [storage.Store]: term, then units, then the own row, in one transaction.
func (s *Store) Leave(ctx context.Context, l storage.Leave) error {
	admitted := false
	reason := plain(string(l.Reason))
	me, seq := inc(l.Node), number(l.Seq)
	err := s.call(ctx, "leave", writing, func(q *query) {
		if l.Resign != 0 {
			q.add("term_lock")
		}
		q.add("node_lock", me)
		if l.Drain || l.Deregister {
			q.add("leave_units_lock", me)
		}
		q.add("leave_row", me, seq, l.Deregister).Exec(func(tag pgconn.CommandTag) error {
			admitted = tag.RowsAffected() == 1
			return nil
		})
		if l.Resign != 0 {
			q.add("resign", me, seq, l.Resign, string(l.Node.ID), reason, commandDetail(l.Command, l.Actor))
		}
		switch {
		case l.Deregister:
			q.add("deregister", me, seq, reason)
		case l.Drain:
			q.add("drain", me, seq, reason, int64(l.DrainTimeout))
		}
		if l.Command != "" {
			q.add("fulfil", me, seq, plain(l.Command), l.Resign)
		}
	})
	if err == nil && !admitted {
		err = s.refused(ctx, l.Node, storage.IDInUseError{}, func(present, _ bool) bool { return present || l.Deregister })
	}
	return s.fail(attempt("leave of", l.Node), err)
}

// commandDetail is the detail of an event that a command caused; nil if none did.
func commandDetail(command, actor string) any {
	if command == "" && actor == "" {
		return nil
	}
	text, err := json.Marshal(struct {
		Command string `json:"command,omitempty"`
		Actor   string `json:"actor,omitempty"`
	}{plain(command), plain(actor)})
	if err != nil {
		panic("postgres: strings always marshal: " + err.Error())
	}
	return string(text)
}
