package daemon

import (
	"time"

	"github.com/emitd/emitd/node"
)

// State is the state of a unit's assignment.
type State string

// The states of an assignment. A state that a newer version wrote is kept, reported and left
// alone.
const (
	Unassigned State = "unassigned" // declared, never assigned
	Assigning  State = "assigning"  // assigned to a node that has not acknowledged
	Active     State = "active"     // acknowledged: its run has begun
	Revoking   State = "revoking"   // revoked; its run is draining
	Deleted    State = "deleted"    // the assignment ended; the unit is free
)

// IsFree reports whether nobody holds the unit, so that it can be assigned.
func (s State) IsFree() bool { return s == Unassigned || s == Deleted }

// Known reports whether this version knows the state.
func (s State) Known() bool { return s.IsFree() || s == Assigning || s == Active || s == Revoking }

// Step is a transition of an assignment.
type Step string

// The steps. Assign, Revoke and Expire are the leader's; the others are the holder's reports.
const (
	Assign      Step = "assign"
	Acknowledge Step = "acknowledge" // the run has begun, or it called Ready if WaitReady is set
	Revoke      Step = "revoke"      // by the leader, or by the holder for itself when it leaves
	Confirm     Step = "confirm"     // the run has returned after a revoke
	Abandon     Step = "abandon"     // the run ignored its cancellation: the process gets an embargo for the unit
	Release     Step = "release"     // the holder gives the unit back; its run has returned
	Resume      Step = "resume"      // a new run of an active unit on the same node, with a higher generation
	Fail        Step = "fail"        // the run failed and is started again on this node; it may crash in a loop
	Recover     Step = "recover"     // the run has lasted for FailuresResetAfter: the row's failures are reset
	Postpone    Step = "postpone"    // the unit waits behind the node's other starts; higher generation, new acknowledge timeout
	Expire      Step = "expire"      // the leader frees the unit: a deadline passed or the holder is dead
)

var lifecycle = map[State]map[Step]State{
	Unassigned: {Assign: Assigning},
	Assigning:  {Acknowledge: Active, Postpone: Assigning, Fail: Assigning, Revoke: Revoking, Release: Deleted, Abandon: Deleted, Expire: Deleted},
	Active:     {Fail: Active, Recover: Active, Revoke: Revoking, Release: Deleted, Abandon: Deleted, Resume: Active, Expire: Deleted},
	Revoking:   {Confirm: Deleted, Abandon: Deleted, Expire: Deleted},
	Deleted:    {Assign: Assigning},
}

// FailuresResetAfter is how long a run must last before the failures before it are reset ([Recover]). With
// Spec.StallTimeout the reset comes later by as much as it may take to find out that the run has made no progress meanwhile.
const FailuresResetAfter = time.Minute

// Next returns the state after step, and whether the table has that pair of state and step.
func Next(s State, step Step) (State, bool) {
	next, ok := lifecycle[s][step]
	return next, ok
}

// KeepsHolder reports whether the step leaves the unit with its holder. The reason of the assignment is then still valid.
func (s Step) KeepsHolder() bool {
	return s == Acknowledge || s == Resume || s == Postpone || s.IsHealthReport()
}

// IsHealthReport reports whether the step only says how the run is doing. The state and its Since do not change then.
func (s Step) IsHealthReport() bool { return s == Fail || s == Recover }

// Record is a unit's row in the store.
type Record struct {
	Unit  Unit  `json:"unit"`
	State State `json:"state"`
	// Holder is the process that holds the unit. After the end of an assignment it is the process that held it
	// last.
	Holder     node.Identity `json:"holder,omitzero"`
	Generation int64         `json:"generation"`
	Term       int64         `json:"term"` // the term that assigned or revoked it last

	// Since is when State was written. AssignedAt and RevokedAt are when the current assignment was assigned and
	// revoked. The store stamps all three.
	Since      time.Time `json:"since"`
	AssignedAt time.Time `json:"assigned_at,omitzero"`
	RevokedAt  time.Time `json:"revoked_at,omitzero"`
	// AcknowledgeTimeout and DrainTimeout are those that the current assignment was made with.
	AcknowledgeTimeout time.Duration `json:"acknowledge_timeout,omitempty"`
	DrainTimeout       time.Duration `json:"drain_timeout,omitempty"`

	// Reason, while a process holds the unit, is why it was assigned there or revoked. When the unit is free, it is
	// why the assignment ended.
	Reason string `json:"reason,omitempty"`
	Forced bool   `json:"forced,omitempty"` // the last end was not confirmed by the holder
	// Failures is how often its runs have failed, on this and earlier nodes, since one of them last lasted for
	// FailuresResetAfter ([Recover]).
	Failures int    `json:"failures,omitempty"`
	Error    string `json:"error,omitempty"` // the last failure reported
	// FailingSince is when the first of Failures was reported. RetryAt is when the holder starts the run again; it
	// is zero while the run executes and when nobody holds the unit.
	FailingSince time.Time `json:"failing_since,omitzero"`
	RetryAt      time.Time `json:"retry_at,omitzero"`
	// Retired is set when the unit is no longer declared.
	Retired   bool      `json:"retired,omitempty"`
	Embargoes []Embargo `json:"embargoes,omitempty"`
}

