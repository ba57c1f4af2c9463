// Package osqueuev1 has the messages of osqueue.v1.QueueService as osqueue's published clients send
// them. It is generated from queue.proto by
//
//	go generate ./internal/queue/wire
//
// Field numbers are osqueue's and must not change.
package osqueuev1
