// Package queue tests the queue with real processes: brokers are killed with kill -9 under load, on a
// directory and on real object store servers.
package queue
