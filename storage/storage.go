// Package storage is the contract of the cluster store, the only authority in a cluster.
//
// # What a store is
//
// A store keeps nodes, one term and its lease, units, their fences, events, operators' commands
// and locks. Every method is one atomic step: it happens entirely or not at all, and its effects
// are visible to every call that begins after it returned. A method that returns an error other
// than the ones below has an *unknown* outcome: it may have happened. Callers re-read; nobody
// assumes.
//
// # Whose clock
//
// The store's clock stamps facts, inside the step that makes them (not at its beginning).
// Callers compare times of the store with each other only. It may step; see coordinator/lease
// for what a judge makes of that.
//
// # Order within a heartbeat
//
// [Store.Heartbeat] writes first and then reads, each read seeing everything committed before
// it, not a snapshot from before the write waited: otherwise a unit that was already taken away
// is still reported as the caller's own.
//
// # Sequence numbers
//
// Heartbeats, reports and leaves of one incarnation carry one growing sequence number. The store
// refuses one that is not higher than the row's ([ErrStaleSeq]), so a message that was delayed or
// repeated by the network changes nothing. Rows of nodes that left or died stay as tombstones.
//
// # Which store
//
// A store may become another one under those who use it: a standby is promoted, a backup restored,
// a file replaced. Its identity ([Reply].StoreID) changes then, and its rows may be those of a
// history that lacks what the caller has read. Reports and commits therefore name the store whose
// rows they were decided from; any other refuses them, in the step itself ([ErrStoreChanged]).
// Heartbeats are taken by every store: they are how a node learns of the change.
//
// # Whose store
//
// A store remembers the name of its cluster: the first node that registers with one sets it. A node
// that advertises another name is refused ([ErrOtherCluster]), so that a staging node that is pointed
// at the production store by mistake joins nothing. [Renamer] changes the name deliberately.
//
// # Errors
//
// [ErrTermLost], [ErrStaleSeq], [ErrNotRegistered], [ErrIDInUse], [ErrOtherCluster], [ErrStoreChanged] and
// daemon.ErrStale are answers: nothing was changed. [ErrUnavailable] marks what passes by itself.
// [ErrSchema] says which version the store has and which the program wants.
package storage

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/node"
)

// Store is what a coordinator needs. Its methods may be called from any goroutine; each respects
// the deadline of its context. A backend's own type adds Close and what only it can do.
type Store interface {
	// Heartbeat is the one round trip of an interval; see the package comment for its order.
	// Errors: ErrStaleSeq, ErrNotRegistered, ErrIDInUse, ErrOtherCluster.
	Heartbeat(ctx context.Context, beat Heartbeat) (*Reply, error)

	// Report tells what became of the holder's units. Each report is judged by itself: one that
	// the lifecycle table, holder or generation forbids is refused and changes nothing.
	// Errors: ErrStaleSeq, ErrNotRegistered, ErrStoreChanged.
	Report(ctx context.Context, report Report) ([]Outcome, error)

	// Leave resigns a term, marks the node draining (which revokes all its units) or
	// deregisters it, in one step. Repeating what already is so is harmless.
	// Errors: ErrStaleSeq, ErrNotRegistered.
	Leave(ctx context.Context, leave Leave) error

	// Commit applies a leader's changes. The term and the store's identity guard all of them:
	// ErrTermLost and ErrStoreChanged change nothing. A change whose row has moved is skipped and
	// returned; the others happen.
	Commit(ctx context.Context, commit Commit) ([]Outcome, error)

	// Snapshot reads the whole cluster consistently.
	Snapshot(ctx context.Context) (*daemon.Snapshot, error)

	// Events reads the history after a sequence number, oldest first, at most limit events.
	Events(ctx context.Context, after int64, limit int) (*EventPage, error)

	// Stamp claims a unit for a run: from its return on, effects of lower generations are
	// refused. It waits for transactions that hold the fence. Stamping the generation that is
	// already there is harmless; a higher one there is a daemon.StaleError.
	Stamp(ctx context.Context, fence daemon.Fence) error

	// Submit files an operator's command, idempotent by its ID, and returns it as it stands.
	Submit(ctx context.Context, command Command) (*Command, error)
}

// ClusterName is the rule by which a store accepts a node's name of the cluster, the same for every
// backend: it returns the name to remember, or an [OtherClusterError]. A node that gives no name agrees
// with any.
func ClusterName(stored, advertised string) (string, error) {
	switch {
	case stored == "" || advertised == stored:
		return advertised, nil
	case advertised == "":
		return stored, nil
	}
	return stored, &OtherClusterError{Store: stored, Node: advertised}
}

