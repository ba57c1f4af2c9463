package daemon

import (
	"time"

	"github.com/emitd/emitd/node"
)

// State is where an assignment stands.
type State string

// The states of an assignment. A state that a newer version wrote is kept, reported and left
// alone.
const (
	Unassigned State = "unassigned" // declared, never assigned
	Assigning  State = "assigning"  // given to a node that has not acknowledged
	Active     State = "active"     // acknowledged: it runs
	Revoking   State = "revoking"   // asked back; draining
	Deleted    State = "deleted"    // the assignment ended; the unit is free
)

// Free reports whether nobody holds the unit: it can be assigned.
func (s State) Free() bool { return s == Unassigned || s == Deleted }

// Known reports whether this version knows the state.
func (s State) Known() bool { return s.Free() || s == Assigning || s == Active || s == Revoking }

// Step is something that may happen to an assignment.
type Step string

// The steps. Assign, Revoke and Expire are the leader's; the others are the holder's reports.
const (
	Assign      Step = "assign"
	Acknowledge Step = "acknowledge" // the run was entered (or said it is ready)
	Revoke      Step = "revoke"      // by the leader, or by the holder for itself when it leaves
	Confirm     Step = "confirm"     // the run has returned after a revoke
	Abandon     Step = "abandon"     // the run ignored its cancellation: the process is kept from the unit
	Release     Step = "release"     // the holder gives the unit back; its run has returned
	Resume      Step = "resume"      // a new run of an active unit on the same node, with a higher generation
	Fail        Step = "fail"        // attempts of the run failed and are repeated here: it may crash in a loop
	Recover     Step = "recover"     // the run has lived long enough since: its failures are forgotten
	Postpone    Step = "postpone"    // the run waits for its turn to start: a higher generation, the acknowledge timeout begins anew
	Expire      Step = "expire"      // the leader frees the unit: a deadline passed or the holder is dead
)

var lifecycle = map[State]map[Step]State{
	Unassigned: {Assign: Assigning},
	Assigning:  {Acknowledge: Active, Postpone: Assigning, Fail: Assigning, Revoke: Revoking, Release: Deleted, Abandon: Deleted, Expire: Deleted},
	Active:     {Fail: Active, Recover: Active, Revoke: Revoking, Release: Deleted, Abandon: Deleted, Resume: Active, Expire: Deleted},
	Revoking:   {Confirm: Deleted, Abandon: Deleted, Expire: Deleted},
	Deleted:    {Assign: Assigning},
}

// WellAfter is how long a run must live for the failures before it to be forgotten ([Recover]).
const WellAfter = time.Minute

// Next returns the state after step, and whether the table has that pair at all.
func Next(s State, step Step) (State, bool) {
	next, ok := lifecycle[s][step]
	return next, ok
}

// Stays reports whether the step leaves the unit where it is: what the assignment was made for is
// still why.
func (s Step) Stays() bool { return s == Acknowledge || s == Resume || s == Postpone || s.Health() }

// Health reports whether the step only tells how the run is: the state stays, and since when it is so.
func (s Step) Health() bool { return s == Fail || s == Recover }

