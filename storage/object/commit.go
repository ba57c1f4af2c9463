package object

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/node"
	"github.com/emitd/emitd/storage"
	"github.com/emitd/emitd/storage/blob"
	"github.com/emitd/emitd/storage/internal/rules"
)

// commit applies a leader's batch as one step of the cluster object. A batch that declares a node
// dead takes two steps, because the node's heartbeats are in another object:
//
//	leader                                   node
//	1  write a doubt into the node's row     1  write the heartbeat to its own object
//	2  read the node's own object            2  read the cluster
//	3  if it has not moved and the doubt     3  if there is a doubt in its row,
//	   still stands: write the death            write that it lives, which takes the doubt away
//
// In any order of these steps, the leader sees the heartbeat or the node sees the doubt. In the
// second case the death and the removal of the doubt exclude each other: only one of the two writes
// happens.
//
// If the cluster object has no room for what the changes add, the rest of the batch is applied without them: a unit that
// cannot be declared must not keep a dead node's units from others.
func (s *Store) commit(ctx context.Context, commit storage.Commit) ([]storage.Outcome, error) {
	if len(commit.Changes) > storage.MaxChanges {
		return nil, fmt.Errorf("%d changes, the limit is %d", len(commit.Changes), storage.MaxChanges)
	}
	dead, assigns := rowsDeclaredDead(commit)
	if len(dead) > 0 {
		if err := s.doubt(ctx, commit, dead); err != nil {
			return nil, err
		}
	}
	all := commit.Changes
	for most := addsRows; ; most-- {
		commit.Changes = upTo(most, all)
		c, out, err := s.commitOnce(ctx, commit, dead, assigns)
		switch {
		case err == nil:
			return c.outcomes(all, out, most), nil
		case !errors.Is(err, blob.ErrTooLarge) || most == addsNothing || nothingBut(most, commit):
			return nil, err
		}
	}
}

// upTo returns the changes that add no more than most.
func upTo(most addition, changes []storage.Change) []storage.Change {
	return slices.DeleteFunc(slices.Clone(changes), func(ch storage.Change) bool { return added(ch) > most })
}

// nothingBut reports whether the commit consists of changes that add so much.
func nothingBut(adds addition, commit storage.Commit) bool {
	return len(upTo(adds-1, commit.Changes))+len(commit.Nodes)+len(commit.Events)+len(commit.Commands) == 0
}

// outcomes adds to the outcomes of a part of the changes those that there was no room for.
func (c *cluster) outcomes(all []storage.Change, out []storage.Outcome, most addition) []storage.Outcome {
	if len(out) == len(all) {
		return out
	}
	complete := make([]storage.Outcome, len(all))
	for i, ch := range all {
		complete[i].Unit = ch.Unit
		if r := c.Unit(ch.Unit); r != nil {
			complete[i].Record = *r
		}
		if added(ch) <= most {
			complete[i], out = out[0], out[1:]
		}
	}
	return complete
}

// commitOnce applies the batch as one step.
func (s *Store) commitOnce(ctx context.Context, commit storage.Commit, dead []storage.NodeVersion, assigns bool) (c *cluster, out []storage.Outcome, err error) {
	c, err = s.run(ctx, step{
		guess: true,
		prepare: func(ctx context.Context, c *cluster, _ time.Time) error {
			if assigns {
				return s.refresh(ctx, c, c.memberIDs()) // the generations of the new runs depend on all rows
			}
			return s.refresh(ctx, c, incarnations(append(dead[:len(dead):len(dead)], rowsMarkedLateOrDeaf(commit)...)))
		},
		apply: func(c *cluster, now time.Time) (bool, error) {
			if err := s.same(c, commit.StoreID); err != nil {
				return false, err
			}
			out, err = c.commit(commit, dead, now)
			return err == nil, err
		},
	})
	if err != nil {
		return nil, nil, err
	}
	return c, out, nil
}

// rowsDeclaredDead lists the rows that must not have moved, and reports whether the batch assigns units.
func rowsDeclaredDead(commit storage.Commit) (dead []storage.NodeVersion, assigns bool) {
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

// rowsMarkedLateOrDeaf lists the nodes that the batch calls late or deaf by a stamp. The stamps are in the nodes'
// own objects, which must be read.
func rowsMarkedLateOrDeaf(commit storage.Commit) []storage.NodeVersion {
	var out []storage.NodeVersion
	for _, n := range commit.Nodes {
		if !n.ObservedAt.IsZero() {
			out = append(out, n.Guard)
		}
	}
	return out
}

func incarnations(guards []storage.NodeVersion) []node.Incarnation {
	var out []node.Incarnation
	seen := map[node.Incarnation]bool{}
	for _, g := range guards {
		if !seen[g.Incarnation] {
			out, seen[g.Incarnation] = append(out, g.Incarnation), true
		}
	}
	return out
}

// doubt writes into the rows the sequence number at which the leader saw them unchanged. Rows that
// have changed since get none.
func (s *Store) doubt(ctx context.Context, commit storage.Commit, dead []storage.NodeVersion) error {
	_, err := s.run(ctx, step{
		guess: true,
		prepare: func(ctx context.Context, c *cluster, _ time.Time) error {
			return s.refresh(ctx, c, incarnations(dead))
		},
		apply: func(c *cluster, _ time.Time) (bool, error) {
			if err := s.same(c, commit.StoreID); err != nil {
				return false, err
			}
			if !c.Term.Held() || c.Term.Ref() != commit.Term {
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

// Unchanged implements [rules.Rows]: the leader doubts the row as it saw it, and the row has not moved
// since.
func (c *cluster) Unchanged(g storage.NodeVersion) bool {
	m := c.row(g.Incarnation)
	return m != nil && m.Seq == g.Seq && m.Doubt != nil && *m.Doubt == g.Seq
}

// commit applies the whole batch if exactly this term leads. Each change also has the guard of its
// row.
func (c *cluster) commit(commit storage.Commit, dead []storage.NodeVersion, now time.Time) ([]storage.Outcome, error) {
	if !c.Term.Held() || c.Term.Ref() != commit.Term {
		return nil, storage.ErrTermLost
	}
	c.Commands.Answer(c, commit.Commands, now)
	out := rules.Commit(c, commit, now)
	for _, g := range dead {
		if row := c.row(g.Incarnation); row != nil && row.Doubt != nil && *row.Doubt == g.Seq {
			row.Doubt = nil
		}
	}
	return out, nil
}