// Renamer is implemented by stores whose cluster can be given another name. All four backends do.
type Renamer interface {
	// RenameCluster replaces the name, in one step. Errors: ErrOtherCluster if the present name is not
	// from; ErrNodesLive while a node that is registered beat within ttl, because it goes by the old
	// name and would be refused when it next registers.
	RenameCluster(ctx context.Context, from, to string, ttl time.Duration) error
}

// ErrNodesLive says that nodes are at work, which the call does not allow.
var ErrNodesLive = errors.New("nodes of the cluster are live")

// SchemaError is an ErrSchema with both versions.
type SchemaError struct {
	Have, Want int
	Hint       string // what to do
}

// Error names both versions.
func (e *SchemaError) Error() string {
	return fmt.Sprintf("store schema is version %d, this program needs %d: %s", e.Have, e.Want, e.Hint)
}

// Is makes errors.Is(err, ErrSchema) true.
func (e *SchemaError) Is(target error) bool { return target == ErrSchema }

// Heartbeat is what a node says once per interval.
type Heartbeat struct {
	Node node.Identity
	Seq  uint64
	// Heard is the Seq of the newest heartbeat whose reply this node has received.
	Heard uint64
	// HighestTerm and HighestGeneration are the highest numbers this node has seen anywhere.
	HighestTerm, HighestGeneration int64
	// Advert, when set, registers the node or renews what it advertises. Without it, a node
	// that has no live row gets ErrNotRegistered.
	Advert *daemon.Advert
	// TTL is NodeRegistrationTTL: an ID whose other process beat within it is in use.
	TTL time.Duration
	// Claim says what this node wants of the term.
	Claim Claim
	// EventsAfter asks for membership events after this number; -1 asks for none.
	EventsAfter int64
	// WantMembers asks for the whole member list.
	WantMembers bool
	// Ended lists other processes that are proven to have ended: this node runs on their host and has
	// looked. Before the claim is decided, in the same step, their rows are marked as witnessed, and a
	// term that exactly one of them holds is vacated. Such a process keeps no ID in use.
	Ended []node.Incarnation
	// Returned lists runs of this process that it reported abandoned and that have returned since, by unit
	// and the highest generation under which it reported so. Embargoes of this process that were laid for
	// them end (daemon.Embargo.EndsWith), whoever holds the unit by now; no other does. It is a fact about the
	// process, true in any store, and may be told again.
	Returned []daemon.Fence
	// Room, on a registration, is how long one change of each node may take together, this node included. A
	// store that makes the changes of all nodes one after the other registers it only if they do not take
	// longer, and else answers ErrCrowded and has written nothing. 0 sets no limit.
	Room time.Duration
}

// InUse is the rule by which an ID is taken, the same for every backend: the other process beat
// within ttl, by the store's clock. A stamp that is further ahead than ttl was made before the clock
// was set back. It proves nothing, and without a leader that removes the row it would be in the way
// for as long as the step was.
func InUse(lastBeat, now time.Time, ttl time.Duration) bool {
	age := now.Sub(lastBeat)
	return age < ttl && age > -ttl
}

// Claim is a node's wish about the term, decided in the same step by [Decide].
type Claim struct {
	// Lease is LeaseDuration: how long a renewal or election lasts.
	Lease time.Duration
	// Holds is the number of the term this process holds and wants to renew; 0 = none.
	Holds int64
	// LostThrough is the highest number of a term for which this process published Lost: such a
	// term of its own is replaced, never kept.
	LostThrough int64
	// Stand asks to be elected.
	Stand bool
	// SeenTerm and SeenRenewals name exactly what the candidate believes to be over.
	SeenTerm, SeenRenewals int64
	// Unchanged says that (SeenTerm, SeenRenewals) did not change for a whole lease by the
	// candidate's own clock: it stands whatever the store's clock says.
	Unchanged bool
	// PassSeq counts the leader's finished passes; written with a renewal.
	PassSeq uint64
}

// Verdict is what a store makes of a claim.
type Verdict int

// The verdicts.
const (
	Refuse Verdict = iota // nothing changes
	Renew                 // the term stays, its lease is extended
	Elect                 // the claimant gets a new term
)

