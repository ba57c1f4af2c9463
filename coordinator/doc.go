// Package coordinator makes a process a node of a cluster: the node takes part in elections and
// runs the daemons that the leader assigns to it.
//
//	c, err := coordinator.New(store, coordinator.Config{})
//	err = c.Register(daemon.Spec{ID: "acme:reports", Instances: 4}, agent)
//	err = c.Run(ctx) // blocks until ctx ends, then stops cleanly
//
// The store comes from storage/postgres, storage/sqlite, storage/object or storage/memory. The caller opens it, and
// closes it after Run has returned; every goroutine of the coordinator belongs to Run. The profile "default" replaces
// a dead leader after 60 s and a dead node after 90 s, "fast" after 5 s and 6 s, "instant" after 1 s and 1.5 s. [Coordinator.Run] lists the errors
// with which a node ends by itself. [Coordinator.SweepTasks] keeps the history from growing for ever.
// examples/embed is a whole program, and docs/explanation/guarantees.md explains what an agent can rely on.
//
// # Terms used here
//
// A node is one process. A term is one period of leadership of one node. A unit is one instance of
// a daemon. A generation is the number of a unit's assignment, under which its agent runs. Terms
// and generations are fencing tokens: they only grow and never repeat. A resource that remembers
// the highest number it has seen, and refuses lower ones, is safe from a node that was replaced.
// Packages node and daemon define the terms; docs/glossary.md lists all.
//
// # What is promised
//
//  1. No two nodes hold one term. Without paused processes, no two leadership contexts are live
//     at once. A node stops acting as leader before another may lead: [Coordinator.Leadership]
//     returns false from the end of its validity on. It reads a clock that counts suspended time,
//     so this holds even if everything else in the process hangs.
//  2. When leadership ends, its context is cancelled and the loss is published before any call to
//     the store.
//  3. An agent's context is cancelled before the cluster may give its unit to another node, whether
//     or not the store can be reached. Writes under the agent's fence are refused once a
//     successor runs.
//  4. User code (agents, hooks, leader-only work, subscribers) cannot delay a heartbeat, an
//     election, or other user code.
//  5. Run returns within a computed bound after its context ended. Nothing that it started goes on
//     after that, except code that ignores a cancelled context; the log names it.
//
// Not promised: that exactly one copy of an agent runs. A process can be paused between any two
// instructions, and resume after its unit has moved. Fences exist for this case.
//
// # How it works
//
// Package member is a state machine that makes every decision of the protocol. This package is the
// shell around it:
//
//	              ┌──────── inputs: answers, wake-ups, reports, requests, time ──────────┐
//	              ▼                                                                      │
//	one loop: member.Step ── effects ─┬─▶ store calls, each on its own goroutine ────────┤
//	                                  ├─▶ internal/coordinator/supervisor: start, drain, cancel ───────┤
//	                                  ├─▶ plan.Make, on its own goroutine ───────────────┤
//	                                  └─▶ leadership: context, hooks, subscribers, log   │
//	                                              └─ leader-only work has returned ──────┘
//
// The loop never waits for any of these: queues have no bound, and a call without an answer in time
// is answered by an error. The loop reads the local clock at least every Timing.ClockCheckInterval. A machine
// that resumes from a suspend therefore notices at once that its validity is over.
//
// # What fails, and what then
//
//	a call to the store            repeated with back-off; it may have been applied, so read again
//	every call, for a while        leadership ends when its validity does, and agents are cancelled
//	                               when theirs does; both before another node may take over
//	the store ignores its context  the call is answered by an error in time all the same
//	an agent                       restarted with back-off, then given back: see internal/coordinator/supervisor
//	a hook panics                  logged and counted; the next hook is called
//	leader-only work               repeated with back-off; after failing for a whole LeaseDuration
//	                               the node resigns
//	the loop hangs                 a watchdog ends leadership; /livez fails
package coordinator
