package postgres

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/node"
	"github.com/emitd/emitd/storage"
	"github.com/emitd/emitd/storage/internal/rules"
)

// changeInput is one element of the input of commit_units.sql and commit_declare.sql.
type changeInput struct {
	Ord         int             `json:"ord"`
	Daemon      string          `json:"daemon"`
	Index       int             `json:"index"`
	Step        string          `json:"step"`
	State       string          `json:"state"`
	Generation  int64           `json:"generation"`
	Target      string          `json:"target"`
	Acknowledge int64           `json:"acknowledge"` // nanoseconds, like Drain
	Drain       int64           `json:"drain"`
	Dead        string          `json:"dead"`
	Seq         int64           `json:"seq"`
	Forced      bool            `json:"forced"`
	Embargo     int64           `json:"embargo"` // microseconds
	Retired     bool            `json:"retired"`
	Reason      string          `json:"reason"`
	Detail      json.RawMessage `json:"detail,omitempty"`
}

// nodeInput is one element of the input of commit_nodes.sql.
type nodeInput struct {
	Ord         int    `json:"ord"`
	Incarnation string `json:"incarnation"`
	Seq         int64  `json:"seq"`
	State       string `json:"state"`
	Reason      string `json:"reason"`
	// Stamp is the time that the change was decided from; zero means that it does not matter.
	Stamp time.Time `json:"stamp,omitzero"`
}

// Commit implements [storage.Store]: one message that takes every lock and then writes. The lock of
// the term comes first and guards everything. An election waits for this lock; a renewal does not
// touch it.
func (s *Store) Commit(ctx context.Context, c storage.Commit) ([]storage.Outcome, error) {
	what := fmt.Sprintf("commit of term %d", c.Term.Number)
	if len(c.Changes) > storage.MaxChanges {
		return nil, fmt.Errorf("%s: %d changes, the limit is %d", what, len(c.Changes), storage.MaxChanges)
	}
	out := make([]storage.Outcome, len(c.Changes))
	changes := make([]changeInput, len(c.Changes))
	for i, change := range c.Changes {
		out[i].Unit, changes[i] = change.Unit, inputOf(i, change)
	}
	same, held := false, false
	guard := s.sameStore(c.StoreID, c.Term.Incarnation)
	term := []any{c.Term.Number, string(c.Term.Node), string(c.Term.Incarnation)}
	err := s.call(ctx, "commit", writing, func(m *message) {
		m.count(func(n int64) { held = n == 1 }, "commit_lock", term...)
		lockRows(m, c, changes)
		results, ids := resultInputs(c.Commands)
		if len(ids) > 0 {
			m.do("commands_lock", array(ids))
		}
		m.query(isSame(&same), "same", guard...)
		if len(results) > 0 {
			for part := range splitByKey(results, func(in resultInput) string { return in.ID }) {
				m.do("commit_commands", append(slices.Clone(term), encode(part))...)
			}
			m.recount()
		}
		if len(c.Events) > 0 {
			m.do("commit_events", append(slices.Clone(term), encode(eventInputs(c.Events)))...)
		}
		for part := range splitByKey(nodeInputs(c.Nodes), func(in nodeInput) string { return in.Incarnation }) {
			m.do("commit_nodes", append(slices.Clone(term), encode(part))...)
		}
		change, finish := m.outcomes(out)
		for _, part := range inOrder(changes) {
			args := append(slices.Clone(term), encode(part))
			if part[0].Step == "" {
				change("commit_declare", args...)
			} else {
				change("commit_units", append(args, c.HighestGeneration)...)
			}
		}
		finish()
	})
	switch {
	case err != nil:
	case !same:
		err = storage.ErrStoreChanged
	case !held:
		err = storage.ErrTermLost
	}
	if err != nil {
		return nil, s.fail(what, err)
	}
	return out, nil
}

