// Package queuev1 has the messages of emitd.queue.v1.QueueService, the queue's protobuf service for
// batches. It is generated from queue.proto by
//
//	go generate ./internal/queue/wire
//
// which runs buf with the generators of the versions in go.mod. Field numbers are part of the
// interface: they are never reused for another field.
package queuev1