// Decide is the election rule, the same for every backend: a pure function of the claim, the
// claimant and what the store holds at now, its own clock.
//
//   - A holder renews its own unreplaced term, even one that the store's clock calls expired.
//     A process whose election's reply was lost keeps the term that way, unless it has published
//     Lost for it.
//   - A free term goes to whoever stands.
//   - One's own lost term is replaced at once.
//   - Another's term is replaced only by a candidate that saw exactly this (term, renewals), and
//     only if the store's clock agrees that it is over, or the candidate's own clock watched it
//     unchanged for a whole lease.
func Decide(c Claim, who node.Identity, term node.Term, lease node.Lease, now time.Time) Verdict {
	mine := term.Held() && term.Leader.ID == who.ID && term.Leader.Incarnation == who.Incarnation
	switch {
	case mine && term.Number > c.LostThrough && (c.Stand || c.Holds == term.Number):
		return Renew
	case !c.Stand:
		return Refuse
	case !term.Held() || mine:
		return Elect
	case term.Number == c.SeenTerm && lease.Renewals == c.SeenRenewals && (c.Unchanged || !now.Before(lease.ExpiresAt)):
		return Elect
	}
	return Refuse
}

// LostDetail is the detail of a leader.lost event with which an election replaces a term that was
// not given up.
type LostDetail struct {
	// LeaseEndedAt is when the lease was over by the store's clock, at the latest the moment of
	// the election: between it and the election nobody led.
	LeaseEndedAt time.Time `json:"lease_ended_at"`
}

// Lost returns the detail of the leader.lost event of an election at now.
func Lost(lease node.Lease, now time.Time) json.RawMessage {
	end := lease.ExpiresAt
	if now.Before(end) {
		end = now
	}
	text, err := json.Marshal(LostDetail{end.UTC()})
	if err != nil {
		panic("storage: a time of the store does not marshal: " + err.Error())
	}
	return text
}

// NextNumber returns the number of the term after previous.
func NextNumber(previous int64, now time.Time, highestSeen int64) int64 {
	return max(previous+1, now.UnixMilli(), highestSeen+1)
}

// NextGeneration returns the generation of the run after previous.
func NextGeneration(previous, term, highestReported int64) int64 {
	return max(previous+1, term, highestReported+1)
}

// Reply is what a node learns from a heartbeat.
type Reply struct {
	Seq     uint64    // of the heartbeat it answers
	Now     time.Time // the store's clock
	StoreID string    // changes when the store becomes another one
	// StoreSince is when a heartbeat first found the store to be another one than its own rows
	// say (a failover to a standby, a restored copy): the rows may be those of a lost history.
	// It is zero in a store that never was.
	StoreSince time.Time
	Verdict    Verdict
	Term       node.Term
	Lease      node.Lease
	// Units are all units this incarnation holds, sorted.
	Units []daemon.Record
	// Events are the membership events (node.*) after EventsAfter, oldest first; Head is the
	// newest event of all. Behind says that older ones are gone: ask for the member list.
	Events []daemon.Event
	Head   int64
	Behind bool
	// Members is the whole list, tombstones included, when asked for.
	Members []node.Member
	// Commands are the operators' commands that wait, oldest first.
	Commands []Command
	// ChangeTime is how long one change takes at least, as measured lately, in a store that makes those of all
	// nodes one after the other; 0 in one that does not.
	ChangeTime time.Duration
}

// Report is a batch of what became of a node's units.
type Report struct {
	Node node.Identity
	Seq  uint64
	// StoreID is that of the reply that the report was decided from; "" reports to any store.
	StoreID string
	// HighestGeneration raises the node's highest seen generation, as a heartbeat does.
	HighestGeneration int64
	Units             []UnitReport
}

// UnitReport is one step of the lifecycle table taken by the holder: Acknowledge, Postpone, Confirm,
// Abandon, Release, Resume, Fail or Recover.
type UnitReport struct {
	Unit       daemon.Unit
	Generation int64
	Step       daemon.Step
	// Reason goes into the event, and into the row unless the unit stays where it is
	// (Step.Stays): there the reason of its assignment is kept.
	Reason string
	Error  string // of a failure
	// Failures is how many are added to the row's by a Release with an error (at least one), and how many
	// there are in all by a Fail.
	Failures int
	// RetryIn is how long after a Fail the run is started again.
	RetryIn time.Duration
	// Embargo keeps the unit away from this process for so long (Release, Abandon); 0 = no embargo. That of an
	// abandoned run ends earlier with Heartbeat.Returned.
	Embargo time.Duration
	// AcknowledgeTimeout is how long the postponed assignment has from now on (Postpone); 0 = as
	// long as before.
	AcknowledgeTimeout time.Duration
}

