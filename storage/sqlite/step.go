package sqlite

import (
	"fmt"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/node"
	"github.com/emitd/emitd/storage"
	"github.com/emitd/emitd/storage/internal/rules"
)

var _ rules.Rows = (*step)(nil)

// Emit records an event; flush gives it the next number.
func (st *step) Emit(e daemon.Event, now time.Time) {
	e.At = now
	st.events = append(st.events, e)
}

// flush writes the events as the last changes of the transaction. The order of numbers is therefore
// the order of commits, and a transaction that fails leaves no gap.
func (st *step) flush() {
	if len(st.events) == 0 {
		return
	}
	for _, e := range st.events {
		st.meta.head, st.meta.headAt = st.meta.head+1, nanos(e.At)
		var index any
		if !e.Unit.IsZero() {
			name, i := rules.Columns(e.Unit)
			e.Daemon, index = daemon.ID(name), i
		}
		st.exec(`INSERT INTO ~event (`+eventColumns+`) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`,
			st.meta.head, nanos(e.At), e.Kind, e.Node, e.NodeID, e.Incarnation, e.Daemon, index,
			e.Term, e.TermOrdinal, e.Generation, e.Reason, orNull(e.Detail))
	}
	st.events = nil
	st.exec(`UPDATE ~meta SET head = ?`, st.meta.head)
}

// Node implements [rules.Rows].
func (st *step) Node(inc node.Incarnation) *node.Member {
	if m := st.node(inc); m != nil {
		return &m.Member
	}
	return nil
}

// PutNode implements [rules.Rows].
func (st *step) PutNode(m node.Member) {
	st.exec(`UPDATE ~node SET state = ?, judged = ?, witnessed = ?, ended_at = ?, end_reason = ? WHERE incarnation = ?`,
		m.State, m.LeaderState, m.ExitProven, nanos(m.EndedAt), m.EndReason, m.Incarnation)
}

// Unchanged implements [rules.Rows].
func (st *step) Unchanged(g storage.NodeVersion) bool {
	m := st.node(g.Incarnation)
	return m != nil && m.Seq == g.Seq
}

// Highest implements [rules.Rows].
func (st *step) Highest() (term, generation int64) {
	var floor int64
	st.one(`SELECT max(highest_term), max(highest_generation), (SELECT generation_floor FROM ~meta) FROM ~node`, nil,
		orZero{&term}, orZero{&generation}, orZero{&floor})
	return term, max(generation, floor)
}

// wakeLeader notes that the leader has something to do, if there is one.
func (st *step) wakeLeader() { st.woken = st.woken || st.term.Held() }

// checkFence returns an error unless a run may have effects.
func (q *query) checkFence(f daemon.Fence) error { return checkFenceHeld(f, q.Fence(f.Unit)) }

// checkFenceHeld accepts only the run that has stamped the unit's fence last. A run with a lower
// generation was superseded. One with a higher generation has not stamped yet, and might read data
// that an earlier run is still about to change. Generation 0 belongs to no run.
func checkFenceHeld(f daemon.Fence, held int64) error {
	if held != f.Generation || f.Generation <= 0 {
		return &daemon.StaleError{Fence: f, HeldGeneration: held}
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
