// Package drill drills emitd on real processes: nodes are started, killed, stopped, paused and cut
// off from a real database, and what happened is judged from two records that know nothing of
// each other: the cluster's event history, and what the agents' own processes wrote about
// themselves.
//
// Agents are the test binary itself ([Ticker]), run by emitd as exec daemons. Each writes a line
// when it starts, every few milliseconds while it lives, and when it ends, stamped with the
// host's boot clock, so that runs on different nodes can be compared, and with the history. Programs
// that embed a coordinator ([Writer]) append to a table through the fence; the table is compared with
// what they were told, and without the fence that comparison must fail.
//
// What is promised is a value ([Bound]): figures that break it fail the drill, those of a run with
// the full counts to the letter, others when they are out of all proportion. What must not happen
// ([Never]) fails it always.
package drill
