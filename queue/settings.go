package queue

import (
	"time"

	"github.com/emitd/emitd/daemon"
)

// How claims become durable.
const (
	SoftClaims    = "soft"    // answered at once, durable within a second
	DurableClaims = "durable" // answered when durable: one holder per attempt, exact counts
)

// Settings are the settings of a queue. Zero fields take the default.
type Settings struct {
	Name string
	// Incarnation is set by Declare. A queue that is removed and declared again gets a new one,
	// and so objects of its own.
	Incarnation uint64
	// Shards cannot be changed once the queue exists; default 1. Order and deduplication are
	// per shard.
	Shards int
	// Claims is SoftClaims (default) or DurableClaims.
	Claims string
	// Visibility is how long a claim lasts without an extension; default 30 s.
	Visibility time.Duration
	// Retry is the policy of jobs that do not set one.
	Retry Retry
	// TTL applies to jobs that set none; default 0: for ever.
	TTL time.Duration
	// DedupWindow and DedupIDs bound how long, and how many, IDs of ended jobs are remembered
	// per shard; default 10 min and 1,000,000.
	DedupWindow time.Duration
	DedupIDs    int
	// MaxJobs and MaxBytes bound what a shard holds in memory; enqueueing beyond them is
	// refused with QueueFull. Default 10,000,000 and 1 GiB. A payload above
	// 128 bytes takes memory only while it is one of the last that were submitted.
	MaxJobs  int
	MaxBytes int64
}

// Kind is the agent kind that a node advertises if it can serve queues. It covers all queues.
const Kind daemon.Kind = daemon.Reserved + "queue"

// Spec returns the daemon that serves the queue: one unit per shard.
func (set Settings) Spec() daemon.Spec {
	return daemon.Spec{ID: daemon.ID(string(Kind) + "/" + set.Name), Kind: Kind, Instances: max(1, set.Shards)}
}
