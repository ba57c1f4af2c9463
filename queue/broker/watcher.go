package broker

import (
	"context"
	"sync"
	"time"

	"github.com/emitd/emitd/queue"
)

// followEvery is how often a broker that serves shards reads the list of queues for changed
// settings.
const followEvery = 30 * time.Second

// registryWatcher is the state of the one goroutine that reads the list of queues for all shards of a
// broker. It runs while the broker serves a shard. Idle shards need no goroutine of their own for
// this.
type registryWatcher struct {
	mu     sync.Mutex
	shards int
	stop   func() // stops the goroutine and waits for its end
}

// watch keeps that goroutine running until the function that it returns is called.
func (b *Broker) watch() (leave func()) {
	w := &b.watcher
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.shards++; w.shards == 1 {
		ctx, cancel := context.WithCancel(context.Background()) // no run's context: it serves all shards
		var ended sync.WaitGroup
		ended.Go(func() { b.follow(ctx) })
		w.stop = func() { cancel(); ended.Wait() }
	}
	return func() {
		w.mu.Lock()
		w.shards--
		stop := w.stop
		last := w.shards == 0
		w.mu.Unlock()
		if last {
			stop()
		}
	}
}

// follow reads the list of queues every half minute.
func (b *Broker) follow(ctx context.Context) {
	ticker := time.NewTicker(followEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			b.updateShards(ctx)
		case <-ctx.Done():
			return
		}
	}
}

// updateShards gives all shards the current settings of their queues, and deletes the objects of removed
// queues.
func (b *Broker) updateShards(ctx context.Context) {
	sets, err := b.registry.all(ctx, followEvery/2)
	first := false
	for _, s := range b.allShards() {
		first = first || s.index == 0
		if err != nil {
			continue
		}
		if set, ok := sets[s.name]; ok {
			s.settings.replace(set)
		} else {
			s.settings.replace(&queue.Settings{Name: s.name})
		}
	}
	if first { // one of a queue's brokers is enough: that of shard 0
		b.DeleteRemoved(ctx)
	}
}

// allShards returns the shards that this node serves.
func (b *Broker) allShards() (out []*shard) {
	b.mu.RLock()
	defer b.mu.RUnlock()
	for _, q := range b.queues {
		out = append(out, q.shards...)
	}
	return out
}

// settingsChanged passes new settings of a queue on to its shards on this node.
func (b *Broker) settingsChanged(set queue.Settings) {
	set = withDefaults(set)
	for _, s := range b.localShards(set.Name) {
		s.settings.replace(&set)
	}
}

// DeleteRemoved deletes the objects of removed queues. It does nothing if it was called within the
// last 15 s. A broker that serves a shard 0 calls it every half minute. While no queue is declared,
// no broker does; the owner of the broker must then call it now and then.
func (b *Broker) DeleteRemoved(ctx context.Context) {
	now, last := time.Now(), b.lastDeletion.Load()
	if last != nil && now.Sub(*last) < followEvery/2 || !b.lastDeletion.CompareAndSwap(last, &now) {
		return
	}
	if err := b.registry.deleteRemoved(ctx); err != nil && ctx.Err() == nil {
		b.cfg.Logger.WarnContext(ctx, "some objects of removed queues were not deleted", "error", err)
	}
}