// lockRows locks nodes that are declared dead or changed (against their heartbeats), then nodes
// that are assigned units (against their leaving), then the units.
func lockRows(m *message, c storage.Commit, changes []changeInput) {
	var changed, targets []node.Incarnation
	for _, n := range c.Nodes {
		changed = append(changed, n.Guard.Incarnation)
	}
	for _, change := range c.Changes {
		if change.Dead != nil {
			changed = append(changed, change.Dead.Incarnation)
		}
		if change.Step == daemon.Assign {
			targets = append(targets, change.To.Incarnation)
		}
	}
	for _, lock := range []struct {
		statement string
		rows      []node.Incarnation
	}{{"nodes_lock", changed}, {"targets_lock", targets}} {
		slices.Sort(lock.rows)
		if rows := slices.Compact(lock.rows); len(rows) > 0 {
			m.do(lock.statement, array(rows))
		}
	}
	if len(changes) > 0 {
		m.do("units_lock", encode(changes))
	}
}

func inputOf(ord int, c storage.Change) changeInput {
	name, index := columns(c.Unit)
	in := changeInput{
		Ord: ord, Daemon: name, Index: index, Step: string(c.Step), State: string(c.State),
		Generation: c.Generation, Target: string(c.To.Incarnation), Acknowledge: int64(c.AcknowledgeTimeout),
		Drain: int64(c.DrainTimeout), Forced: c.Forced, Embargo: micros(c.Embargo), Retired: c.Retired,
		Reason: cleanText(c.Reason), Detail: detail(c.Detail),
	}
	if c.Dead != nil {
		in.Dead, in.Seq = string(c.Dead.Incarnation), number(c.Dead.Seq)
	}
	return in
}

// detail makes a document that Postgres can store. Text that is not JSON becomes a string, and NUL
// becomes the replacement character. An explanation must not prevent a commit.
func detail(text json.RawMessage) json.RawMessage {
	if len(text) == 0 {
		return nil
	}
	if !json.Valid(text) {
		text = json.RawMessage(encode(cleanText(string(text))))
	}
	return bytes.ReplaceAll(text, []byte(`\u0000`), []byte(`\ufffd`))
}

func nodeInputs(changes []storage.NodeChange) []nodeInput {
	out := make([]nodeInput, len(changes))
	for i, c := range changes {
		out[i] = nodeInput{i, string(c.Guard.Incarnation), number(c.Guard.Seq), string(c.State), cleanText(c.Reason), c.ObservedAt}
	}
	return out
}

// eventInput is one element of the input of commit_events.sql.
type eventInput struct {
	Ord    int             `json:"ord"`
	Kind   string          `json:"kind"`
	Node   string          `json:"node"`
	Daemon string          `json:"daemon"`
	Reason string          `json:"reason"`
	Detail json.RawMessage `json:"detail,omitempty"`
}

func eventInputs(events []daemon.Event) []eventInput {
	out := make([]eventInput, len(events))
	for i, e := range events {
		out[i] = eventInput{i, cleanText(string(e.Kind)), cleanText(e.Node), cleanText(string(e.Daemon)), cleanText(e.Reason), detail(e.Detail)}
	}
	return out
}

func (in changeInput) unit() daemon.Unit {
	return rules.FromColumns(in.Daemon, in.Index)
}

// inOrder cuts changes into batches, one statement each. In a batch no unit occurs twice, and all
// changes are declarations or all are steps. A declaration that comes first for its unit is moved
// to the front. It makes no event and touches no other unit, so the order cannot be observed. A
// leader that declares and assigns a hundred units then needs only two statements.
func inOrder(changes []changeInput) [][]changeInput {
	var first, rest []changeInput
	met := map[daemon.Unit]bool{}
	for _, c := range changes {
		if c.Step == "" && !met[c.unit()] {
			first = append(first, c)
		} else {
			rest = append(rest, c)
		}
		met[c.unit()] = true
	}
	var out [][]changeInput
	if len(first) > 0 {
		out = append(out, first)
	}
	for part := range splitByKey(rest, changeInput.unit) {
		for len(part) > 0 {
			n := slices.IndexFunc(part, func(c changeInput) bool { return (c.Step == "") != (part[0].Step == "") })
			if n < 0 {
				n = len(part)
			}
			out, part = append(out, part[:n]), part[n:]
		}
	}
	return out
}
