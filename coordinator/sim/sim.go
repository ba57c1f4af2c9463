// Package sim plays whole clusters in one goroutine, from a seed, in virtual time.
//
//	seed ──▶ world ──▶ events in order of virtual time ──▶ member.Step, memory.Store ──▶ checks
//
// It drives the product's own decisions: every node is a [member.Member], the store is
// storage/memory, a leader's plan is plan.Make. The simulator itself decides nothing about the
// cluster. It moves messages, lets time pass, breaks things, runs make-believe agents, and
// watches.
//
// # Time
//
// Virtual real time is what the checks judge by. Each machine has a clock of its own that runs
// up to 0.05 % fast or slow and never steps; it stands still while the machine does. The store's clock does the same and steps when told
// to. Nothing sleeps: the world jumps from event to event. Events at one moment happen in the
// order in which they were made, so a seed replays exactly; [Result.Hash] proves it.
//
// # What goes wrong
//
// Requests and replies are lost, slow, repeated and delivered long after their caller gave up. A
// node is cut off from the store in both directions or hears no replies; the store is down for
// everybody, quickly refusing or silent. A process is killed at any moment, and in particular at
// any call of the store: before it was sent, before it was applied, before its reply. It is
// paused (no step of its member, no code of its agents) for longer than any deadline, seen by its clock
// or not; timers are late by all that the margins allow for; it is
// stopped cleanly; it comes back as another process. The store's clock steps; the store fails
// over to a copy that lost the newest rows and is another store from then on; a node's row
// disappears. In storms of their own a standby is promoted while the former primary lives on, and some machines
// speak to that one until it is fenced; in others a machine is given far more than it can start at once. Wake-ups are lost, late, repeated and needless. Agents start slowly, drain slowly
// or never, ignore their cancellation, fail, return early and give their unit back.
//
// # What is checked
//
// The invariants I1 to I6 and I8 of the protocol, after every step, each in a file check_*.go,
// and what is promised of hooks and of a clean stop. Exceptions are as narrow as the promise: an
// overlap is excused only while one of the two processes is paused, and for the time it has to
// notice afterwards. Liveness is checked whenever what is broken has not changed for a bound
// that is computed from the timings, and sharply after a single kill. Each check was seen to fail
// on a history that breaks it.
//
// # What is not simulated
//
// Threads of one process: its goroutines pause and die together. Files and disks. The supervisor
// of agents, for which run.go is a plain stand-in, and the shell around member. Backends other than
// storage/memory: what only transactions can get wrong is for the conformance suite.
package sim

import (
	"fmt"
	"io"
	"time"

	"github.com/emitd/emitd/coordinator/lease"
	"github.com/emitd/emitd/storage"
)

// Config says what to play. Only the seed has to be set: what is zero is drawn from it or is the
// stated default.
type Config struct {
	Seed uint64
	// Nodes is how many machines there are, one process on each; 0 draws 1 to 10.
	Nodes int
	// Duration is how much virtual time passes; 0 is 24 hours.
	Duration time.Duration
	// Timing is the profile; zero is lease.Default.
	Timing lease.Timing
	// Faults are the kinds of fault that happen, at times drawn from the seed.
	Faults Faults
	// Work is what the cluster runs; nil draws it.
	Work []Work
	// Store declares what the store cannot do.
	Store storage.Capabilities
	// Trace, if set, gets every line of the history.
	Trace io.Writer
}

// Faults is a set of kinds of fault.
type Faults uint32

// The kinds of fault.
const (
	Kill       Faults = 1 << iota // a process ends at once
	CrashAt                       // a process ends at a call of the store
	Stop                          // a process stops cleanly
	Pause                         // a process is frozen for a while, up to an hour
	Cut                           // a machine is cut off from the store
	Deaf                          // a machine's requests arrive, the replies do not
	Outage                        // the store is away for everybody
	BadNetwork                    // many messages are lost, slow, repeated or late
	ClockStep                     // the store's clock steps
	Rollback                      // the store fails over and has lost the newest rows
	RowGone                       // somebody removes the row of a living node
	SlowHost                      // one machine's messages are slow, nearly too slow
	Deploy                        // a node advertises another number of instances for a while
	Twins                         // a second process with the name or the ID of another
	Standstill                    // a machine is stopped for a while, and its clock with it
	Noise                         // now and then a message is lost, slow, repeated or late
	BadAgents                     // agents fail, hang, ignore cancellation, give up units
	// Bursts and Fork are not part of All: their storms have seeds of their own.
	Bursts // many units whose starts a machine makes one after the other
	Fork   // a standby is promoted while the former primary lives on, and some nodes still speak to that one

	None Faults = 0
	All         = Bursts - 1
)

// Result is what came of it.
type Result struct {
	Config Config // with what was drawn
	// Hash is of the whole history: equal seeds give equal hashes.
	Hash  uint64
	Stats Stats
}

// Stats counts what happened.
type Stats struct {
	Events, Steps, Calls uint64
	Faults               uint64 // injected
	Elections            uint64
	Assignments          uint64
	Runs                 uint64 // entered
	Effects, Refused     uint64 // of runs on a fenced resource
	Settled              uint64 // times the whole cluster was found well within the bound
	Kills                uint64 // times the sharp bounds after a kill -9 were checked
	Proven               uint64 // terms freed by the proof that their holder has ended
	Postponed            uint64 // assignments that waited for their turn to start for so long that their deadline was moved
	Returned             uint64 // abandoned runs that returned, of which the store was checked to have been told
	Forks                uint64 // times that two primaries took writes
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

// Error tells the rule, what broke it, when, and how to replay it, then the last lines.
func (v *Violation) Error() string {
	s := fmt.Sprintf("%s broken at %v of seed %d: %s", v.Rule, v.At, v.Seed, v.What)
	for _, line := range v.Tail {
		s += "\n\t" + line
	}
	return s
}

// Run plays the seed to its end, or until a promise is broken: then the error is a *Violation.
func Run(cfg Config) (*Result, error) {
	w := newWorld(cfg)
	w.boot()
	err := w.runUntil(w.cfg.Duration)
	return &Result{Config: w.cfg, Hash: w.trace.hash, Stats: w.stats}, err
}
