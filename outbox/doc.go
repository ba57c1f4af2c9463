// Package outbox delivers messages that an application publishes in its own database transactions. Every
// message of a committed transaction reaches the sink at least once, in order per key. A message of a
// transaction that was rolled back is never delivered.
//
// To publish, open the log, make a publisher, and publish in a transaction of your own:
//
//	messages, err := postgres.Open(ctx, postgres.Config{URL: url, AutoMigrate: true}) // of outbox/postgres
//	publisher, err := postgres.New(pool, postgres.Config{})
//	err = publisher.InTx(ctx, pool, func(tx *postgres.Tx) error {
//		…
//		return publisher.Publish(ctx, tx, outbox.Message{Topic: "orders", Key: "alice", Payload: order})
//	})
//
// To deliver, register a relay with a coordinator, which runs it on one node of the cluster:
//
//	relay, err := outbox.NewRelay(outbox.Config{Name: "shop", Log: messages, Sink: sink})
//	err = c.RegisterBuiltin(relay.Spec(), relay)
//
// After the coordinator's Run has returned, the caller closes relay, sink and log. examples/outbox is a whole program,
// docs/how-to/outbox-publish.md and outbox-sinks.md describe each step, and docs/explanation/outbox.md the guarantees.
//
// # Terms
//
//   - A [Message] is published as part of the caller's transaction, by the publisher of a backend
//     (outbox/postgres, outbox/sqlite). From then on it is a [Row] of the log.
//   - A *subscription* is a named reader of the log with its own positions and its own sink. A log may
//     have several.
//   - Every key falls into one of [Shards] shards. A *range* of shards is a unit of the daemon
//     emit:outbox/<subscription> and has one relay at a time.
//   - A [Relay] is the agent of that daemon. It reads pages from the [Log], delivers their messages to
//     the [Sink] and stores its position. Its *epoch* is the generation of its assignment.
//   - A key is *parked* while a message of it waits for another attempt or for an operator. The log
//     stores the parked messages of a key, the failed one and all later ones, in the key's *lane*. Other
//     keys go on. A message without a key is parked alone: its lane holds only that message.
//
// # What is promised
//
//  1. A message whose transaction committed is delivered at least once, whatever crashes meanwhile. A
//     message whose transaction was rolled back is never delivered.
//  2. Messages of one key are delivered in the order in which their transactions took the key's lock.
//     After a crash or a hand-over some messages are delivered again, but first deliveries are always in
//     order. The ID of a message stays the same, so receivers can drop repetitions.
//  3. Undeliverable messages, however many, do not hold back other keys. Neither does an open transaction
//     of anyone else. A key on which the sink hangs holds back the other keys of its page once, for
//     Config.PageTimeout.
//  4. A relay that was replaced stores nothing, because every write compares epoch and revision. It also
//     stops calling the sink when its assignment can no longer be trusted. Calls in flight at that moment
//     may still reach the receiver, unless the receiver rejects lower epochs ([Fencer]).
//  5. A message leaves the log only in one of three ways: delivered; dead, and kept with the cause
//     ([Skip], or a message that no sink can send); or discarded because the policy says [Drop].
//
// # The way of a message, from publish to sink
//
//	publisher ──▶ log ──▶ page ──▶ worker of the key ──▶ sink ──▶ delivered ──────────────▶ position stored
//	                                      │               └─────▶ failed ──▶ lane ──(back-off)──▶ sink …
//	                                      └─ the key is parked ────────────▶ lane, behind
//
// The publisher writes the message into the log in the caller's transaction. After the commit it wakes
// the relays of the log, or they find the message by polling. The session of the relay that owns the
// message's shard reads the next page ([Cursor.Next]) and gives each message to the worker of its key. So
// pages overtake each other, but messages of one key do not. A worker hands its messages to the sink in
// one call, those of several pages if they wait; the circuit breaker may delay the call, and
// Config.PageTimeout bounds it. When all messages of a page are delivered or have another outcome, the
// page is done. The committer stores positions in the order of the pages, and in the same step the
// outcomes of messages that were not delivered ([Cursor.Advance]). A crash before that step repeats the
// page.
//
// # The way of a key that fails
//
// A worker reports a failed message as Waiting, and the later messages of its key as Behind. In memory
// the key counts as parked at once, so messages of it in later pages become Behind without an attempt.
// Advance copies all of them into the key's lane, and the position moves past them: this is why a failing
// key holds back no other key. When the back-off of [Retry] ends, the lane is due: the session reads its
// first messages ([Cursor.Due]), delivers them and stores the outcomes ([Cursor.StoreParked]). A key stays
// parked until its lane is empty *and* no message is on its way into the lane; from then on its messages
// are delivered from pages again. This is what keeps the key's order.
//
// A failure of kind [ErrPermanent], or a failure of the last attempt, is decided by the [Policy]: hold
// the key, skip the message, or drop it. [ErrSinkDown] is not a failure of the message: a circuit breaker
// stops calls to the sink for a while, and no attempt is counted.
//
// A call for messages of a page that hangs is cut off after Config.PageTimeout. What the sink has not taken
// then is parked without an attempt being counted. From its lane it is tried for up to
// Config.DeliverTimeout. A call for several lanes that hangs is repeated in halves, until one key is
// found that hangs alone; the failure is counted for that key. If nothing at all of a page gets through,
// the sink counts as down.
//
// # How much time parked keys may take
//
// While some messages of lanes are delivered, up to 32 lanes are tried at once. While no attempt succeeds, only
// four lanes are tried at once, for a quarter of the time, and in the gaps between pages. So a thousand bad keys keep
// neither the sink nor the log nor the processor from others. Lanes are tried even if there is no gap:
// after four keys that took a time t, the relay pauses for 3 t, at most a second, and then waits for a
// gap, at most 50 ms. While fewer than 32 keys are due, it waits 100 ms for others. So n keys that fail
// have all been tried after n/4 times (t + pause + 50 ms). A thousand keys that a receiver refuses in a
// millisecond are tried within 15 s, and within a few seconds if there are gaps. A thousand keys that
// each hang for 30 s are tried within two hours and a quarter.
//
// # What fails, and what then
//
// After any error of the log the relay discards what it has in memory and claims its range again. Until
// then nothing is delivered. Deliveries whose position was not stored are repeated: at most Config.MaxPages
// pages for each interruption. A receiver that refuses the relay ([ErrFenced]) does not prove that the
// relay was replaced; only the claim in the log does. As long as the log accepts the claim, the relay
// fences the receiver again.
//
// # What is not promised
//
//   - Exactly-once delivery, unless the receiver drops repetitions by ID or the sink stores position and
//     message in one transaction.
//   - An order between keys, among messages without a key, or between delayed and other messages.
//   - That a message is lost together with its transaction: a transaction that an asynchronous failover
//     of the database loses may have been delivered before.
package outbox
