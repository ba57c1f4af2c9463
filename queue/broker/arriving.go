package broker

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/queue"
)

// place identifies a shard: its queue's name and its index.
type place struct {
	queue string
	index int
}

// arrivalWait is the longest time a call waits for a shard that this node is taking over.
const arrivalWait = 2 * time.Second

// arrive records that this node is taking over a shard, so that calls wait for it (see await). The
// caller calls arrived when the shard is served, or is not served after all; it may be called more
// than once.
func (b *Broker) arrive(p place) (arrived func()) {
	c := make(chan struct{})
	b.mu.Lock()
	defer b.mu.Unlock()
	b.arriving[p] = c
	return sync.OnceFunc(func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		if b.arriving[p] == c {
			delete(b.arriving, p)
		}
		close(c)
	})
}

// await waits for a shard (-1: any of the queue) that is being taken over, and reports whether it
// is worth looking it up again. Waiting is right because no other node could answer the caller
// meanwhile.
func (b *Broker) await(ctx context.Context, name string, index int) bool {
	var arriving chan struct{}
	b.mu.RLock()
	for p, c := range b.arriving {
		if p.queue == name && (index < 0 || p.index == index) {
			arriving = c
		}
	}
	b.mu.RUnlock()
	if arriving == nil {
		return false
	}
	patience := time.NewTimer(arrivalWait)
	defer patience.Stop()
	select {
	case <-arriving:
		return true
	case <-patience.C:
	case <-ctx.Done():
	}
	return false
}

// serving returns a shard that this node serves. It waits for one that is being taken over.
func (b *Broker) serving(ctx context.Context, name string, index int) (*shard, error) {
	s := b.shard(name, index)
	if s == nil && b.await(ctx, name, index) {
		s = b.shard(name, index)
	}
	if s == nil {
		return nil, b.notOwner(name, index)
	}
	return s, nil
}

// begin takes a shard over. If the queue's settings were read a moment ago, it uses these and reads
// the current ones concurrently: that saves callers the time of one request. If the queue turns out
// to have been replaced, the journal that was opened is closed and left to whoever deletes the
// removed queue.
func (b *Broker) begin(ctx context.Context, a *daemon.Assignment, name string) (*shard, error) {
	known := b.registry.recent(ctx, name)
	if known == nil {
		set, err := b.registry.get(ctx, name, 0)
		if err != nil {
			b.DeleteRemoved(ctx)
			return nil, gone(a.Unit, err)
		}
		return b.takeOver(ctx, a, set)
	}
	var set *queue.Settings
	var unread error
	var reading sync.WaitGroup
	reading.Go(func() { set, unread = b.registry.get(ctx, name, 0) })
	s, err := b.takeOver(ctx, a, known)
	reading.Wait()
	switch {
	case queue.TagOf(unread) == queue.QueueNotFound || unread == nil && set.Incarnation != known.Incarnation:
		if err == nil {
			err = s.log.Close(ctx)
		}
		b.DeleteRemoved(ctx)
		if unread != nil {
			return nil, gone(a.Unit, errors.Join(unread, err))
		}
		return b.takeOver(ctx, a, set)
	case err != nil:
		return nil, err
	case unread != nil: // follow reads the settings later
		b.cfg.Logger.WarnContext(ctx, "cannot read the list of queues; the shard is served with its former settings", "unit", a.Unit.String(), "error", unread)
	default:
		s.settings = *set
	}
	return s, nil
}

// recent returns a queue's settings if they were read within followEvery. The queue may have
// been removed since. That is safe: a removed queue stays on the list of removed ones until no object
// of it was found for buryAfter. So objects that are written meanwhile are found and deleted.
func (r *Registry) recent(ctx context.Context, name string) *queue.Settings {
	if err := r.lock(ctx); err != nil {
		return nil
	}
	defer r.unlock()
	if r.read.IsZero() || time.Since(r.read) >= followEvery {
		return nil
	}
	return r.find(name)
}
