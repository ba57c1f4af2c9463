// Package member is one node as a state machine: every rule of the protocol that decides is
// decided here.
//
//	inputs ──▶ Step(now, input) ──▶ effects
//
// Inputs are what happened: time passed, a call of the store was answered or failed, a wake-up
// came, a run started or ended, an operator or the user asked for something. Effects are what to
// do: call the store, start, drain or cancel a run, compute a plan, publish leadership, tell the
// hooks. The shell (package coordinator) and the simulator (package coordinator/sim) carry
// effects out and feed back what happens; neither decides anything.
//
// Step is called from one goroutine, never waits, and contains no clock, goroutine, channel,
// context, logger or I/O. Equal inputs give equal effects: jitter comes from Config.Seed.
// Step must be called with Tick at the latest at [Member.Next], and after every pause the shell
// notices.
package member

import (
	"time"

	"github.com/emitd/emitd/coordinator/lease"
	"github.com/emitd/emitd/coordinator/plan"
	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/node"
	"github.com/emitd/emitd/storage"
)

// Config is what a member is made of.
type Config struct {
	Node   node.Identity // all three parts set
	Advert daemon.Advert
	Timing lease.Timing
	Store  storage.Capabilities
	// Seed feeds the jitter.
	Seed uint64
}

// Input is something that happened.
type Input interface{ input() }

// Tick says that time has passed.
type Tick struct{}

// Result answers the Call with that ID. Exactly one of the answers is set, or Err.
type Result struct {
	ID       uint64
	Reply    *storage.Reply
	Outcomes []storage.Outcome
	Snapshot *daemon.Snapshot
	Err      error
}

// Planned answers the Compute with that ID. Err says that there is no plan.
type Planned struct {
	ID   uint64
	Plan plan.Plan
	Err  error
}

// Woken is a hint of the store.
type Woken struct{ Wake storage.Wake }

// RunStarted says that the run was entered (or, with Spec.WaitReady, that it is ready).
type RunStarted struct{ Fence daemon.Fence }

// RunEnded says that the run has returned and will not be started again by the supervisor; no
// code of it runs any more.
type RunEnded struct {
	Fence daemon.Fence
	How   Ending
	Err   error // of the last failure, or of what went wrong
	// Failures is how many there were in a row.
	Failures int
}

// Ending says how a run ended.
type Ending int

// The ways a run ends.
const (
	Returned  Ending = iota // after Drain or Cancel
	GaveUp                  // after MaxFailures failures in a row
	Released                // the agent returned daemon.ErrRelease
	Refused                 // the fence holds a higher generation, or could not be stamped in time
	Forgotten               // this node has no such agent
)

// RunFailed says that an attempt of the run failed and will be repeated by the supervisor.
type RunFailed struct {
	Fence    daemon.Fence
	Err      error
	Failures int
	RetryIn  time.Duration // until the next attempt
}

// RunAbandoned answers Abandon: the agent's code still runs. A run that has not entered its agent, or has
// left it, is answered by RunEnded alone.
type RunAbandoned struct{ Fence daemon.Fence }

// FenceHeld says that somewhere a fence holds this generation.
type FenceHeld struct{ Generation int64 }

// Advertise replaces what the node advertises.
type Advertise struct{ Advert daemon.Advert }

// Resign asks the node to give up its term, if it leads.
type Resign struct {
	Reason   node.LossReason
	Cooldown time.Duration
}

// LeaderIdle says that all leader-only work of the term has returned, after Lost.
type LeaderIdle struct{ Term int64 }

// Witness says that these processes of this host are proven to have ended: all that no member list has
// shown to be known yet.
type Witness struct{ Ended []node.Incarnation }

// Stop begins a clean stop; the Stopped effect ends it.
type Stop struct{}

func (Tick) input()         {}
func (Result) input()       {}
func (Planned) input()      {}
func (Woken) input()        {}
func (RunStarted) input()   {}
func (RunEnded) input()     {}
func (RunFailed) input()    {}
func (RunAbandoned) input() {}
func (FenceHeld) input()    {}
func (Advertise) input()    {}
func (Resign) input()       {}
func (LeaderIdle) input()   {}
func (Witness) input()      {}
func (Stop) input()         {}

// Effect is something to do.
type Effect interface{ effect() }

// Call asks the store; exactly one request is set. The answer is a Result with the same ID, or
// Err once Timeout has passed (the shell bounds the call with it). Calls run concurrently; a
// late answer to a call that was already answered by an error is dropped by the member.
type Call struct {
	ID        uint64
	Timeout   time.Duration
	Heartbeat *storage.Heartbeat
	Report    *storage.Report
	Leave     *storage.Leave
	Commit    *storage.Commit
	Snapshot  bool
}

// Compute asks for plan.Make(Input) away from the member's goroutine; the answer is Planned.
type Compute struct {
	ID    uint64
	Input plan.Input
}

// Start starts a run: stamp the fence, then enter the agent, restart it after failures, until
// Drain or Cancel. The supervisor answers RunStarted and, always, RunEnded.
type Start struct {
	Fence daemon.Fence
	Term  int64
	Spec  daemon.Spec
}

