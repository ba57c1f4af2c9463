// Package queue drills the queue with real processes: brokers that are killed with -9 under load,
// on a directory and on real object store servers.
package queue
