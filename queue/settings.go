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
	// Shards is the number of shards; default 1. Order and deduplication are per shard. Declare
	// does not change it once the queue exists; see Resharding.
	Shards int
	// Resharding is set by broker.Registry.Reshard while the number of shards changes, and Layout
	// counts these changes, also those that were cancelled. Declare ignores both.
	Resharding Resharding
	Layout     uint64
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

// Stage is how far a change of the number of shards is; empty: there is none.
type Stage string

// The stages, in this order; "" is none. In the first one the queue is served.
const (
	Preparing Stage = "preparing" // the nodes get ready; Settings.Shards is the former number
	Moving    Stage = "moving"    // the former shards write down their jobs, and are not served any more
	Importing Stage = "importing" // Settings.Shards is the new number; each shard is served once it has its jobs
)

// Resharding is a change of the number of a queue's shards.
type Resharding struct {
	Stage Stage
	// Shards is the new number; when importing, the former one. Incarnation belongs to it.
	Shards      int
	Incarnation uint64
}

// Spec returns the daemon that serves the queue: one unit per shard. While the number of shards changes, there
// are as many units as the larger of the two numbers.
func (set Settings) Spec() daemon.Spec {
	units, revision := max(1, set.Shards), 2*int64(set.Layout)
	if set.Resharding.Stage == Preparing || set.Resharding.Stage == Moving {
		units, revision = max(units, set.Resharding.Shards), revision+1
	}
	return daemon.Spec{ID: daemon.ID(string(Kind) + "/" + set.Name), Kind: Kind, Instances: units, Revision: revision}
}
