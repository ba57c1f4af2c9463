package queue

import "fmt"

// DefaultMaxShards is how many shards the queues of a cluster may have together unless more are
// allowed: as many as one node with 256 MiB of memory can serve alone, each with jobs.
const DefaultMaxShards = 1024

// LimitShards has Declare and Amend refuse a queue with which all queues together would have more
// shards. Queues that are declared already stay, and can be changed, however many they are. It is
// called before the registry is used; without it the limit is [DefaultMaxShards].
func (r *Registry) LimitShards(most int) { r.most = most }

// room refuses a queue that has more shards than the cluster may still have. It is asked before the
// list is replaced by the one that was read, so that two nodes together do not exceed the limit
// either. Removed queues count until their objects are deleted: their brokers may not have heard yet,
// and who declares and removes without end must come to an end as well.
func (f *registryFile) room(name string, shards, most int) *Error {
	declared, removed := 0, 0
	for _, q := range f.Queues {
		declared += q.Shards
	}
	for _, g := range f.Removed {
		removed += g.Shards
	}
	if declared+removed+shards <= most {
		return nil
	}
	e := Refuse(TooManyShards, "queue %q cannot have %d shards: the limit of the cluster is %d, and %d are declared", name, shards, most, declared)
	if removed > 0 {
		e.Message += fmt.Sprintf(", %d more belong to removed queues that are being deleted", removed)
	}
	if declared+shards <= most {
		return e.WithHint("try again in a few minutes, when the removed queues are deleted")
	}
	return e.WithHint("declare fewer shards, remove queues that nobody needs, or raise queue.max_shards on all nodes")
}
