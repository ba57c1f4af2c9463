// Package drill tests emitd with real processes. Nodes are started, killed, stopped, paused and cut off
// from a real database. The outcome is checked against two independent records: the cluster's event
// history, and what the agents' own processes wrote about themselves.
//
// Agents are the test binary itself ([Ticker]), which emitd runs as exec daemons. Each writes a line when
// it starts, every few milliseconds while it lives, and when it ends. The lines have the time of the
// host's boot clock, so that runs on different nodes can be compared with each other and with the
// history. Programs that embed a coordinator ([Writer]) append to a table through the fence. The table is
// compared with the results that they were given. Without the fence that comparison must fail.
//
// A promise about durations is a value ([Bound]). In a run with the full counts, any figure outside it
// fails the drill; in other runs only a figure that is far outside. What must not happen ([Never]) always
// fails the drill.
package drill
