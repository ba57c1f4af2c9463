package sqlite

import (
	"encoding/json"
	"fmt"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/node"
	"github.com/emitd/emitd/storage"
)

// emit notes an event; flush gives it the next number.
func (st *step) emit(e daemon.Event) { st.events = append(st.events, e) }

// flush writes the events as the last changes of the transaction: the order of numbers is the
// order of commits, and a transaction that fails leaves no gap.
func (st *step) flush() {
	if len(st.events) == 0 {
		return
	}
	for _, e := range st.events {
		st.meta.head++
		var index any
		if !e.Unit.IsZero() {
			index = e.Unit.Index
		}
		st.exec(`INSERT INTO ~event (`+eventColumns+`) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`,
			st.meta.head, nanos(st.now), e.Kind, e.Node, e.NodeID, e.Incarnation, e.Daemon, index,
			e.Term, e.TermOrdinal, e.Generation, e.Reason, orNull(e.Detail))
	}
	st.events = nil
	st.exec(`UPDATE ~meta SET head = ?`, st.meta.head)
}

// nodeEvent makes an event about a node.
func nodeEvent(kind daemon.EventKind, who node.Identity, reason string) daemon.Event {
	return daemon.Event{Kind: kind, Node: who.Name, NodeID: who.ID, Incarnation: who.Incarnation, Reason: reason}
}

// termEvent makes an event about a term.
func termEvent(kind daemon.EventKind, t node.Term, reason string) daemon.Event {
	e := nodeEvent(kind, t.Leader, reason)
	e.Term, e.TermOrdinal = t.Number, t.Ordinal
	return e
}

// unitEvent makes an event about a unit and its present or last holder.
func unitEvent(kind daemon.EventKind, r daemon.Record) daemon.Event {
	e := nodeEvent(kind, r.Holder, r.Reason)
	e.Daemon, e.Unit, e.Term, e.Generation = r.Unit.Daemon, r.Unit, r.Term, r.Generation
	return e
}

// commandDetail is the detail of an event that a command caused; nil if none did.
func commandDetail(command, actor, result string) json.RawMessage {
	if command == "" && actor == "" {
		return nil
	}
	return json.RawMessage(toJSON(struct {
		Command string `json:"command,omitempty"`
		Actor   string `json:"actor,omitempty"`
		Result  string `json:"result,omitempty"`
	}{command, actor, result}))
}

// wakeLeader hints that the leader has something to do, if there is one.
func (st *step) wakeLeader() { st.woken = st.woken || st.term.Held() }

// highestTerm is the highest term number that any row reports.
func (st *step) highestTerm() (n int64) {
	st.one(`SELECT max(highest_term) FROM ~node`, nil, orZero{&n})
	return n
}

// highestGeneration is the highest generation that any row reports. It is read once per step:
// within one, nothing raises it after it was asked for.
func (st *step) highestGeneration() int64 {
	if st.highest < 0 {
		st.highest = 0
		st.one(`SELECT max(highest_generation) FROM ~node`, nil, orZero{&st.highest})
	}
	return st.highest
}

// nextGeneration returns the generation of the unit's next run: higher than its last one, the
// term, whatever anybody reported or the caller has seen, and what its fence was stamped with.
func (st *step) nextGeneration(rec daemon.Record, term, seen int64) int64 {
	return storage.NextGeneration(rec.Generation, term, max(seen, st.highestGeneration(), st.fence(rec.Unit)))
}

// vacate gives the term up: its number is used, nobody leads.
func (st *step) vacate() { st.exec(`UPDATE ~term SET vacant = 1`) }

// entomb turns a row into a tombstone.
func (st *step) entomb(who node.Identity, reason string) {
	st.exec(`UPDATE ~node SET state = ?, ended_at = ?, end_reason = ? WHERE incarnation = ?`,
		node.Removed, nanos(st.now), reason, who.Incarnation)
	st.emit(nodeEvent(daemon.NodeRemoved, who, reason))
}

// checkFence asks whether a run may have effects.
func (q *query) checkFence(f daemon.Fence) error { return judgeFence(f, q.fence(f.Unit)) }

// judgeFence accepts the run that has stamped the unit's fence last, and no other: a lower
// generation was overtaken, a higher one has not claimed yet, and who has not claimed may read
// what an earlier run is still about to change. Generation 0 is nobody's.
func judgeFence(f daemon.Fence, held int64) error {
	if held != f.Generation || f.Generation <= 0 {
		return &daemon.StaleError{Fence: f, Holds: held}
	}
	return nil
}

// attempted says what failed; nil stays nil.
func attempted(err error, what string, who node.Identity) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("%s %q (incarnation %s): %w", what, who.Name, who.Incarnation, err)
}
