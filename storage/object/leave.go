package object

import (
	"context"
	"time"

	"github.com/emitd/emitd/storage"
	"github.com/emitd/emitd/storage/internal/rules"
)

// leave gives up what the call asks for, as one step of the cluster object.
func (s *Store) leave(ctx context.Context, l storage.Leave) error {
	_, err := s.run(ctx, step{
		prepare: func(ctx context.Context, c *cluster, _ time.Time) error {
			return s.refreshOwn(ctx, c, l.Node.Incarnation)
		},
		apply: func(c *cluster, now time.Time) (bool, error) {
			err := c.leave(l, now)
			return err == nil, err
		},
	})
	return err
}

// leave goes in the order term, units, row. It does not change what is already so: a term that this
// process does not hold stays. A tombstone may be deregistered again, which prevents its revival.
func (c *cluster) leave(l storage.Leave, now time.Time) error {
	row := c.row(l.Node.Incarnation)
	switch {
	case row == nil || !row.Present() && !l.Deregister:
		return storage.ErrNotRegistered
	case l.Seq <= row.Seq:
		return storage.ErrStaleSeq
	}
	row.Seq = l.Seq
	rules.Resign(c, &c.Term, l, now)
	switch {
	case l.Deregister:
		row.Left, row.Doubt = true, nil
		if row.Present() {
			rules.Deregister(c, row.Member, l, now)
		}
	case l.Drain:
		rules.Drain(c, row.Member, l, now)
	}
	c.Commands.MarkDone(l, c.Term, now)
	return nil
}
