// Package storage is the contract of the cluster store, the only authority in a cluster.
//
// The terms used here (lease, term, fencing token, generation, exit evidence …) are those of the glossary in
// docs/glossary.md.
//
// # What a store is
//
// A store holds nodes, one term and its lease, units, their fences and states ([daemon.StateStore]), events, operators'
// commands and locks. Every
// method is one atomic step: it happens entirely or not at all. Its effects are visible to every call that begins
// after it returned. A method that returns an error other than the ones below has an *unknown* outcome: the step
// may have happened. The caller must read again and must not assume either result.
//
// # Whose clock
//
// The store's clock stamps every fact, inside the step that makes the fact and not at the step's beginning. Callers
// compare the store's times with each other only, never with a local clock. The store's clock may step;
// internal/coordinator/lease describes what evidence a node accepts in spite of that.
//
// # Order within a heartbeat
//
// [Store.Heartbeat] writes first and then reads. Each read sees everything that was committed before the read
// began. A snapshot from before the write waited for a lock would not do: the reply would list a unit as the
// caller's own although it was taken away during the wait.
//
// # Sequence numbers
//
// Heartbeats, reports and leaves of one incarnation share one growing sequence number. The store refuses a number
// that is not higher than the one in the node's row ([ErrStaleSeq]). A message that the network delayed or repeated
// therefore changes nothing. The rows of nodes that left or were declared dead stay as tombstones.
//
// # Store identity
//
// A store may become another one while nodes use it: a standby is promoted, a backup is restored, or a file is
// replaced. Its identity ([Reply].StoreID) changes then. Its rows may now belong to a history that lacks what the
// caller has read. Reports and commits therefore name the store whose rows they were decided from. Any other store
// refuses them, inside the same step ([ErrStoreChanged]). Every store accepts heartbeats, because a node learns of
// the change by them.
//
// # Cluster name
//
// A store remembers the name of its cluster. The first node that registers with a name sets it. A node that
// advertises another name is refused ([ErrOtherCluster]). A staging node that is pointed at the production store by
// mistake therefore does not join it. [Renamer] changes the name deliberately.
//
// # Errors
//
// [ErrTermLost], [ErrStaleSeq], [ErrNotRegistered], [ErrIDInUse], [ErrTooManyNodes], [ErrOtherCluster],
// [ErrStoreChanged] and daemon.ErrStale are answers: nothing was changed. [ErrUnavailable] marks errors that pass
// by themselves. [ErrSchema] says which version the store has and which one the program needs.
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

// Store is what a coordinator needs from a backend. Its methods may be called from any goroutine. Each respects the
// deadline of its context. A backend's own type adds Close and what only that backend can do.
type Store interface {
	// Heartbeat is the one round trip of an interval. The package comment defines the order of its steps. Errors:
	// ErrStaleSeq, ErrNotRegistered, ErrIDInUse, ErrTooManyNodes, ErrOtherCluster.
	Heartbeat(ctx context.Context, beat Heartbeat) (*Reply, error)

	// Report records what happened to the units that the node holds. Each report is decided by itself. One that the
	// lifecycle table, the holder or the generation forbids is refused and changes nothing. Errors: ErrStaleSeq,
	// ErrNotRegistered, ErrStoreChanged.
	Report(ctx context.Context, report Report) ([]Outcome, error)

	// Leave resigns a term, marks the node draining (which revokes all its units) or deregisters it, in one step.
	// Repeating a step that already took effect is harmless. Errors: ErrStaleSeq, ErrNotRegistered.
	Leave(ctx context.Context, leave Leave) error

	// Commit applies a leader's changes. The term and the store's identity guard all of them: ErrTermLost and
	// ErrStoreChanged change nothing. A change whose row no longer matches its guard is skipped and returned as not
	// applied; the others happen. So is one that a bucket has no room for. ErrFull says that there was room for none.
	Commit(ctx context.Context, commit Commit) ([]Outcome, error)

	// Snapshot reads the whole cluster consistently, open commands included.
	Snapshot(ctx context.Context) (*daemon.Snapshot, error)

	// Events reads the history after a sequence number, oldest first, at most limit events.
	Events(ctx context.Context, after int64, limit int) (*EventPage, error)

	// StampFence writes the fence stamp of a run. Once it has returned, the store refuses effects of lower generations.
	// It waits for transactions that hold the fence. Stamping the generation that is already there is harmless. A
	// higher generation there is a daemon.StaleError.
	StampFence(ctx context.Context, fence daemon.Fence) error

	// Submit stores an operator's command and returns it as stored. The command's ID makes the call idempotent. A new
	// command that expects another term than the present one is stored as done, with a conflict.
	Submit(ctx context.Context, command Command) (*Command, error)
}

