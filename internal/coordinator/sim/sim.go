// Package sim simulates whole clusters in one goroutine, from a seed, in virtual time.
//
//	seed ──▶ world ──▶ events in order of virtual time ──▶ member.Step, memory.Store ──▶ checks
//
// It runs the product's own decisions: every node is a [member.Member], the store is storage/memory, and the
// leader's plan is plan.Make. The simulator itself decides nothing about the cluster. It delivers messages, lets
// time pass, injects faults, runs simulated agents, and checks what happens.
//
// # Time
//
// The checks use virtual real time. Each machine has its own clock, which runs up to 0.05 % fast or slow and
// never steps. It stands still while the machine itself is stopped. The store's clock behaves the same, and also
// steps when a fault says so. Nothing sleeps: the world jumps from event to event. Events at the same moment
// happen in the order in which they were created, so a seed replays exactly; [Result.Hash] proves it.
//
// # Faults
//
//   - Messages: requests and replies are lost, slow, repeated, or delivered long after their caller gave up. A
//     node is cut off from the store in both directions, or receives no replies. The store is down for all nodes,
//     refusing calls at once or silent. Wake-ups are lost, late, repeated or needless.
//   - Processes: a process is killed at any moment, in particular at a call to the store: before it was sent,
//     before it was applied, or before its reply. It is paused for longer than any deadline (no step of its
//     member, no code of its agents), whether or not its clock counts the pause. Its timers are late by all that
//     the margins allow. It is stopped cleanly, and comes back as another process.
//   - Store: its clock steps. It fails over to a copy without the newest rows, which is another store from then
//     on. A node's row disappears.
//   - Agents start slowly, drain slowly or never, ignore their cancellation, fail, return early, or give their
//     unit back.
//
// Five more faults have storms of their own: keys of a keyed daemon come and go; operators submit commands at any moment; a standby is promoted while the former primary lives on, and some
// machines use that one until it is fenced; a machine is given far more units than it can start at once; and rolling
// restarts switch between two sets of timings, so that nodes with both are alive at the same time.
//
// # What is checked
//
// After every step: the invariants I1 to I6 and I8 of the protocol, each in a file check_*.go, and the promises
// about hooks and a clean stop. Exceptions are as narrow as the promise. An overlap, for example, is excused only
// while one of the two processes is paused, and for the time it needs to notice afterwards. Liveness is checked
// whenever no fault has begun or ended for a bound that is computed from the timings, and with checkAfterKill bounds after
// a single kill. Each check was seen to fail on a history that breaks it.
//
// # What is not simulated
//
// Threads of one process: its goroutines pause and die together. Files and disks. The supervisor of agents, for
// which run.go has a plain substitute, and the shell around member. Backends other than storage/memory: the
// conformance suite covers what only transactions can get wrong.
package sim

import (
	"fmt"
	"io"
	"time"

	"github.com/emitd/emitd/internal/coordinator/lease"
	"github.com/emitd/emitd/storage"
)

// Config describes a simulation. Only the seed must be set. Zero fields are drawn from the seed or have the
// stated default.
type Config struct {
	Seed uint64
	// Nodes is the number of machines, with one process on each; 0 draws 1 to 10.
	Nodes int
	// Duration is how much virtual time passes; 0 means 24 hours.
	Duration time.Duration
	// Timing holds the durations of the protocol; zero means lease.Default.
	Timing lease.Timing
	// Shorter, if set, holds the durations to which rolling restarts switch, and from which they switch back. None
	// of them may be longer than in Timing, from which all bounds follow.
	Shorter lease.Timing
	// Faults are the kinds of fault that happen, at times drawn from the seed.
	Faults Faults
	// Work is the daemons that the cluster runs; nil draws them.
	Work []Work
	// MaxMoves is how many units a leader moves in one round of rebalancing; 0 means 100, and less moves none.
	MaxMoves int
	// Store declares the limits of the store.
	Store storage.Capabilities
	// Trace, if set, receives every line of the history.
	Trace io.Writer
}

// Faults is a set of kinds of fault.
type Faults uint32

// The kinds of fault.
const (
	Kill       Faults = 1 << iota // a process ends at once
	CrashAt                       // a process ends at a call to the store
	Stop                          // a process stops cleanly
	Pause                         // a process is frozen for a while, up to an hour
	Cut                           // a machine is cut off from the store
	Deaf                          // a machine's requests arrive, but no replies do
	Outage                        // the store is away for all nodes
	BadNetwork                    // many messages are lost, slow, repeated or late
	ClockStep                     // the store's clock steps
	Rollback                      // the store fails over and has lost the newest rows
	RowGone                       // the row of a living node is deleted
	SlowHost                      // one machine's messages are slow, nearly too slow
	Deploy                        // a node advertises another number of instances for a while
	Twins                         // a second process with the name or the ID of another
	Standstill                    // a machine is stopped for a while, and its clock with it
	Noise                         // a message is lost, slow, repeated or late now and then
	BadAgents                     // agents fail, hang, ignore cancellation, or give units up
	// Bursts, Fork and Retime are not part of All: their storms have their own seeds.
	Bursts // many units, whose starts a machine makes one after another
	Fork   // a standby is promoted while the former primary lives on, and some nodes still use that one
	Retime // a rolling restart gives the nodes other timings; every other restart may do so too
	// Operate has its own storm, too.
	Operate // operators submit commands
	// Keys has its own storm, too.
	Keys // keys of a keyed daemon come and go

	None Faults = 0
	All         = Bursts - 1
)

// Result is the outcome of a simulation.
type Result struct {
	Config Config // with what was drawn
	// Hash covers the whole history: equal seeds give equal hashes.
	Hash  uint64
	Stats Stats
}

// Stats counts what happened.
type Stats struct {
	Events, Steps, Calls uint64
	Faults               uint64 // injected
	Elections            uint64
	Assignments          uint64
	Runs                 uint64 // entered by an agent
	Effects, Refused     uint64 // writes of runs to a fenced resource
	Settled              uint64 // how often the whole cluster was found well within the bound
	Kills                uint64 // how often the bounds of checkAfterKill after a kill -9 were checked
	Proven               uint64 // terms freed by exit evidence of their holder
	Postponed            uint64 // assignments whose deadline was moved because they waited so long to start
	Returned             uint64 // abandoned runs that returned, for which the store was checked to know it
	Embargoes            uint64 // how often the cluster was checked again after the end of an embargo
	Forks                uint64 // how often two primaries accepted writes
	Retimed              uint64 // processes that began with other timings than the one before on their machine
	Commands             uint64 // of operators
	Deleted              uint64 // keys without a row after a sweep of removed ones
	Split                uint64 // elections and assignments by a former primary that lived on
}

// Violation is a broken promise.
type Violation struct {
	Rule string // I1 … I8, A9, stop, hooks
	What string
	At   time.Duration // virtual time
	Seed uint64
	Tail []string // the last lines of the history
}

// Error returns the rule, what broke it, when, the seed for a replay, and the last lines of the history.
func (v *Violation) Error() string {
	s := fmt.Sprintf("%s broken at %v of seed %d: %s", v.Rule, v.At, v.Seed, v.What)
	for _, line := range v.Tail {
		s += "\n\t" + line
	}
	return s
}

// Run simulates the seed to its end, or until a promise is broken: then the error is a *Violation.
func Run(cfg Config) (*Result, error) {
	w := newWorld(cfg)
	w.boot()
	err := w.runUntil(w.cfg.Duration)
	return &Result{Config: w.cfg, Hash: w.trace.hash, Stats: w.stats}, err
}
