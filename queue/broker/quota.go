package broker

import (
	"fmt"

	"github.com/emitd/emitd/queue"
)

// DefaultMaxShards is how many shards the queues of a cluster may have together by default: as many
// as one node with 256 MiB of memory can serve alone, all with jobs.
const DefaultMaxShards = 1024

// SetMaxShards makes Declare and Amend refuse a queue that would raise the number of all queues'
// shards above most. Queues that exist already stay and can be changed. Call it before the registry
// is used; without it the limit is [DefaultMaxShards].
func (r *Registry) SetMaxShards(most int) { r.maxShards = most }

// checkShards refuses a queue with more shards than the cluster may still have. It checks the list that is
// about to be replaced, so two nodes together cannot exceed the limit either. Removed queues count
// until their objects are deleted. Their brokers may not know of the removal yet, and a client that
// declares and removes queues in a loop must reach the limit too.
func (f *registryFile) checkShards(name string, shards, most int) *queue.Error {
	declared, removed := 0, 0
	for _, q := range f.Queues {
		declared += q.Shards + q.Resharding.Shards
	}
	for _, g := range f.Removed {
		removed += g.Shards
	}
	if declared+removed+shards <= most {
		return nil
	}
	e := queue.Refuse(queue.TooManyShards, "queue %q cannot have %d shards: the limit of the cluster is %d, and %d are declared", name, shards, most, declared)
	if removed > 0 {
		e.Message += fmt.Sprintf(", %d more belong to removed queues that are being deleted", removed)
	}
	if declared+shards <= most {
		return e.WithHint("try again in a few minutes, when the removed queues are deleted")
	}
	return e.WithHint("declare fewer shards, remove queues that are no longer needed, or raise queue.max_shards on all nodes")
}