// Record is a unit's row in the store.
type Record struct {
	Unit  Unit  `json:"unit"`
	State State `json:"state"`
	// Holder is who holds the unit; after the end of an assignment, who held it last.
	Holder     node.Identity `json:"holder,omitzero"`
	Generation int64         `json:"generation"`
	Term       int64         `json:"term"` // that assigned or revoked last

	// Since is when State was written, AssignedAt and RevokedAt when the current assignment was
	// assigned and revoked: all stamped by the store.
	Since      time.Time `json:"since"`
	AssignedAt time.Time `json:"assigned_at,omitzero"`
	RevokedAt  time.Time `json:"revoked_at,omitzero"`
	// AcknowledgeTimeout and DrainTimeout are those the current assignment was made with.
	AcknowledgeTimeout time.Duration `json:"acknowledge_timeout,omitempty"`
	DrainTimeout       time.Duration `json:"drain_timeout,omitempty"`

	// Reason is why it is where it is: while somebody holds it, why it was assigned there or
	// asked back; when it is free, why the assignment ended.
	Reason string `json:"reason,omitempty"`
	Forced bool   `json:"forced,omitempty"` // the last end was not confirmed by the holder
	// Failures is how often its runs have failed, here and on earlier nodes, since one of them lived long
	// enough to be called well ([Recover]).
	Failures int    `json:"failures,omitempty"`
	Error    string `json:"error,omitempty"` // the last failure reported
	// FailingSince is when the first of Failures was reported; RetryAt is when the holder starts the run
	// again, zero while it runs or nobody holds the unit.
	FailingSince time.Time `json:"failing_since,omitzero"`
	RetryAt      time.Time `json:"retry_at,omitzero"`
	// Retired is set when the unit is no longer declared.
	Retired   bool      `json:"retired,omitempty"`
	Embargoes []Embargo `json:"embargoes,omitempty"`
}

// Embargo keeps a unit away from a process on which it failed, did not start or was abandoned.
type Embargo struct {
	Incarnation node.Incarnation `json:"incarnation"`
	Until       time.Time        `json:"until"`  // by the store's clock
	Length      time.Duration    `json:"length"` // from the moment it was laid until its end
	Strikes     int              `json:"strikes"`
	// Run is the generation under which a run was abandoned in the process. Such an embargo ends with the
	// word that the run has returned; it stands beside one that a failure laid. 0 = of a failure.
	Run    int64  `json:"run,omitempty"`
	Reason string `json:"reason,omitempty"`
}

// EndsWith reports whether the embargo ends when a process tells that all runs of the unit have returned in it
// that were abandoned under the generation of returned or a lower one.
func (e Embargo) EndsWith(inc node.Incarnation, returned Fence) bool {
	return e.Incarnation == inc && e.Run > 0 && e.Run <= returned.Generation
}

// Holds reports whether the embargo holds at now, by the store's clock. An end that lies further
// ahead than the embargo is long was written while that clock stood ahead of where it stands now, and
// does not count: such an embargo would last for as long as the clock was wrong.
func (e Embargo) Holds(now time.Time) bool {
	left := e.Until.Sub(now)
	return left > 0 && left <= e.Length
}

// crashLoop is how many failures in a row, none of them followed by [WellAfter] of life, are a loop.
const crashLoop = 2

// Crashing reports whether the unit's runs fail again and again, wherever it is in its lifecycle: what its
// row says (active: its holder starts it again; free: no node is left to try) hides that it does not work.
func (r Record) Crashing() bool {
	return r.Failures >= crashLoop && !r.Retired && r.State != Revoking && r.State.Known()
}

// HeldBy reports whether the process holds the unit now.
func (r Record) HeldBy(inc node.Incarnation) bool {
	return !r.State.Free() && r.Holder.Incarnation == inc
}

// Fence returns the token of the record's current run.
func (r Record) Fence() Fence { return Fence{Unit: r.Unit, Generation: r.Generation} }

// Snapshot is the whole cluster as one consistent read of the store.
type Snapshot struct {
	Now     time.Time          `json:"now"` // the store's clock
	StoreID string             `json:"store_id"`
	Cluster string             `json:"cluster"` // the name that the store remembers; empty until a node registers
	Term    node.Term          `json:"term"`
	Lease   node.Lease         `json:"lease"`
	Nodes   []node.Member      `json:"nodes"` // sorted by incarnation, tombstones included
	Units   []Record           `json:"units"` // sorted by unit
	Adverts map[string]*Advert `json:"-"`     // by Member.Advert; shared, never written to
	Head    int64              `json:"head"`  // newest event
}

// Advert returns what the member advertises; never nil.
func (s *Snapshot) Advert(m node.Member) *Advert {
	if a := s.Adverts[m.Advert]; a != nil {
		return a
	}
	return &noAdvert
}

var noAdvert Advert
