// Package member is the state machine of one node. It makes every decision of the protocol.
//
//	inputs ──▶ Step(now, input) ──▶ effects
//
// Inputs are events: time passed, the store answered a call or the call failed, a wake-up arrived, a run started
// or ended, an operator or the user asked for something. Effects are what the caller must do: call the store,
// start, drain or cancel a run, compute a plan, publish leadership, inform the hooks. Two callers exist: the
// shell (package coordinator) and the simulator (package internal/coordinator/sim). They carry out the effects and feed
// the results back; neither decides anything.
//
// # The way of a heartbeat
//
// The heartbeat is the one call that every node makes all the time, and most state changes follow from its reply:
//
//   - sendHeartbeat builds the request: the node's row, its campaign for the term (termRequest), the highest numbers
//     it has seen.
//   - onHeartbeat and onReply take the reply. They check the identity and the clock of the store (observeStore),
//     then take the term (onTerm), the node's own units (onListed), the membership (onMembership) and operators'
//     commands (onCommands).
//   - onListed compares each listed unit with the local runs. The table in reconcile.go says what follows, and the
//     member starts, drains or cancels the run, or queues a report to the store (sendReports).
//
// # The way of a unit
//
// A unit that the leader assigned to this node appears in the reply to the next heartbeat:
//
//   - onListed (runs.go) notes the record. If no run of its generation exists, start (starts.go) begins one, or makes
//     the unit wait for a slot. A unit that waits too long is postponed.
//   - The supervisor stamps the fence (RunStamped), enters the agent, and answers RunStarted. The node reports
//     Acknowledge, and the store makes the unit active.
//   - Every answered heartbeat that lists the unit extends the validity of its run. Without one, checkRunDeadlines cancels
//     the run StopTimeout before the validity ends. The run has then returned before the leader may free the unit.
//   - A revoked unit is drained, and cancelled at its drain deadline. After RunEnded the node reports Confirm.
//   - A run that ignores its cancellation is reported as abandoned (abandon.go). A run that fails repeatedly is
//     reported too (health.go). When the supervisor gives up, the unit is given back with an embargo.
//
// # The way of a pass
//
// Only the leader does passes. startPass (leader.go) reads a snapshot. applyDeadlines (deadlines.go) decides which
// nodes are dead and which units are free. The effect Compute asks for a plan, and commitNext (leader.go) writes the
// changes in batches. An error ends the pass, and the next one begins with a new snapshot.
//
// # Contract of Step
//
// Step is called from one goroutine and never waits. It uses no clock, goroutine, channel, context, logger or
// I/O. Equal inputs give equal effects: jitter comes from Config.Seed. Call Step with Tick at the latest at
// [Member.Next], and after every pause of the process that the shell notices.
package member

import (
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/internal/coordinator/lease"
	"github.com/emitd/emitd/internal/coordinator/plan"
	"github.com/emitd/emitd/node"
	"github.com/emitd/emitd/storage"
)

// Config is what New needs.
type Config struct {
	Node   node.Identity // all three fields must be set
	Advert daemon.Advert
	Timing lease.Timing
	Store  storage.Capabilities
	// MaxMoves is how many running units a leader moves in one round to make loads even; 0 moves none.
	MaxMoves int
	// BrakePercent is the share of the nodes that may look dead at once before the brake holds; 0 means no brake.
	BrakePercent int
	// Seed seeds the random numbers for jitter.
	Seed uint64
}

// Input is something that happened; see the package comment.
type Input interface{ input() }

// Tick reports that time has passed.
type Tick struct{}

// Result is the answer to the Call with that ID. Exactly one of Reply, Outcomes, Snapshot and Err is set; the
// answer to a leave sets none or Err.
type Result struct {
	ID       uint64
	Reply    *storage.Reply
	Outcomes []storage.Outcome
	Snapshot *daemon.Snapshot
	Err      error
}

// Planned is the answer to the Compute with that ID. If Err is set, there is no plan.
type Planned struct {
	ID   uint64
	Plan plan.Plan
	Err  error
}

// WakeUp is a wake-up from the store.
type WakeUp struct{ Wake storage.WakeUp }

// RunStamped reports that the run's fence is stamped. Its agent is called next.
type RunStamped struct{ Fence daemon.Fence }

// RunStarted reports that the run has begun, or is ready if its spec has WaitReady.
type RunStarted struct{ Fence daemon.Fence }

// RunEnded reports that the run has returned and that the supervisor will not start it again. None of its code
// runs any more.
type RunEnded struct {
	Fence daemon.Fence
	How   Ending
	Err   error // of the last failure, or what went wrong
	// Failures is the number of failures in a row.
	Failures int
}

