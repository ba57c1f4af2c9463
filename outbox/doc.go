// Package outbox delivers messages that were published in a transaction to where they should go:
// every committed one at least once, in order per key, and never one that was rolled back.
//
// # Words
//
//   - A [Message] is published as part of the caller's own transaction, by a backend's publisher
//     (outbox/pglog, outbox/sqlitelog). From then on it is a [Row] of the log.
//   - A *subscription* is a reader of the log with a position of its own; there may be several.
//   - A key falls into one of [Shards] shards; a *range* of shards is a unit of the daemon
//     emit:outbox/<subscription> and has one relay at a time.
//   - A [Relay] is that daemon's agent: it reads pages from the [Log], gives them to the [Sink] and
//     stores its position. Its *epoch* is the generation of its assignment.
//   - A *lane* is a key that waits: the message that failed and all that follow it. Other keys flow.
//
// # What is promised
//
//  1. A message whose transaction committed is delivered at least once, whatever dies meanwhile. One
//     whose transaction was rolled back is delivered never.
//  2. Messages of one key are delivered in the order in which their transactions took the key's lock.
//     After a crash or a hand-over some come again; the first deliveries are in order, always. The ID
//     of a message stays the same, so receivers can drop what they have.
//  3. No message that cannot be delivered, however many of them there are, and no stranger's open
//     transaction holds back other keys. A key on which the sink hangs holds back the others of its
//     page once, for Config.Patience.
//  4. A relay that was overtaken stores nothing: every write compares epoch and revision. It stops
//     giving messages to the sink when its assignment can no longer be trusted. What is under way
//     then may still arrive, unless the receiver fences ([Fencer]).
//  5. A message leaves the log's care only delivered, or dead, kept and with its cause ([Skip]), or
//     because the policy says [Drop].
//
// # The way of a message
//
//	page ──▶ worker of its key ──▶ sink ──▶ taken ────────────────────────▶ position stored
//	                 │               └──▶ failed ──▶ lane ──(back-off)──▶ sink …
//	                 └─ its key has a lane ─────────▶ lane, behind
//
// A failure of kind [ErrPermanent], or of the last attempt, is what the [Policy] is for: hold the
// key, skip the message, or drop it. [ErrSinkDown] is no failure of the message: the sink rests
// behind a breaker, and nothing is counted. A call for a page that hangs is cut off after
// Config.Patience; what the sink has not taken then goes to the lanes of its keys without an attempt
// counted, and is tried there for up to Config.DeliverTimeout, in halves until it is one key, whose
// failure it is. If nothing at all of a page comes through, it is the sink that is down.
//
// Lanes are tried many at once as long as anything of them is delivered. If nothing is, they are tried
// four at once, in a quarter of the time and in the gaps between pages, so that a thousand bad keys take
// neither the sink nor the log nor the processor from others. They are tried all the same, however many
// pages there are: after four keys, which take a time t, there is a pause of 3 t, at most a second, and
// then a gap is waited for, at most 50 ms; while fewer than 32 keys are due, others are waited for, 100 ms.
// So n keys that are due in vain have all been tried after n/4 times t, pause and 50 ms: a thousand that a
// receiver refuses in a millisecond within 15 s, and in a few seconds if there are gaps; a thousand that
// each hang for 30 s within two hours and a quarter.
//
// A key has its lane until the lane is empty *and* no message is on its way into it; then it is read
// from pages again. This is what keeps its order.
//
// # What fails, and what then
//
// After any error of the log the relay forgets what it has in memory and claims again; until then
// nothing is delivered. Deliveries that were not stored are repeated: at most Config.Window pages for
// each interruption. A receiver that refuses the relay ([ErrFenced]) is no proof that the relay was
// deposed, the claim is: as long as the log lets it claim, it fences the receiver anew.
//
// # What is not promised
//
// Exactly-once, unless the receiver drops by ID or the sink stores position and message in one
// transaction. An order between keys, for messages of no key, or between delayed and other messages.
// What an asynchronous failover of the database loses may have been delivered before.
package outbox