// Outcome is what became of one report or change.
type Outcome struct {
	Unit    daemon.Unit
	Applied bool
	// Record is the row as it is after the step, applied or not; a zero Unit in it says that
	// there is no such row.
	Record daemon.Record
}

// Leave gives things up, in one step.
type Leave struct {
	Node node.Identity
	Seq  uint64
	// Resign is the number of the term to vacate, if this process still holds it; 0 = none.
	Resign int64
	// Drain marks the node draining and revokes all units it holds.
	Drain bool
	// DrainTimeout is stamped on the units so revoked, unless their assignment has its own.
	DrainTimeout time.Duration
	// Deregister turns the row into a tombstone; units still held are forced free.
	Deregister bool
	Reason     node.LossReason
	// Command is the operator's command that this fulfils, if any; it is marked done.
	Command string
	Actor   string
}

// Commit is a leader's batch. At most MaxChanges changes.
type Commit struct {
	Term node.TermRef
	// StoreID is that of the snapshot that the changes were decided from; "" commits to any store.
	StoreID string
	// HighestGeneration is the highest generation the leader has seen anywhere.
	HighestGeneration int64
	Changes           []Change
	Nodes             []NodeChange
}

// MaxChanges bounds one commit.
const MaxChanges = 500

// Change is a step taken by the leader with one unit, guarded by what the leader saw.
type Change struct {
	Unit daemon.Unit
	// Step is Assign, Revoke, Expire, or "" to declare (create the row), retire or unretire.
	Step daemon.Step
	// Generation and State are the guard: another value in the row skips the change. Both zero
	// guard that there is no row.
	Generation int64
	State      daemon.State
	// To is the node that gets the unit (Assign): it must be present and live.
	To node.Identity
	// AcknowledgeTimeout and DrainTimeout are stamped with the assignment.
	AcknowledgeTimeout, DrainTimeout time.Duration
	// Dead, on Expire, says that the holder is dead: its row must still have exactly this
	// (incarnation, seq), or be gone or a tombstone.
	Dead *NodeGuard
	// Forced marks an Expire without the holder's word.
	Forced bool
	// Embargo keeps the unit from its former holder for so long; 0 = no embargo.
	Embargo time.Duration
	Retired bool // for Step "" on an existing row, and on Expire
	Reason  string
	Detail  json.RawMessage // the explanation that goes into the event
}

// NodeGuard is a node's row as the leader saw it.
type NodeGuard struct {
	Incarnation node.Incarnation
	Seq         uint64
}

// NodeChange is a step taken by the leader with a node.
type NodeChange struct {
	Guard NodeGuard // for Removed exactly; for a judgement only the incarnation counts, and Stamp
	// State is Removed (dead: tombstone), Late, Deaf, or Live to take a judgement back.
	State node.State
	// Stamp, for Late and Deaf, is what was found too old: the row's LastHeartbeatAt or HeardAt. A
	// row that has another one by now is not judged: a commit that was long on its way, or comes a
	// second time, says nothing about a node that was heard, or has heard, since. Zero judges
	// whatever the row says.
	Stamp  time.Time
	Reason string
}

// EventPage is a part of the history.
type EventPage struct {
	Events []daemon.Event
	Head   int64 // newest event there is
	Oldest int64 // oldest event still kept; 0 = none
}

// Command is an operator's wish, a durable row.
type Command struct {
	ID       string          `json:"id"`
	Kind     string          `json:"kind"` // CommandResign
	Actor    string          `json:"actor,omitempty"`
	Reason   string          `json:"reason,omitempty"`
	Term     int64           `json:"term,omitempty"` // expected; another leads by then: refused
	Cooldown time.Duration   `json:"cooldown,omitempty"`
	Args     json.RawMessage `json:"args,omitempty"`

	CreatedAt time.Time `json:"created_at"`
	DoneAt    time.Time `json:"done_at,omitzero"`
	Result    string    `json:"result,omitempty"` // "done", "conflict: …"
}

// CommandResign asks the leader of a term to resign.
const CommandResign = "leader.resign"

