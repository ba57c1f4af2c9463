// Package object keeps the cluster store in a bucket: a cluster that needs nothing but an object
// store, or a directory.
//
// # What it promises
//
// Everything that package storage promises, call by call the same as storage/memory, for any number
// of processes on one bucket that keeps the contract of package blob. What a bucket cannot do is
// declared by [Store.Capabilities]:
//
//   - Nobody is told of changes: they are found at the next heartbeat.
//   - A heartbeat costs two requests. One that is told of new members may read segments of events besides.
//   - There is no clock. Facts are stamped with the estimate of whoever writes them; stamps are for
//     people, and decide nothing about a term, a node or a lock. Only "unchanged, as I have seen it
//     by my own clock" counts, so every bound is longer by the time until somebody looked first:
//     after a leader has died together with daemons, its successor begins to watch the others when it
//     is elected, and the daemons run again after up to a lease and a registration's life, plus two
//     intervals (profile fast: another leads after 5.1 s, all runs again after 11.8 s; TestTakeOver).
//   - There are no transactions of the user's: [Store.Fence] tells whether a run may act now, and an
//     effect that must not be overtaken is compared where it is written.
//
// # Objects
//
//	cluster          all that must change in one step: term, lease, rows of nodes, units and fences,
//	                 what nodes advertise, commands, locks, the newest events
//	in/n/<process>   what the newest heartbeat of a node says: its pulse
//	ev/<first>-<n>   older events, 256 in each
//	probe/…          scratch of the check at the start
//
// Every method that changes more than a node's own pulse is one replacement of cluster, conditional
// on the content that was read: read, apply, write, and from the beginning if another process was
// first, with pauses as long as an attempt took, doubled and jittered. Nothing rests on a listing.
// What is written first and named afterwards (segments of events) is litter until it is named; what
// is deleted was made nameless before. A segment's name is not used twice; a pulse that a deletion
// meets too late is written again with the next beat.
//
// # Contents
//
// A content of cluster has a number n, one more than the one before, a nonce, and the nonces of the
// 64 before it. No two contents are the same, so equal versions of the bucket cannot lie.
//
//   - A replacement whose answer is lost is looked up: if the content n+1 has its nonce, it has
//     happened, also if others have followed; if the content is still n, the same bytes are sent
//     again; else it has not happened, and never will.
//   - When the caller's time ends before that is known, the error leaves it open. Before this process
//     is answered anything else from the same content, it writes one in between: the late write
//     then fails, so no answer is overtaken by something older.
//   - A content with a smaller n, or with another nonce where this process knows one, does not
//     continue what was seen: the bucket was restored. Whoever sees it writes the next content under
//     a new store id, with an n above both, and everybody learns that it is another store. The same
//     goes for an object that is gone, and for a bucket under another [Config.Name].
//
// # Heartbeats
//
// A follower writes its pulse, then reads cluster, in this order: its answer shows everything that
// was so when its beat was accepted. It touches cluster only if it finds that it must (below, or for
// an election). Pulses are replaced conditionally, too: a heartbeat that arrives late or twice is
// refused by its sequence number. The pulse of a leader is part of its renewal, which is one write
// that usually needs no read: it begins with what the process saw last, and the condition proves
// that it was still so. Any other outcome than a write is worked out from what is read.
//
// A leader that declares a node dead must not overlook its heartbeat, which is another object:
//
//	leader                                   node
//	1  write its doubt into the node's row   1  write the pulse
//	2  read the pulse                        2  read cluster
//	3  if the pulse has not moved and the    3  if there is a doubt in its row, write that it
//	   doubt still stands: write the death      lives, which takes the doubt away
//
// Whichever way these interleave, the leader sees the pulse or the node sees the doubt, and of the
// two writes that follow from that one happens.
//
// # Events
//
// The cluster object holds the newest 256 to 511 events, and more only while segments cannot be
// written. The oldest 256 of them are written to a segment before they leave, by whoever makes the
// next event, and only if they stood in the content before: a step that comes to nothing leaves no
// history. Sweeps move the beginning, and delete segments of which nothing is left.
//
// # Encoding
//
// An object is a line "emitd <kind> <format> <CRC-32>" and a JSON text, deflated but for pulses. It is
// decoded strictly: a field or format that this program does not know is a storage.ErrSchema or
// blob.ErrCorrupt, never something to be dropped at the next write.
//
// # Size
//
// The cluster object is bounded by [Config.MaxBytes]; a step beyond it fails with blob.ErrTooLarge
// and nothing has changed. A unit costs 20 to 60 bytes, a node about 130: 5,000 units on 50 nodes are
// about 110 KB (TestSize).
//
// # Cost
//
// Requests of an hour in which nothing happens, measured with whole nodes (TestCost), and what S3
// asks for them in a month ($5 for a million writes, $0.40 for a million reads):
//
//	profile   nodes   writes of pulses   of cluster   reads of cluster   of pulses     sum    a month
//	default       3                480          240                740         510   1,970      $3.00
//	default      10              2,160          240              2,500       3,060   7,960     $10.40
//	fast          3              7,230        3,590             10,950       7,440  29,200     $44.80
//
// Calculated: with n nodes, H heartbeats an hour and P passes of the leader (about 1.1·H), writes
// n·H, reads (n−1)·H + n·P. A change costs a read and a write, and a read for its own pulse; a
// commit that assigns, a resumption and an election read all pulses; a death costs one write more.
// Google Cloud Storage allows about one write a second to one name: use profile default there.
//
// # What it does not promise
//
//   - Fairness: of many that change something at once, some wait for several rounds. Ten that report
//     in the same instant over a line of 100 ms are done after some 4 s.
//   - Short timings for many nodes. A change of the cluster object is a read and a write, and those of all
//     nodes go one after the other. Requests are timed, and a node is registered only while there is room for
//     its changes (storage.Heartbeat.Room): at 50 ms a request, profile fast is for up to 8 nodes, and profile
//     default for up to 50. Beyond that, use longer timings or a database.
//   - Locks are rows of cluster: for a few that are held for long, not for many short ones.
//   - A process whose wall clock is wrong writes wrong stamps, and numbers of terms that are as far
//     ahead. Nothing goes back, nobody leads or dies of it; ages of what is swept, embargoes and
//     what a newcomer thinks of a store that was restored a moment ago are as wrong as the clock.
//   - Whoever may write the bucket can forge everything in it.
package object
