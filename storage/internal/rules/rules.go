// Package rules is the part of the store's contract that concerns rows, and not how they are
// stored. It says what a step of the lifecycle requires and writes, how an election changes the
// term, what a leave frees, and which event records each. The stores that decide in Go share it, so
// that each rule is written once. storage/postgres decides inside the database and has rules of its
// own. storage/storagetest compares all of them with a model.
//
// A rule is a function of the rows ([Rows]), the call and now. It either changes rows and emits one
// event for each change, or changes nothing and returns that as its answer. It never reads a clock
// and never waits. The store makes each call one atomic step.
//
// The stores themselves decide which calls are admitted (sequence numbers, tombstones), what proves
// that a node's row did not change, who is woken, and when a lock has expired.
package rules

import (
	"encoding/json"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/node"
	"github.com/emitd/emitd/storage"
)

// Rows is what a rule reads and writes, within one step.
type Rows interface {
	// Node returns a process's row, tombstones included, or nil. It is never changed in place.
	Node(inc node.Incarnation) *node.Member
	// PutNode writes these fields of a process's existing row: its state, whether it is called late
	// or deaf, whether it is proven to have ended, and its end.
	PutNode(m node.Member)
	// Unchanged reports whether an existing row has not changed since the leader saw it.
	Unchanged(g storage.NodeVersion) bool
	// Unit returns a unit's row, or nil. It is never changed in place.
	Unit(u daemon.Unit) *daemon.Record
	Put(r daemon.Record)
	// HeldBy returns the units that a process holds, sorted; the caller may not change the slice.
	HeldBy(inc node.Incarnation) []daemon.Record
	// Fence returns the generation that the unit's fence was stamped with.
	Fence(u daemon.Unit) int64
	// Highest returns the highest term and the highest generation that any row reports.
	Highest() (term, generation int64)
	// Emit appends an event; the store assigns its number and time.
	Emit(e daemon.Event, now time.Time)
}

// present returns the row of a process that is a member, or nil.
func present(r Rows, inc node.Incarnation) *node.Member {
	if m := r.Node(inc); m != nil && m.Present() {
		return m
	}
	return nil
}

// NodeEvent makes an event about a node.
func NodeEvent(kind daemon.EventKind, who node.Identity, reason string) daemon.Event {
	return daemon.Event{Kind: kind, Node: who.Name, NodeID: who.ID, Incarnation: who.Incarnation, Reason: reason}
}

// ForceFree frees units by force, without their holders' confirmation.
func ForceFree(r Rows, units []daemon.Record, reason string, now time.Time) {
	for _, rec := range units {
		next, ok := daemon.Next(rec.State, daemon.Expire)
		if !ok {
			continue // a state that a newer version wrote: leave it alone
		}
		rec.State, rec.Since, rec.Reason, rec.Forced = next, now, reason, true
		r.Put(rec)
		r.Emit(unitEvent(daemon.AssignmentForced, rec), now)
	}
}

// termEvent makes an event about a term.
func termEvent(kind daemon.EventKind, t node.Term, reason string) daemon.Event {
	e := NodeEvent(kind, t.Leader, reason)
	e.Term, e.TermOrdinal = t.Number, t.Ordinal
	return e
}

// unitEvent makes an event about a unit and its present or last holder.
func unitEvent(kind daemon.EventKind, r daemon.Record) daemon.Event {
	e := NodeEvent(kind, r.Holder, r.Reason)
	e.Daemon, e.Unit, e.Term, e.Generation = r.Unit.Daemon, r.Unit, r.Term, r.Generation
	return e
}

// commandDetail is the detail of an event that a command caused; nil if no command did.
func commandDetail(command, actor, result string, args json.RawMessage) json.RawMessage {
	if command == "" && actor == "" {
		return nil
	}
	if !json.Valid(args) {
		args = nil
	}
	text, err := json.Marshal(struct {
		Command string          `json:"command,omitempty"`
		Actor   string          `json:"actor,omitempty"`
		Result  string          `json:"result,omitempty"`
		Args    json.RawMessage `json:"args,omitempty"`
	}{command, actor, result, args})
	if err != nil {
		panic("strings and stored JSON always marshal: " + err.Error())
	}
	return text
}
