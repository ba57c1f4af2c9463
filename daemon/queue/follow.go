package queue

import (
	"context"
	"sync"
	"time"
)

// followEvery is how often a broker that serves shards looks whether the settings of their queues have
// changed.
const followEvery = 30 * time.Second

// watching is the one goroutine that looks at the list of queues for all shards of a broker. It runs
// while there is a shard: an idle shard has no goroutine of its own for that.
type watching struct {
	mu     sync.Mutex
	shards int
	stop   func() // ends the goroutine and waits for it
}

// watch has the list of queues looked at until the function that it returns is called.
func (b *Broker) watch() (leave func()) {
	w := &b.watching
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.shards++; w.shards == 1 {
		ctx, cancel := context.WithCancel(context.Background()) // not of a run: it serves the others as well
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

// follow looks at the list of queues every half minute.
func (b *Broker) follow(ctx context.Context) {
	ticker := time.NewTicker(followEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ticker.C:
			b.look(ctx)
		case <-ctx.Done():
			return
		}
	}
}

// look tells all shards the settings of their queues, and deletes what removed queues have left.
func (b *Broker) look(ctx context.Context) {
	sets, err := b.registry.all(ctx, followEvery/2)
	first := false
	for _, s := range b.all() {
		first = first || s.index == 0
		if err != nil {
			continue
		}
		if set, ok := sets[s.name]; ok {
			s.tell(set)
		} else {
			s.tell(&Settings{Name: s.name})
		}
	}
	if first { // one of a queue's brokers is enough
		b.DeleteRemoved(ctx)
	}
}

// all returns the shards that this node serves.
func (b *Broker) all() (out []*shard) {
	b.mu.RLock()
	defer b.mu.RUnlock()
	for _, q := range b.queues {
		out = append(out, q.shards...)
	}
	return out
}

// changed passes new settings of a queue on to its shards.
func (b *Broker) changed(set Settings) {
	set = set.withDefaults()
	for _, s := range b.local(set.Name) {
		s.tell(&set)
	}
}

// tell replaces what the shard has not yet heard.
func (s *shard) tell(set *Settings) {
	for {
		select {
		case s.changes <- set:
			return
		default:
		}
		select {
		case <-s.changes:
		default:
		}
	}
}

// DeleteRemoved deletes what removed queues have left. It does nothing if it was called within the last
// quarter of a minute. A broker that serves a shard 0 calls it by itself every half minute; while no
// queue is declared nobody does, and whoever has the broker calls it now and then.
func (b *Broker) DeleteRemoved(ctx context.Context) {
	now, last := time.Now(), b.buried.Load()
	if last != nil && now.Sub(*last) < followEvery/2 || !b.buried.CompareAndSwap(last, &now) {
		return
	}
	if err := b.registry.bury(ctx); err != nil && ctx.Err() == nil {
		b.cfg.Logger.WarnContext(ctx, "the objects of removed queues were not all deleted", "error", err)
	}
}
