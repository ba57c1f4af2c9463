package queue

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/emitd/emitd/daemon"
)

// place is a shard's name.
type place struct {
	queue string
	index int
}

// arrivalWait bounds how long a call waits for a shard that this node is taking over.
const arrivalWait = 2 * time.Second

// arrive says that this node is taking a shard over; arrived, which may be called again, that it
// serves it or does not after all.
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
// makes sense to look for it again. Nobody else could answer the caller meanwhile.
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

// serving returns a shard that this node serves, or is about to.
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

// begin takes a shard over. It goes by the settings as they were read last, and reads them again
// meanwhile: its callers wait for one request less. What was opened of a queue that is another one
// by now is left to whoever deletes it.
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
	var set *Settings
	var unread error
	var reading sync.WaitGroup
	reading.Go(func() { set, unread = b.registry.get(ctx, name, 0) })
	s, err := b.takeOver(ctx, a, known)
	reading.Wait()
	switch {
	case TagOf(unread) == QueueNotFound || unread == nil && set.Incarnation != known.Incarnation:
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
	case unread != nil: // follow will read it
		b.cfg.Logger.WarnContext(ctx, "the list of queues cannot be read; the shard is served as it was", "unit", a.Unit.String(), "error", unread)
	default:
		s.settings = *set
	}
	return s, nil
}

// recent returns a queue's settings if they were read a moment ago. A queue that was removed since is
// not struck off yet: what is written for it meanwhile is found and deleted.
func (r *Registry) recent(ctx context.Context, name string) *Settings {
	if err := r.lock(ctx); err != nil {
		return nil
	}
	defer r.unlock()
	if r.read.IsZero() || time.Since(r.read) >= followEvery {
		return nil
	}
	return r.find(name)
}
