// Package outbox drills the outbox with real processes: nodes of emitd relay messages that the
// drill's own writers publish in their own transactions, and are killed with -9, stopped and continued
// meanwhile. Receivers are real as well: HTTP, Postgres, NATS JetStream, Kafka's protocol, the queue.
//
// What happened is judged from two records that know nothing of each other: the writers' own, who
// note what they commit while they have the key's lock, and what readers of the receiver see.
package outbox
