package queue

import "context"

type shardsKey struct{}

type shardScope struct {
	shards []int
	of     int
}

// OnShards restricts a call on a whole queue (Get, List, Stats, Do) to these shards. A node that
// combines the answers of several brokers tells each of them which shards it asks for. A broker
// that does not serve all of them refuses with QueueNotOwner, so that no answer silently covers a
// part only. Without it, all shards are meant.
//
// of says for how many shards of the queue any call was split; 0: not known. A broker refuses with
// QueueNotOwner if the queue has another number of shards by now: what was meant for one shard could
// belong to another.
func OnShards(ctx context.Context, shards []int, of int) context.Context {
	return context.WithValue(ctx, shardsKey{}, shardScope{shards, of})
}

// ShardsOf returns what [OnShards] put into the context; nil: all shards.
func ShardsOf(ctx context.Context) (shards []int, of int) {
	scope, _ := ctx.Value(shardsKey{}).(shardScope)
	return scope.shards, scope.of
}