// CheckClusterName decides whether a store accepts the cluster name that a node advertises. The rule is the same for
// every backend. It returns the name to remember, or an [OtherClusterError]. A node that gives no name is accepted
// under any name.
func CheckClusterName(stored, advertised string) (string, error) {
	switch {
	case stored == "" || advertised == stored:
		return advertised, nil
	case advertised == "":
		return stored, nil
	}
	return stored, &OtherClusterError{Store: stored, Node: advertised}
}

// Renamer is implemented by stores whose cluster can be given another name. All four backends implement it.
type Renamer interface {
	// RenameCluster replaces the name in one step. Errors: ErrOtherCluster if the present name is not from;
	// ErrNodesLive while a registered node has sent a heartbeat within ttl. Such a node uses the old name and would
	// be refused when it next registers.
	RenameCluster(ctx context.Context, from, to string, ttl time.Duration) error
}

// ErrNodesLive says that the cluster has live nodes, which the call does not allow.
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

// Heartbeat is what a node sends once per interval.
type Heartbeat struct {
	Node node.Identity
	Seq  uint64
	// ConfirmedSeq is the Seq of the newest heartbeat whose reply this node has received.
	ConfirmedSeq uint64
	// HighestTerm and HighestGeneration are the highest numbers this node has seen anywhere.
	HighestTerm, HighestGeneration int64
	// Advert, when set, registers the node or renews what it advertises. Without it, a node that has no live row
	// gets ErrNotRegistered.
	Advert *daemon.Advert
	// TTL is NodeRegistrationTTL. A node ID is in use while another process with that ID has sent a heartbeat
	// within the TTL that its own row states, or within this one if it states none.
	TTL time.Duration
	// TermRequest says whether this node renews its term or campaigns for a new one.
	TermRequest TermRequest
	// EventsAfter asks for membership events after this number; -1 asks for none.
	EventsAfter int64
	// WantMembers asks for the whole member list.
	WantMembers bool
	// ExitEvidence is exit evidence: other processes of this node's host that are proven to have ended. In the same step,
	// before TermRequest is decided, the store sets Member.ExitProven in their rows. It also vacates a term that exactly
	// one of them holds. A process listed here keeps no node ID in use.
	ExitEvidence []node.Incarnation
	// ReturnedRuns lists runs of this process that it reported abandoned and that have returned since, by unit and the
	// highest generation under which it reported so. The store ends the embargoes of this process that were imposed
	// for those runs (daemon.Embargo.EndsWith), whoever holds the unit by now. It ends no other embargo. That a run
	// returned is a fact about the process, so it is true in any store and may be reported again.
	ReturnedRuns []daemon.Fence
	// MaxTotalChangeTime, on a registration, limits how long one change by each node, this node included, may take in total. It
	// matters to a store that makes the changes of all nodes one after the other. Such a store registers the node
	// only within the limit. Otherwise it answers ErrTooManyNodes and has written nothing. 0 sets no limit.
	MaxTotalChangeTime time.Duration
}

// NodeIDInUse decides whether a node ID is in use. The rule is the same for every backend: the other process has sent a
// heartbeat within ttl, by the store's clock. A stamp further ahead than ttl was made before the clock was set
// back. It proves nothing, so it does not count: otherwise, without a leader to remove the row, the ID would stay
// blocked for as long as the clock was wrong.
func NodeIDInUse(lastBeat, now time.Time, ttl time.Duration) bool {
	age := now.Sub(lastBeat)
	return age < ttl && age > -ttl
}

// TermRequest is a node's request about the term. [Decide] decides it in the step of the heartbeat.
type TermRequest struct {
	// Lease is LeaseDuration: how long a renewal or election lasts.
	Lease time.Duration
	// Renew is the number of the term this process holds and wants to renew; 0 = none.
	Renew int64
	// LostThrough is the highest term for which this process has published the loss. The store replaces such a term of
	// its own and never renews it.
	LostThrough int64
	// Campaign campaigns: it asks for the next term.
	Campaign bool
	// SeenTerm and SeenRenewals name the lease that the candidate believes to be over: the term and how often it
	// was renewed.
	SeenTerm, SeenRenewals int64
	// Unchanged says that (SeenTerm, SeenRenewals) did not change for a whole lease of its holder, by the candidate's
	// own clock. Such a candidate may be elected whatever the store's clock says.
	Unchanged bool
	// PassSeq counts the leader's finished passes. The store writes it with a renewal.
	PassSeq uint64
}

// ElectionResult is a store's decision about a [TermRequest].
type ElectionResult int