// Embargo is a time for which a process may not be given a unit that failed, did not start or was abandoned on it.
type Embargo struct {
	Incarnation node.Incarnation `json:"incarnation"`
	// Node is the process's name. The next process with that name does not inherit the embargo, but its failures count
	// together with these.
	Node    string        `json:"node,omitempty"`
	Until   time.Time     `json:"until"`  // by the store's clock
	Length  time.Duration `json:"length"` // from the moment it was imposed until its end
	Strikes int           `json:"strikes"`
	// AbandonedGeneration is the generation under which a run was abandoned in the process. Such an embargo ends when the process
	// reports that the run has returned. It exists beside one that a failure imposed. 0 = imposed for a failure.
	AbandonedGeneration int64  `json:"run,omitempty"`
	Reason              string `json:"reason,omitempty"`
}

// EndsWith reports whether the embargo ends when process inc reports returned. That report says that all runs of
// the unit have returned which the process abandoned under this generation or a lower one.
func (e Embargo) EndsWith(inc node.Incarnation, returned Fence) bool {
	return e.Incarnation == inc && e.AbandonedGeneration > 0 && e.AbandonedGeneration <= returned.Generation
}

// InForce reports whether the embargo is in force at now, by the store's clock. If the end lies further ahead than
// the embargo is long, it was written while that clock was ahead of where it is now. It does not count then:
// otherwise the embargo would last for as long as the clock was wrong.
func (e Embargo) InForce(now time.Time) bool {
	left := e.Until.Sub(now)
	return left > 0 && left <= e.Length
}

// crashLoop is how many failures in a row, without a run that lasted for [FailuresResetAfter], are a crash loop.
const crashLoop = 2

// Crashing reports whether the unit's runs fail again and again, whatever its state is. The state hides this: a
// crashing unit is active while its holder restarts it, and free while no node is left to try.
func (r Record) Crashing() bool {
	return r.Failures >= crashLoop && !r.Retired && r.State != Revoking && r.State.Known()
}

// HeldBy reports whether the process holds the unit now.
func (r Record) HeldBy(inc node.Incarnation) bool {
	return !r.State.IsFree() && r.Holder.Incarnation == inc
}

// Fence returns the fence of the record's current run.
func (r Record) Fence() Fence { return Fence{Unit: r.Unit, Generation: r.Generation} }

// Snapshot is the whole cluster as one consistent read of the store.
type Snapshot struct {
	Now     time.Time          `json:"now"` // the store's clock
	StoreID string             `json:"store_id"`
	Cluster string             `json:"cluster"` // the name that the store remembers; empty until a node registers
	Term    node.Term          `json:"term"`
	Lease   node.Lease         `json:"lease"`
	Nodes   []node.Member      `json:"nodes"` // sorted by incarnation, tombstones included
	Units   []Record           `json:"units"` // sorted by unit; shared, never written to
	Adverts map[string]*Advert `json:"-"`     // by Member.Advert; shared, never written to
	Head    int64              `json:"head"`  // newest event
	// Commands are the open commands, oldest first.
	Commands []Command `json:"commands,omitempty"`
}

// Advert returns what the member advertises; never nil.
func (s *Snapshot) Advert(m node.Member) *Advert {
	if a := s.Adverts[m.Advert]; a != nil {
		return a
	}
	return &noAdvert
}

var noAdvert Advert
