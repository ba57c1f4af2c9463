package daemon

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/emitd/emitd/node"
)

// EventKind is the kind of an event.
type EventKind string

// The kinds of event.
const (
	NodeRegistered EventKind = "node.registered"
	NodeLate       EventKind = "node.late"
	NodeDeaf       EventKind = "node.deaf"
	NodeRemoved    EventKind = "node.removed" // it left, or was declared dead; its row stays until the sweeper deletes it
	LeaderElected  EventKind = "leader.elected"
	LeaderLost     EventKind = "leader.lost"

	AssignmentAssigned  EventKind = "assignment.assigned"
	AssignmentActive    EventKind = "assignment.active"
	AssignmentRevoking  EventKind = "assignment.revoking"
	AssignmentDeleted   EventKind = "assignment.deleted" // the run has ended, or never began; the unit is free
	AssignmentForced    EventKind = "assignment.forced"  // the unit is free, but no report says that its run has ended
	AssignmentResumed   EventKind = "assignment.resumed"
	AssignmentPostponed EventKind = "assignment.postponed"
	AssignmentFailed    EventKind = "assignment.failed"
	AssignmentAbandoned EventKind = "assignment.abandoned"
	AssignmentFailing   EventKind = "assignment.failing"   // its run fails and is started again on the same node
	AssignmentRecovered EventKind = "assignment.recovered" // after failures, a run has lasted for Spec.FailuresResetAfter

	BrakeHeld     EventKind = "brake.held"     // so many nodes look dead at once that nothing is taken from them for a while
	BrakeReleased EventKind = "brake.released" // the nodes are back, or the time is over

	LedgerQuarantined EventKind = "ledger.quarantined" // a daemon failed on so many nodes that it is tried only now and then
	LedgerSick        EventKind = "ledger.sick"        // so many daemons failed on a node that it gets units last
	LedgerCleared     EventKind = "ledger.cleared"     // the daemon or node is treated as any other again

	UnitsChanged EventKind = "units.changed" // keys were added to a keyed daemon, or removed

	PeriodicScheduled EventKind = "periodic.scheduled" // a schedule begins: it is new or has changed
	PeriodicStarted   EventKind = "periodic.started"   // a call for a due time begins
	PeriodicEnded     EventKind = "periodic.ended"     // the call has succeeded
	PeriodicFailed    EventKind = "periodic.failed"    // the call has failed, or its end was not recorded
	PeriodicMissed    EventKind = "periodic.missed"    // due times have passed for which no call is made

	FenceWaiting EventKind = "fence.waiting" // a run that begins has waited for longer than a second to stamp its fence
)

// Event is an entry in the cluster's numbered history. The transaction that makes a change also
// writes its event. Seq grows by one in commit order, without gaps.
type Event struct {
	Seq         int64            `json:"seq"`
	At          time.Time        `json:"at"` // the store's clock
	Kind        EventKind        `json:"kind"`
	Node        string           `json:"node,omitempty"` // name
	NodeID      node.ID          `json:"node_id,omitempty"`
	Incarnation node.Incarnation `json:"incarnation,omitempty"`
	Daemon      ID               `json:"daemon,omitempty"`
	Unit        Unit             `json:"unit,omitzero"`
	// Term is, of leader.* events, that term; of assignment.* events, the term of the leader that decided; of operator.*
	// events, the term that the command expects; of node.* events 0.
	Term        int64           `json:"term,omitempty"`
	TermOrdinal int64           `json:"term_ordinal,omitempty"` // of leader.* events only: 1, 2, 3 …, the number for people
	Generation  int64           `json:"generation,omitempty"`
	Reason      string          `json:"reason,omitempty"`
	Detail      json.RawMessage `json:"detail,omitempty"` // the explanation; see docs/reference/events.md
}

// Fence names one run of one unit. It is a plain value. Pass it to store.Fence or store.InTx, or
// give its text to any resource that remembers the highest generation it has seen per unit and
// refuses a lower one.
type Fence struct {
	Unit       Unit  `json:"unit"`
	Generation int64 `json:"generation"`
}

// String returns unit@generation.
func (f Fence) String() string { return f.Unit.String() + "@" + strconv.FormatInt(f.Generation, 10) }

// MarshalText returns unit@generation. Two fences have the same text only if they are equal. The zero Fence has no
// text: it is an error.
func (f Fence) MarshalText() ([]byte, error) {
	if f == (Fence{}) {
		return nil, errors.New("the zero fence names no run")
	}
	return []byte(f.String()), nil
}

// UnmarshalText parses unit@generation.
func (f *Fence) UnmarshalText(text []byte) error {
	at := strings.LastIndexByte(string(text), '@') // a key may contain one, too
	if at < 0 {
		return fmt.Errorf("fence %q is not of the form unit@generation", text)
	}
	unit, gen := string(text[:at]), string(text[at+1:])
	u, err := ParseUnit(unit)
	if err != nil {
		return fmt.Errorf("fence %q: %w", text, err)
	}
	g, err := strconv.ParseInt(gen, 10, 64)
	if err != nil || g <= 0 || strconv.FormatInt(g, 10) != gen {
		return fmt.Errorf("fence %q does not end in a generation", text)
	}
	*f = Fence{Unit: u, Generation: g}
	return nil
}
