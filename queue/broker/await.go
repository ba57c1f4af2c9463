package broker

import (
	"context"
	"sync"
	"time"

	"github.com/emitd/emitd/queue"
)

// takeoverWait is the longest time a call waits for a shard that this node is taking over.
const takeoverWait = 2 * time.Second

// beginTakeover records that this node is taking over a shard, so that calls wait for it (see awaitTakeover). The
// caller calls done when the shard is served, or is not served after all; it may be called more
// than once.
func (b *Broker) beginTakeover(p shardID) (done func()) {
	c := make(chan struct{})
	b.mu.Lock()
	defer b.mu.Unlock()
	b.takingOver[p] = c
	return sync.OnceFunc(func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		if b.takingOver[p] == c {
			delete(b.takingOver, p)
		}
		close(c)
	})
}

// awaitTakeover waits for a shard (-1: any of the queue) that is being taken over, and reports whether it
// is worth looking it up again. Waiting is right because no other node could answer the caller
// meanwhile.
func (b *Broker) awaitTakeover(ctx context.Context, name string, index int) bool {
	var taken chan struct{}
	b.mu.RLock()
	for p, c := range b.takingOver {
		if p.queue == name && (index < 0 || p.index == index) {
			taken = c
		}
	}
	b.mu.RUnlock()
	if taken == nil {
		return false
	}
	timer := time.NewTimer(takeoverWait)
	defer timer.Stop()
	select {
	case <-taken:
		return true
	case <-timer.C:
	case <-ctx.Done():
	}
	return false
}

// serving returns a shard that this node serves. It waits for one that is being taken over. It refuses a shard of
// another incarnation than that of the caller's settings.
//
// Example: a call finds two shards and picks shard 1. The queue gets eight shards while the call waits here. The
// shard 1 that is served then is one of eight, and another shard has the group's jobs.
func (b *Broker) serving(ctx context.Context, set *queue.Settings, index int) (*shard, error) {
	s := b.shard(set.Name, index)
	if s == nil && b.awaitTakeover(ctx, set.Name, index) {
		s = b.shard(set.Name, index)
	}
	if s == nil || s.incarnation != set.Incarnation {
		return nil, b.notOwner(set.Name, index)
	}
	return s, nil
}