// Drain tells the run to finish what is in flight.
type Drain struct{ Fence daemon.Fence }

// Cancel cancels the run's context.
type Cancel struct {
	Fence daemon.Fence
	Cause CancelCause
}

// CancelCause says why a run is cancelled.
type CancelCause string

// The causes.
const (
	CauseLost          CancelCause = "lost"           // the store no longer lists the run
	CauseTrust         CancelCause = "trust"          // no answered heartbeat in time: self-fencing
	CauseDrainDeadline CancelCause = "drain deadline" // still running at the drain deadline
	CauseAckDeadline   CancelCause = "acknowledge deadline"
)

// Abandon asks for the run to be given up if its agent's code runs: its context was cancelled StopTimeout
// ago. The answer is RunAbandoned, or RunEnded. It is asked again every StopTimeout.
type Abandon struct{ Fence daemon.Fence }

// Elected publishes leadership: begin its context and its hooks.
type Elected struct{ Term node.Term }

// Lost ends leadership: cancel its context first, then tell. The shell answers LeaderIdle once
// everything that ran under it has returned.
type Lost struct {
	Term   node.Term
	Reason node.LossReason
}

// Notice is something that hooks, log and metrics want to know. Which fields are set depends on
// the kind.
type Notice struct {
	Kind   NoticeKind
	Member node.Member  // NodeJoined, NodeLeft
	Fence  daemon.Fence // Unit…
	Reason string
	Err    error
	Term   int64
}

// NoticeKind says what a notice is about.
type NoticeKind string

// The kinds of notice.
const (
	NodeJoined      NoticeKind = "node joined"
	NodeLeft        NoticeKind = "node left"
	UnitAssigned    NoticeKind = "unit assigned"  // to this node
	UnitStarted     NoticeKind = "unit started"   // its run was entered here
	UnitDraining    NoticeKind = "unit draining"  // here
	UnitStopped     NoticeKind = "unit stopped"   // its run has ended here
	UnitFailed      NoticeKind = "unit failed"    // an attempt, or the whole run
	UnitAbandoned   NoticeKind = "unit abandoned" // here
	UnitUnknown     NoticeKind = "unit unknown"   // its row has a state this version does not know
	Unplaced        NoticeKind = "unplaced"       // leader only: no eligible node, and why
	HeartbeatFailed NoticeKind = "heartbeat failed"
	HeartbeatFine   NoticeKind = "heartbeat fine" // again, after failures
	PassFailed      NoticeKind = "pass failed"
	StoreChanged    NoticeKind = "store changed"
	ClockStepped    NoticeKind = "clock stepped"
	IDInUse         NoticeKind = "id in use"
	TimingsDiffer   NoticeKind = "timings differ" // from those of a node that may live
	NoRoom          NoticeKind = "no room"        // the store does not carry one more node: this one waits for so long (Reason)
	StoreSlow       NoticeKind = "store slow"     // for the timings and the number of nodes
	StoreFine       NoticeKind = "store fine"     // it is no longer slow
	Disagreement    NoticeKind = "disagreement"   // two nodes advertise one daemon differently
)

// Stopped ends a clean stop: nothing more will be asked for. Err says why if nobody asked for the
// stop: another live process has this node's id (storage.ErrIDInUse), or lives with other timings
// (TimingError), or the store is too slow for this one's (SlowStoreError), or the store belongs to a cluster of another name (storage.ErrOtherCluster).
type Stopped struct{ Err error }

func (Call) effect()    {}
func (Compute) effect() {}
func (Start) effect()   {}
func (Drain) effect()   {}
func (Cancel) effect()  {}
func (Abandon) effect() {}
func (Elected) effect() {}
func (Lost) effect()    {}
func (Notice) effect()  {}
func (Stopped) effect() {}

// View is what a member thinks, for status and tests. It is a copy.
type View struct {
	Leading bool
	Term    node.Term // the one held, or the one last seen
	// LeaderTrust is until when this node may act as leader; AgentTrust until when its runs may
	// go on without another answered heartbeat (the least of them; lease.Never without runs).
	LeaderTrust, AgentTrust lease.Instant
	LastAnswered            lease.Instant // beginning of the newest answered heartbeat; 0 = none
	Stopping                bool
	Registered              bool
	StoreID                 string
	ClockSteps              int
	Runs                    []RunView // sorted by unit
	PassSeq                 uint64
	PassesFailed            int
	// NoRoom is why the node is not registered yet, if it is that the store does not carry one more.
	NoRoom error
	// TooSlow is why the store does not carry the nodes that are registered; nil if it does.
	TooSlow error
	// ChangeTime is how long one change takes in a store that makes those of all nodes one after the other, and
	// ChangeTimeLimit how long it may take with these timings and so many nodes. 0 = another store, or not known yet.
	ChangeTime, ChangeTimeLimit time.Duration
	// Unplaced is what the newest plan of this leader found no node for. It is shared: do not write.
	Unplaced []plan.Unplaced
}

// RunView is one run on this node.
type RunView struct {
	Fence daemon.Fence
	Phase string
	Trust lease.Instant
}
