package broker

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/emitd/emitd/queue"
)

// followEvery is how often a broker that serves shards reads the list of queues for changed
// settings.
const followEvery = 30 * time.Second

// registryWatcher is the state of the two goroutines (follow and keepListRecent) that read the list of queues for all shards
// of a broker. They run while the broker serves a shard. Idle shards need no goroutine of their own for this.
type registryWatcher struct {
	mu     sync.Mutex
	shards int
	stop   func() // stops the goroutines and waits for their end
	wake   chan struct{}
	// listAges has a token when calls need a newer list soon.
	listAges chan struct{}
}

// signal makes follow look at the list of queues now.
func (w *registryWatcher) signal() {
	select {
	case w.wake <- struct{}{}:
	default:
	}
}

// watch keeps the goroutines running until the function that it returns is called.
func (b *Broker) watch() (leave func()) {
	w := &b.watcher
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.shards++; w.shards == 1 {
		ctx, cancel := context.WithCancel(context.Background()) // no run's context: it serves all shards
		var ended sync.WaitGroup
		ended.Go(func() { b.follow(ctx) })
		ended.Go(func() { b.keepListRecent(ctx) })
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

// follow reads the list of queues every half minute. While the number of a queue's shards changes, it does so
// every reshardPoll, and does this node's part.
func (b *Broker) follow(ctx context.Context) {
	timer := time.NewTimer(followEvery)
	defer timer.Stop()
	age := followEvery / 2
	for {
		select {
		case <-timer.C:
		case <-b.watcher.wake:
		case <-ctx.Done():
			return
		}
		changing := b.updateShards(ctx, age)
		for _, set := range changing {
			b.reshardStep(ctx, set)
		}
		if len(changing) > 0 {
			timer.Reset(reshardPoll)
			age = reshardPoll / 2
		} else {
			timer.Reset(followEvery)
			age = followEvery / 2
		}
	}
}

// updateShards gives all shards the current settings of their queues, from a list that is at most age old. It
// returns the queues of this node whose number of shards changes. If there are none, it deletes the objects of
// removed queues.
func (b *Broker) updateShards(ctx context.Context, age time.Duration) (changing []*queue.Settings) {
	sets, err := b.registry.all(ctx, age)
	first := false
	for _, s := range b.allShards() {
		first = first || s.index == 0
		if err != nil {
			continue
		}
		set, ok := sets[s.name]
		if !ok {
			set = &queue.Settings{Name: s.name}
		}
		s.replaceSettings(set)
		if set.Resharding.Stage != "" && !slices.Contains(changing, set) {
			changing = append(changing, set)
		}
	}
	if first && len(changing) == 0 { // one of a queue's brokers is enough: that of shard 0
		b.DeleteRemoved(ctx)
	}
	return changing
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
		s.replaceSettings(&set)
	}
	if set.Resharding.Stage != "" {
		b.watcher.signal()
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
