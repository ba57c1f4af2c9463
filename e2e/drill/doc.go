// Package drill drills emitd on real processes: nodes are started, killed, stopped, paused and cut
// off from a real database, and what happened is judged from two records that know nothing of
// each other: the cluster's event history, and what the agents' own processes wrote about
// themselves.
//
// Agents are the test binary itself ([Ticker]), run by emitd as exec daemons. Each writes a line
// when it starts, every few milliseconds while it lives, and when it ends, stamped with the
// host's boot clock, so that runs on different nodes can be compared.
package drill