// The decisions.
const (
	Refuse ElectionResult = iota // nothing changes
	Renew                        // the term stays and its lease is extended
	Elect                        // the node gets a new term
)

// Decide is the election rule, the same for every backend. It is a pure function of the request, the node that makes
// it, and the term and lease at now, the store's own clock.
//
//   - A leader renews its own term unless that term was replaced, even if the store's clock calls the lease
//     expired. A process that lost the reply to its election keeps the term this way, unless it has published the loss
//     for it.
//   - A vacant term goes to any candidate.
//   - A candidate's own term that it has lost is replaced at once.
//   - Another node's term is replaced only by a candidate that saw exactly this (term, renewals). In addition,
//     either the store's clock must say that the lease is over, or the candidate's own clock must have seen it
//     unchanged for a whole lease.
func Decide(c TermRequest, who node.Identity, term node.Term, lease node.Lease, now time.Time) ElectionResult {
	mine := term.Held() && term.Leader.ID == who.ID && term.Leader.Incarnation == who.Incarnation
	switch {
	case mine && term.Number > c.LostThrough && (c.Campaign || c.Renew == term.Number):
		return Renew
	case !c.Campaign:
		return Refuse
	case !term.Held() || mine:
		return Elect
	case term.Number == c.SeenTerm && lease.Renewals == c.SeenRenewals && (c.Unchanged || !now.Before(lease.ExpiresAt)):
		return Elect
	}
	return Refuse
}

// LostDetail is the detail of the leader.lost event that an election writes when it replaces a term that was not
// resigned.
type LostDetail struct {
	// LeaseEndedAt is when the lease was over by the store's clock, at the latest the moment of the election.
	// Nobody led between LeaseEndedAt and the election.
	LeaseEndedAt time.Time `json:"lease_ended_at"`
}

