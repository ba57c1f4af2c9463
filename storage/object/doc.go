// Package object keeps the cluster store in a bucket. A cluster then needs nothing but an object store, or a
// directory.
//
// # What it promises
//
// Everything that package storage promises, call by call the same as storage/memory. It holds for any number of
// processes on one bucket that keeps the contract of package blob. [Store.Capabilities] declares what a bucket
// cannot do:
//
//   - The store sends no wake-ups: nodes find every change at their next heartbeat.
//   - A heartbeat costs two requests. One that reports new members may also read segments of events.
//   - The store has no clock. The process that writes a fact stamps it with its own clock. Stamps are for people,
//     and decide nothing about a term, a node or a lock. A node counts only how long it has itself seen a value
//     unchanged, by its own clock. So every bound is longer by the time until the node first read the value. After a leader has died
//     together with daemons, its successor begins to observe the other nodes when it is elected. The daemons run
//     again after up to a lease and a registration TTL, plus two intervals (profile fast: another leads after 5.1
//     s, all runs again after 11.8 s; TestTakeOver).
//   - The user has no transactions: [Store.Fence] reports whether a run may act now. An effect that must not come
//     after a later run's effects must be compared with the fence where it is written.
//
// # Objects
//
//	cluster          all that must change in one step: term, lease, rows of nodes, units and fences,
//	                 what nodes advertise, commands, locks, the newest events
//	in/n/<process>   what the newest heartbeat of a node says: its pulse
//	ev/<first>-<n>   older events, 256 in each: a segment
//	probe/…          scratch of the check at the start
//
// Every method that changes more than a node's own pulse replaces cluster once, on the condition that it still has
// the content that was read. If another process was first, the method starts again with a read. The pauses in
// between are as long as an attempt took, doubled and jittered. Nothing depends on a listing. A segment of events
// is written first and named in cluster afterwards; until it is named it counts for nothing. A segment is deleted
// only after cluster no longer names it. A segment's name is not used twice. If a late deletion removes a pulse
// that is in use, the next heartbeat writes it again.
//
// # Contents
//
// A content of cluster has a number n, one more than the content before. It also has a nonce, and the nonces of the
// 64 contents before it. No two contents are the same, so equal versions of the bucket prove equal contents.
//
//   - If the answer to a replacement is lost, the process reads the object. If the content n+1 has its nonce, the
//     replacement has happened, even if others have followed. If the content is still n, the process sends the same
//     bytes again. Otherwise the replacement has not happened, and never will.
//   - If the caller's time ends before that is known, the error says that the outcome is unknown. Before the
//     process answers another call from the same content, it writes a content in between. The late write then
//     fails, so no answer can be overtaken by something older.
//   - A content with a smaller n, with another nonce for a number that this process knows, or with a store ID that
//     this process has left for another one, does not continue what the process has seen: the bucket was restored.
//     The process that sees this writes the next content under a new store ID, with an n above both. All nodes thus
//     learn that the store is another one. The same happens for an object that is gone, and for a bucket under
//     another [Config.Name].
//
// # Heartbeats
//
// A follower writes its pulse and then reads cluster. In this order its reply shows everything that was true when
// its heartbeat was accepted. It writes cluster only if it must (see below, or for an election). A pulse is also
// replaced conditionally, so a heartbeat that arrives late or twice is refused by its sequence number. A leader's
// pulse is part of its renewal. The renewal is one write that usually needs no read: it starts from the content
// that the process saw last, and the condition proves that this content was still current. If the write does not
// succeed, the call starts again with a read.
//
// A leader that declares a node dead must not overlook the node's heartbeat, which is another object:
//
//	leader                                   node
//	1  write a doubt into the node's row     1  write the pulse
//	2  read the pulse                        2  read cluster
//	3  if the pulse has not moved and the    3  if there is a doubt in its row, write that it
//	   doubt still stands: write the death      lives, which takes the doubt away
//
// In any order of these steps, the leader sees the pulse or the node sees the doubt. If both the death and the
// removal of the doubt are written, the first of the two writes makes the other impossible.
//
// A pulse that is damaged says nothing about its node, and least of all that the node is silent. Until it can be read again,
// nobody is elected, nothing is planned and nobody is declared dead. The node's next heartbeat replaces it. If the
// process has ended, an operator deletes the object; the errors name it.
//
// # Events
//
// The cluster object holds the newest 256 to 511 events, and more only while segments cannot be written. The
// process that makes the next event first writes the oldest 256 to a segment. It does so only with events that the
// content before already contained, so a step that fails leaves no history. Sweeps move the beginning of the
// history, and delete segments of which no event is left.
//
// # Encoding
//
// An object is a line "emitd <kind> <format> <CRC-32>" and a JSON text, which is deflated except for pulses. It is
// decoded strictly: a field or format that this program does not know is a storage.ErrSchema or blob.ErrCorrupt. It
// is never dropped silently at the next write. It is written in the oldest format that has all of its fields: nodes of
// an earlier version go on until the first unit has a state or a key.
//
// # Size
//
// [Config.MaxBytes] bounds what is added to the cluster object: units, states, commands and locks. A step beyond it fails
// with storage.ErrFull and changes nothing; a commit does what adds nothing and skips the rest. Assignments may use a
// sixteenth more. Heartbeats, registrations, deaths, removals and sweeps may use an eighth, so that the cluster goes on
// and can be made smaller. A unit costs 20 to 60 bytes, a node about 130: 5,000 units on 50 nodes are about 110 KB
// (TestSize).
//
// # Cost
//
// Requests in an hour without changes, measured with whole nodes (TestCost), and their price on S3 for a month ($5
// for a million writes, $0.40 for a million reads):
//
//	profile   nodes   writes of pulses   of cluster   reads of cluster   of pulses     sum    a month
//	default       3                480          240                740         510   1,970      $3.00
//	default      10              2,160          240              2,500       3,060   7,960     $10.40
//	fast          3              7,230        3,590             10,950       7,440  29,200     $44.80
//
// Calculated: with n nodes, H heartbeats an hour and P passes of the leader (about 1.1·H), writes n·H, reads
// (n−1)·H + n·P. A change costs a read and a write, and a read of its node's pulse. A commit that assigns, a
// resumption and an election read all pulses. A death costs one write more. Google Cloud Storage allows about one
// write a second to one name: use profile default there.
//
// # What it does not promise
//
//   - Fairness: when many nodes change something at once, some wait for several rounds. Ten that report in the same
//     instant over a line of 100 ms are done after some 4 s.
//   - Short timings for many nodes. A change of the cluster object is a read and a write, and the changes of all
//     nodes go one after the other. The store times its requests and registers a node only while there is room for
//     its changes (storage.Heartbeat.Room). At 50 ms a request, profile fast is for up to 8 nodes, and profile
//     default for up to 50. Beyond that, use longer timings or a database.
//   - Many short locks. Locks are rows of cluster: use them for a few that are held for long.
//   - Right times in spite of wrong clocks. A process whose wall clock is wrong writes wrong stamps, and term
//     numbers that are as far ahead. No number goes back, and no node leads or dies because of it. But the age of
//     rows to sweep, embargoes, and what a newcomer concludes about a store that was restored recently are as wrong
//     as the clock.
//   - Protection from writers. Anyone with write access to the bucket can forge everything in it.
package object
