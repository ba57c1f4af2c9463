// Package coordinator makes a process a node of a cluster: it elects, is elected, and runs the
// daemons that are assigned to it.
//
//	c, err := coordinator.New(store, coordinator.Config{})
//	err = c.Register(daemon.Spec{ID: "acme:reports", Instances: 4}, agent)
//	err = c.Run(ctx) // blocks until ctx ends, then stops cleanly
//
// # Words
//
// A node is one process; a term is one reign of one node; a unit is one instance of a daemon; a
// generation is one run of a unit. Terms and generations only grow and never repeat: a resource
// that remembers the highest it has seen and refuses lower ones is safe from whoever has been
// replaced. See packages node and daemon.
//
// # What is promised
//
//  1. No two nodes hold one term. Without paused processes, no two leadership contexts are live
//     at once. A node stops believing in itself before anybody else may lead: [Coordinator.Leadership]
//     says no from the trust deadline on, by its own look at a clock that counts suspend, even if
//     everything else in the process is stuck.
//  2. When leadership ends, its context is cancelled and the loss published first; whatever talks
//     to the store comes afterwards.
//  3. An agent's context is cancelled before the cluster may give its unit away, whether the store
//     can be reached or not. What an agent does under its fence is refused once a successor runs.
//  4. Nothing that users write (agents, hooks, leader-only work, subscribers) can delay a
//     heartbeat, an election, or one another.
//  5. Run returns within a computed bound after its context ended, and nothing it started goes on
//     except what ignores a cancelled context; that is named in the log.
//
// Not promised: that exactly one copy of an agent runs. A process can be paused between any two
// instructions; that is what fences are for.
//
// # How it works
//
// Package member holds every rule as a state machine. This package is the shell around it:
//
//	              ┌──────────── inputs: answers, hints, reports, wishes, time ───────────┐
//	              ▼                                                                      │
//	one loop: member.Step ── effects ─┬─▶ store calls, each on its own goroutine ────────┤
//	                                  ├─▶ daemon/supervisor: start, drain, cancel ───────┤
//	                                  ├─▶ plan.Make, on its own goroutine ───────────────┤
//	                                  └─▶ leadership: context, hooks, subscribers, log   │
//	                                              └─ leader-only work has returned ──────┘
//
// The loop never waits for any of these: queues have no bound, and a call that gets no answer in
// time is answered by an error. The loop looks at the local clock at least every Timing.Watch, so
// that a suspended machine notices at once that its time is over.
//
// # What fails, and what then
//
//	a call of the store            repeated with back-off; its outcome is unknown, so read again
//	every call, for a while        leadership ends at its trust deadline; agents are cancelled at
//	                               theirs; both before anybody else may take over
//	the store ignores its context  the call is answered by an error in time all the same
//	an agent                       restarted with back-off, then given back: see daemon/supervisor
//	a hook panics                  logged and counted; the next one comes
//	leader-only work               repeated with back-off; three times in a row: the node resigns
//	the loop is stuck              a watchdog ends leadership; /livez fails
package coordinator
