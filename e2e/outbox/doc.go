// Package outbox tests the outbox with real processes. Nodes of emitd relay messages that the drill's own
// writers publish in their own transactions. Meanwhile nodes are killed with kill -9, stopped and
// continued. Receivers are real as well: HTTP, Postgres, NATS JetStream, Kafka's protocol, the queue.
//
// The outcome is checked against two independent records: the writers', who record what they commit while
// they hold the key's lock, and what readers of the receiver see.
package outbox