// NewLostDetail returns the detail of the leader.lost event of an election at now.
func NewLostDetail(lease node.Lease, now time.Time) json.RawMessage {
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

// NextTermNumber returns the number of the term after previous. It is also higher than every number that a node has
// seen, so a store that lost its newest rows never repeats a number. At least now in milliseconds keeps the numbers
// of a store that was set up anew ahead of the earlier ones.
func NextTermNumber(previous int64, now time.Time, highestSeen int64) int64 {
	return max(previous+1, now.UnixMilli(), highestSeen+1)
}

// NextGeneration returns the generation of the run after previous. It is higher than every generation that a node
// has reported and at least as high as the term. A store that lost its newest rows therefore repeats no generation.
func NextGeneration(previous, term, highestReported int64) int64 {
	return max(previous+1, term, highestReported+1)
}

// Reply is the store's answer to a heartbeat.
type Reply struct {
	Seq     uint64    // of the heartbeat that it answers
	Now     time.Time // the store's clock
	StoreID string    // the store identity; it changes when history was lost
	// StoreSince is when a heartbeat first found another store identity than the rows record (after a failover to a
	// standby, or in a restored copy). The rows may then belong to a lost history. It is zero in a store whose
	// identity never changed.
	StoreSince time.Time
	Verdict    ElectionResult
	Term       node.Term
	Lease      node.Lease
	// Units are all units that this incarnation holds, sorted.
	Units []daemon.Record
	// Events are the membership events (node.*) after EventsAfter, oldest first. Head is the newest event of any
	// kind. EventsMissing says that some of the requested events were deleted: the node must ask for the member list.
	Events        []daemon.Event
	Head          int64
	EventsMissing bool
	// Members is the whole list, tombstones included, if it was requested. Nodes of one process may share it: it is never
	// written to.
	Members []node.Member
	// Commands are the open commands on which nodes act (daemon.CommandKind.ForNodes), oldest first.
	Commands []Command
	// MinChangeTime is the least time that one change took recently, in a store that makes the changes of all nodes
	// one after the other. It is 0 in any other store.
	MinChangeTime time.Duration
}

// Report is a batch of reports about a node's units.
type Report struct {
	Node node.Identity
	Seq  uint64
	// StoreID is that of the reply that the report was decided from; "" reports to any store.
	StoreID string
	// HighestGeneration raises the highest generation that the node has seen, as a heartbeat does.
	HighestGeneration int64
	Units             []UnitReport
}

// UnitReport is one step of the lifecycle table that the holder takes: Acknowledge, Postpone, Confirm, Abandon,
// Release, Resume, Fail or Recover.
type UnitReport struct {
	Unit       daemon.Unit
	Generation int64
	Step       daemon.Step
	// Reason goes into the event. It also goes into the row, unless the step leaves the unit with its holder
	// (Step.KeepsHolder): then the row keeps the reason of its assignment.
	Reason string
	Error  string // the failure, if the step reports one
	// Failures is how many failures a Release with an error adds to the row (at least one), or the total that a
	// Fail reports.
	Failures int
	// RetryIn is how long after a Fail the run is started again.
	RetryIn time.Duration
	// Embargo is how long this process may not be given the unit (Release, Abandon); 0 = no embargo.
	// Heartbeat.ReturnedRuns ends the embargo of an abandoned run earlier.
	Embargo time.Duration
	// AcknowledgeTimeout is how long the postponed assignment has from now on (Postpone); 0 = as long as before.
	AcknowledgeTimeout time.Duration
}

// Outcome is the result of one report or change.
type Outcome struct {
	Unit    daemon.Unit
	Applied bool
	// Record is the row after the step, whether the step was applied or not. A zero Unit in it says that there is
	// no such row.
	Record daemon.Record
}

// Leave says what a node gives up, in one step.
type Leave struct {
	Node node.Identity
	Seq  uint64
	// Resign is the number of the term to vacate, if this process still holds it; 0 = none.
	Resign int64
	// Drain marks the node draining and revokes all units it holds.
	Drain bool
	// DrainTimeout is stamped on the units that Drain revokes, unless their assignment has its own.
	DrainTimeout time.Duration
	// Deregister turns the row into a tombstone. Units that the node still holds are freed by force.
	Deregister bool
	Reason     node.LossReason
	// Command is the ID of the operator's command that this leave carries out, if any. The store marks the command
	// done.
	Command string
	Actor   string
}

// Commit is a leader's batch of at most MaxChanges changes.
type Commit struct {
	Term node.TermRef
	// StoreID is that of the snapshot that the changes were decided from; "" commits to any store.
	StoreID string
	// HighestGeneration is the highest generation the leader has seen anywhere.
	HighestGeneration int64
	Changes           []Change
	Nodes             []NodeChange
	// Events are decisions of the leader that change no row. Their Kind, Node, Daemon, Reason and Detail count; the store
	// numbers and stamps them, and adds the term. They come before the events of the changes.
	Events   []daemon.Event
	Commands []CommandResult // written first: they are the cause of changes
}

// MaxChanges is the most changes that one commit may have.
const MaxChanges = 500

// Change is a step that the leader takes with one unit. It is guarded by the row as the leader saw it.
type Change struct {
	Unit daemon.Unit
	// Step is Assign, Revoke, Expire, or "" to declare (create the row), retire or unretire.
	Step daemon.Step
	// Generation and State are the guard: if the row has other values, the change is skipped. If both are zero, the
	// change applies only if there is no row.
	Generation int64
	State      daemon.State
	// To is the node that gets the unit (Assign). It must be present and live.
	To node.Identity
	// AcknowledgeTimeout and DrainTimeout are stored with the assignment.
	AcknowledgeTimeout, DrainTimeout time.Duration
	// Dead, on Expire, declares the holder dead. Its row must still have exactly this (incarnation, seq), or be
	// gone or a tombstone.
	Dead *NodeVersion
	// Forced marks an Expire that the holder has not confirmed.
	Forced bool
	// Embargo is how long the former holder may not be given the unit; 0 = no embargo.
	Embargo time.Duration
	Retired bool // for Step "" on an existing row, and on Expire
	Reason  string
	Detail  json.RawMessage // the explanation that goes into the event
}

// NodeVersion is a node's row as the leader saw it.
type NodeVersion struct {
	Incarnation node.Incarnation
	Seq         uint64
}

// NodeChange is a step that the leader takes with a node.
type NodeChange struct {
	Guard NodeVersion // Removed compares all of it; Late, Deaf and Live compare the incarnation, and ObservedAt
	// State is Removed (declared dead: tombstone), Late, Deaf, or Live, which takes Late or Deaf back.
	State node.State
	// ObservedAt, for Late and Deaf, is the time that was too old: the row's LastHeartbeatAt or HeardAt. If the row has
	// another time by now, the change is skipped. Otherwise a commit that was delayed or sent twice could call a
	// node late after its next heartbeat, or deaf after it received a reply. Zero applies the change whatever the
	// row says.
	ObservedAt time.Time
	Reason     string
}

// EventPage is a part of the history.
type EventPage struct {
	Events []daemon.Event
	Head   int64 // newest event of the history
	Oldest int64 // oldest event not deleted yet; 0 = none
}

// Command is an operator's request; see [daemon.Command].
type Command = daemon.Command

// CommandResult is what a leader writes about an open command. A command that is done, or already has this result, is
// left as it is. Otherwise the step writes an event.
type CommandResult struct {
	ID     string
	Result string
	Done   bool // the command is open no longer
}

// Capabilities declare where a backend is weaker than the contract. The zero value declares a store without
// restrictions.
type Capabilities struct {
	// NoWakeUps says that the store sends no wake-ups: nodes find every change at their next heartbeat.
	NoWakeUps bool
	// NoClock says that no decision may rest on the store's clock. Evidence is then only what did not change for
	// long enough by the node's own clock.
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

// WakeUp says that something changed. Its zero value addresses every node.
type WakeUp struct {
	// Nodes are the incarnations concerned; empty = all. A wake-up for the leader alone names it.
	Nodes []node.Incarnation
	// Leader says that the leader has something to do as leader, if it is among Nodes. If Nodes names the leader
	// alone, it makes a pass and sends no heartbeat.
	Leader bool
}

// Watcher is implemented by stores that can send wake-ups. Correctness does not depend on wake-ups: they may
// be lost, late, coalesced or needless.
type Watcher interface {
	// Watch calls wake for each wake-up until ctx ends, and only then returns, with ctx's error. It reconnects by
	// itself. wake must not block.
	Watch(ctx context.Context, wake func(WakeUp)) error
}

// Sweeper is implemented by stores whose old rows must be deleted. Each step is fenced, deletes at most limit rows,
// and returns how many it deleted.
type Sweeper interface {
	// SweepNodes removes tombstones that ended more than age ago, and what no node advertises any more. It counts the
	// tombstones.
	SweepNodes(ctx context.Context, fence daemon.Fence, age time.Duration, limit int) (int, error)
	// SweepEvents removes the oldest events that keep does not retain, and commands that were done more than
	// keep.Age ago.
	SweepEvents(ctx context.Context, fence daemon.Fence, keep Retention, limit int) (int, error)
	// SweepLocks removes locks that were released more than age ago. It keeps their fencing numbers growing. It
	// never removes a lock that was not released: the store's clock cannot prove that the holder is gone.
	SweepLocks(ctx context.Context, fence daemon.Fence, age time.Duration, limit int) (int, error)
}

// Retention says which events a sweep retains: at most the newest MaxEvents, and of these the ones that are not older than
// Age. It always retains the newest MinEvents, because the store's clock may be wrong about their age.
type Retention struct {
	MaxEvents, MinEvents int
	Age                  time.Duration
}

// Recorder is implemented by stores that take events about what was done elsewhere, such as in a queue. All four stores
// implement it.
type Recorder interface {
	// Record appends an event to the history. Of the event, Kind, Reason and Detail count.
	Record(ctx context.Context, e daemon.Event) error
}

// Lock is one holding of a named lock.
type Lock struct {
	Name string `json:"name"`
	// Owner names one acquisition. Package coordinator/lock makes it of the name of the process and a UUID.
	Owner string `json:"owner"`
	// Number is a fencing token: it grows with every change of holder and never repeats for a name.
	Number int64 `json:"number"`
	// Renewals counts the calls that extended this holding. TTL is what the last of them asked for. A caller that
	// sees the same number and renewals for a whole TTL, by a clock of its own that never steps, knows that the
	// holder has stopped renewing.
	Renewals int64         `json:"renewals,omitempty"`
	TTL      time.Duration `json:"ttl"`
	// ExpiresAt is the end of the TTL, or when the lock was released. Now is when the store answered. Both are by
	// the store's clock and only inform people: that clock may step, so no holding ends by it.
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

// ErrLockLost says that the caller does not hold the lock under that owner and number any more.
var ErrLockLost = errors.New("lock is no longer held")

// Locker is implemented by stores that have locks. Owner names one acquisition (a UUID), so a repeated Acquire
// after a lost reply returns the same holding.
type Locker interface {
	// Acquire takes a lock that is free, that owner already holds, or that is still exactly as in expired. The
	// caller must have seen the number and renewals of expired unchanged for their whole TTL. The zero Lock means
	// that the caller has seen none. ErrLocked comes with the present holding. The store's clock decides nothing.
	Acquire(ctx context.Context, name, owner string, ttl time.Duration, expired Lock) (Lock, error)
	// Extend counts one renewal and sets the TTL. ErrLockLost if the caller does not hold the lock.
	Extend(ctx context.Context, held Lock, ttl time.Duration) (Lock, error)
	// Release frees the lock. ErrLockLost if the caller does not hold it.
	Release(ctx context.Context, held Lock) error
	// Locks returns the locks that are held, by name: those whose names follow after, at most limit. An empty after is
	// before all names.
	Locks(ctx context.Context, after string, limit int) ([]Lock, error)
}