// Ending is the way in which a run ended.
type Ending int

// The ways a run ends.
const (
	Returned     Ending = iota // the agent returned after Drain or Cancel
	GaveUp                     // the supervisor gave up after MaxFailures failures in a row
	Released                   // the agent returned daemon.ErrRelease
	FenceRefused               // the fence has a higher generation, or it could not be stamped in time
	NoAgent                    // this node has no agent for the daemon
)

// RunFailed reports that one attempt of the run failed. The supervisor will start it again.
type RunFailed struct {
	Fence    daemon.Fence
	Err      error
	Failures int
	RetryIn  time.Duration // until the next attempt
	// Hangs is set if the attempt has stalled and ignores its cancellation. There is no next attempt until it has returned,
	// and then its failure is reported once more.
	Hangs bool
	// Lasted is set if the attempt lasted for FailuresResetAfter before it failed: the failures before it count no more.
	Lasted bool
}

// RunAbandoned is the answer to Abandon if the agent's code still runs. For a run that has not entered its agent,
// or has left it, the only answer is RunEnded.
type RunAbandoned struct{ Fence daemon.Fence }

// FenceHeld reports that a fence somewhere holds this generation.
type FenceHeld struct{ Generation int64 }

// Advertise replaces the node's advert.
type Advertise struct{ Advert daemon.Advert }

// Resign tells the node to give up its term, if it leads. Cooldown is for how long it does not campaign
// afterwards, at least two heartbeat intervals and a query timeout, unless another node leads first.
type Resign struct {
	Reason   node.LossReason
	Cooldown time.Duration
}

// LeaderIdle reports that all leader-only work of the term has returned. It answers LeadershipLost.
type LeaderIdle struct{ Term int64 }

// ExitEvidence reports exit evidence: these processes of this host have ended. It lists all of them that no member
// list has shown as known to the store.
type ExitEvidence struct{ Ended []node.Incarnation }

// Stop begins a clean stop. The effect Stopped ends it.
type Stop struct{}

func (Tick) input()         {}
func (Result) input()       {}
func (Planned) input()      {}
func (WakeUp) input()       {}
func (RunStamped) input()   {}
func (RunStarted) input()   {}
func (RunEnded) input()     {}
func (RunFailed) input()    {}
func (RunAbandoned) input() {}
func (FenceHeld) input()    {}
func (Advertise) input()    {}
func (Resign) input()       {}
func (LeaderIdle) input()   {}
func (ExitEvidence) input() {}
func (Stop) input()         {}

// Effect is something that the caller of Step must do.
type Effect interface{ effect() }

// Call is a request to the store; exactly one request is set. The answer is a Result with the same ID. The shell
// bounds the call by Timeout and answers with Err when that has passed. Calls run concurrently. The member drops
// a late answer to a call that was already answered by an error.
type Call struct {
	ID        uint64
	Timeout   time.Duration
	Heartbeat *storage.Heartbeat
	Report    *storage.Report
	Leave     *storage.Leave
	Commit    *storage.Commit
	Snapshot  bool
}

// Compute asks for plan.Make(Input), run outside the member's goroutine. The answer is Planned.
type Compute struct {
	ID    uint64
	Input plan.Input
}

// Start starts a run: stamp the fence, enter the agent, and restart it after failures until Drain or Cancel. The
// supervisor answers with RunStamped and RunStarted if the run begins, and always with RunEnded.
type Start struct {
	Fence daemon.Fence
	Term  int64
	Spec  daemon.Spec
}

// Drain tells the run to finish what is in flight and to return.
type Drain struct{ Fence daemon.Fence }

// Cancel cancels the run's context.
type Cancel struct {
	Fence daemon.Fence
	Cause CancelCause
}

// CancelCause is the reason why a run is cancelled.
type CancelCause string

// The causes of a cancellation.
const (
	CauseNotListed     CancelCause = "lost"           // the store no longer lists the run
	CauseValidityEnded CancelCause = "trust"          // no heartbeat was answered in time: the node fences itself
	CauseDrainDeadline CancelCause = "drain deadline" // the run has not returned by its drain deadline
	CauseAckDeadline   CancelCause = "acknowledge deadline"
)

// Abandon asks whether the run's agent still executes, although its context was cancelled StopTimeout ago. If so,
// the shell gives the run up and answers RunAbandoned; else the answer is RunEnded. The effect is repeated every
// StopTimeout.
type Abandon struct{ Fence daemon.Fence }

// Elected publishes leadership: begin its context and call its hooks.
type Elected struct{ Term node.Term }