// Capabilities declare where a backend is weaker than the rule. The zero value is a full store.
type Capabilities struct {
	// NoWake says that nobody is told of changes: everything is found at the next heartbeat.
	NoWake bool
	// NoClock says that the store's clock decides nothing: only "unchanged by my own clock"
	// counts.
	NoClock bool
	// Requests is how many requests one heartbeat costs; 0 counts as 1.
	Requests int
}

// Capable is implemented by backends that declare capabilities.
type Capable interface{ Capabilities() Capabilities }

// CapabilitiesOf returns what the store declares.
func CapabilitiesOf(s Store) Capabilities {
	if c, ok := s.(Capable); ok {
		return c.Capabilities()
	}
	return Capabilities{}
}

// Wake is a hint that something changed. Its zero value is for everybody.
type Wake struct {
	// Nodes are the incarnations concerned; empty = all. A hint for the leader alone names it.
	Nodes []node.Incarnation
	// Leader says that the leader among them has something to do as leader. Named alone, it makes a
	// pass and no heartbeat.
	Leader bool
}

// Waker is implemented by stores that can tell of changes. Hints have no part in correctness:
// they may be lost, late, merged or needless.
type Waker interface {
	// Watch calls wake for each hint until ctx ends; it returns only then, with ctx's error.
	// It reconnects by itself. wake must not block.
	Watch(ctx context.Context, wake func(Wake)) error
}

// Sweeper is implemented by stores whose litter wants removing. Each step is fenced, bounded by
// limit rows, and returns how many rows it removed.
type Sweeper interface {
	// SweepNodes removes tombstones that ended more than age ago.
	SweepNodes(ctx context.Context, fence daemon.Fence, age time.Duration, limit int) (int, error)
	// SweepEvents removes the oldest events that keep does not keep, and commands done keep.Age ago.
	SweepEvents(ctx context.Context, fence daemon.Fence, keep Keep, limit int) (int, error)
	// SweepLocks removes locks that were released more than age ago and keeps their fencing numbers
	// growing. A lock that was not released stays: no clock of the store says that its holder is
	// gone.
	SweepLocks(ctx context.Context, fence daemon.Fence, age time.Duration, limit int) (int, error)
}

// Keep says which events a sweep keeps: at most the newest Most, of these the ones that are not older
// than Age, and always the newest Least, because the store's clock may be wrong about their age.
type Keep struct {
	Most, Least int
	Age         time.Duration
}

// Lock is one holding of a named lock.
type Lock struct {
	Name  string `json:"name"`
	Owner string `json:"owner"`
	// Number fences: it grows with every change of holder and never repeats for a name.
	Number int64 `json:"number"`
	// Renewals counts the calls that extended this holding, and TTL is what the last of them asked
	// for. Whoever has seen one number with the same renewals for a whole TTL, by a clock of its own
	// that never steps, knows that the holder has stopped.
	Renewals int64         `json:"renewals,omitempty"`
	TTL      time.Duration `json:"ttl"`
	// ExpiresAt is the end of the TTL, or when the lock was released, and Now when the store
	// answered, both by the store's clock. They inform people: that clock may step, so no holding
	// ends by it.
	ExpiresAt time.Time `json:"expires_at"`
	Now       time.Time `json:"-"`
}

// SameRenewal reports whether two holdings of one name are the same, extended equally often.
func (l Lock) SameRenewal(other Lock) bool {
	return l.Number == other.Number && l.Renewals == other.Renewals
}

// Free reports whether nobody holds the lock.
func (l Lock) Free() bool { return l.Owner == "" }

// ErrLocked says that another owner holds the lock.
var ErrLocked = errors.New("lock is held by another owner")

// ErrLockLost says that the lock is not held (any more) under that owner and number.
var ErrLockLost = errors.New("lock is not held any more")

// Locker is implemented by stores that keep locks. Owner names one acquisition (a UUID), so a
// repeated Acquire after a lost reply returns the same holding.
type Locker interface {
	// Acquire takes a lock that is free, that owner holds already, or that stands exactly as in
	// expired: the number and renewals that the caller has seen unchanged for their whole TTL. The
	// zero Lock is none. ErrLocked comes with the present holding. The store's clock decides nothing.
	Acquire(ctx context.Context, name, owner string, ttl time.Duration, expired Lock) (Lock, error)
	// Extend counts one renewal and sets the TTL. ErrLockLost if it is not held so.
	Extend(ctx context.Context, held Lock, ttl time.Duration) (Lock, error)
	// Release frees the lock; ErrLockLost if it is not held so.
	Release(ctx context.Context, held Lock) error
}
