package queue

import "context"

type shardsKey struct{}

// OnShards restricts a call on a whole queue (Get, List, Stats, Do) to these shards. A node that
// combines the answers of several brokers tells each of them which shards it asks for. A broker
// that does not serve all of them refuses with QueueNotOwner, so that no answer silently covers a
// part only. Without it, all shards are meant.
func OnShards(ctx context.Context, shards []int) context.Context {
	return context.WithValue(ctx, shardsKey{}, shards)
}

// ShardsOf returns the shards that [OnShards] put into the context; nil: all.
func ShardsOf(ctx context.Context) []int {
	shards, _ := ctx.Value(shardsKey{}).([]int)
	return shards
}