// LeadershipLost ends leadership: cancel its context first, then call the hooks. The shell answers LeaderIdle once
// everything that ran under the context has returned.
type LeadershipLost struct {
	Term   node.Term
	Reason node.LossReason
}

// Notice is something that happened, for hooks, log and metrics. The Kind determines which other fields are set.
type Notice struct {
	Kind   NoticeKind
	Member KnownMember  // for NodeJoined and NodeLeft
	Fence  daemon.Fence // for the kinds Unit…
	Reason string
	Err    error
	Term   int64
}

// NoticeKind is the subject of a Notice.
type NoticeKind string

// The kinds of Notice.
const (
	NodeJoined         NoticeKind = "node joined"
	NodeLeft           NoticeKind = "node left"
	UnitAssigned       NoticeKind = "unit assigned"  // assigned to this node
	UnitStarted        NoticeKind = "unit started"   // its run has begun on this node
	UnitDraining       NoticeKind = "unit draining"  // its run drains on this node
	UnitStopped        NoticeKind = "unit stopped"   // its run has ended on this node
	UnitFailed         NoticeKind = "unit failed"    // one attempt, or the whole run
	UnitAbandoned      NoticeKind = "unit abandoned" // its run on this node ignored the cancellation
	UnitUnknown        NoticeKind = "unit unknown"   // its row has a state that this version does not know
	Unplaced           NoticeKind = "unplaced"       // leader only: no node is eligible; Reason says why
	HeartbeatFailed    NoticeKind = "heartbeat failed"
	HeartbeatRecovered NoticeKind = "heartbeat fine" // answered again after failures
	PassFailed         NoticeKind = "pass failed"
	StoreChanged       NoticeKind = "store changed"
	ClockStepped       NoticeKind = "clock stepped"
	IDInUse            NoticeKind = "id in use"
	NoRoom             NoticeKind = "no room"    // the store cannot carry one more node; Reason: how long this one waits
	StoreSlow          NoticeKind = "store slow" // too slow for the timings and the number of nodes
	StoreRecovered     NoticeKind = "store fine" // no longer slow
	BrakeHeld          NoticeKind = "brake held" // leader only: many nodes look dead at once; Reason says how many
	BrakeReleased      NoticeKind = "brake released"
	Disagreement       NoticeKind = "disagreement" // two nodes advertise the same daemon differently
)

// Stopped ends a stop: the member has no more effects. Err is nil if Stop was asked for. Otherwise it is the
// reason why the node stops by itself:
//
//   - another live process has its node ID (storage.ErrIDInUse)
//   - the store is too slow for one more node (SlowStoreError)
//   - the store belongs to a cluster with another name (storage.ErrOtherCluster)
type Stopped struct{ Err error }

func (Call) effect()           {}
func (Compute) effect()        {}
func (Start) effect()          {}
func (Drain) effect()          {}
func (Cancel) effect()         {}
func (Abandon) effect()        {}
func (Elected) effect()        {}
func (LeadershipLost) effect() {}
func (Notice) effect()         {}
func (Stopped) effect()        {}

// View is a copy of the member's state, for status and tests.
type View struct {
	Leading bool
	Term    node.Term // the term held, or the newest one seen
	// LeaderValidUntil is until when this node may act as leader. RunsValidUntil is until when all its runs may go on
	// without another answered heartbeat: the earliest of their bounds, or lease.Never without runs.
	LeaderValidUntil, RunsValidUntil lease.Instant
	LastAnswered                     lease.Instant // when the newest answered heartbeat was sent; 0 = none
	Stopping                         bool
	Registered                       bool
	StoreID                          string
	ClockSteps                       int
	Runs                             []RunView // sorted by unit
	PassSeq                          uint64
	PassesFailed                     int
	// NoRoom is set while the node is not registered because the store cannot carry one more.
	NoRoom error
	// TooSlow is set while the store is too slow for the nodes that are registered.
	TooSlow error
	// ChangeTime is how long one change takes in a store that makes the changes of all nodes one after another.
	// ChangeTimeLimit is how long it may take with these timings and this number of nodes. Both are 0 for other
	// stores, and while they are not known yet.
	ChangeTime, ChangeTimeLimit time.Duration
	// Braked is set while this leader's brake holds.
	Braked bool
	// Unplaced lists the units for which this leader's newest plan found no node. It is shared: do not modify it.
	Unplaced []plan.Unplaced
}

// RunView describes one run on this node. ValidUntil is when it will be cancelled unless another heartbeat is
// answered.
type RunView struct {
	Fence      daemon.Fence
	Phase      string
	ValidUntil lease.Instant
}
