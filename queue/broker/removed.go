package broker

import (
	"context"
	"errors"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/emitd/emitd/queue"
)

// deletesAtOnce is how many deletions run concurrently.
const deletesAtOnce = 16

// strikeOffAfter is how long no object of a removed queue must be found before the queue is struck off
// the list. By then all brokers know of its removal.
const strikeOffAfter = 2 * followEvery

// noteRemoved notes when this process has learned of removed queues. The caller holds the lock.
func (r *Registry) noteRemoved() {
	known := r.removedAt
	r.removedAt = make(map[removedQueue]time.Time, len(r.list.Removed))
	for _, g := range r.list.Removed {
		at, ok := known[g]
		if !ok {
			at = time.Now()
		}
		r.removedAt[g] = at
	}
}

// untilForgotten returns how long it takes until no broker accepts calls for a removed queue of this name. The caller holds
// the lock.
func (r *Registry) untilForgotten(f *registryFile, name string) (wait time.Duration) {
	for _, g := range f.Removed {
		if g.Name != name {
			continue
		}
		left := maxListAge
		if at, ok := r.removedAt[g]; ok {
			left -= time.Since(at)
		}
		wait = max(wait, left)
	}
	return wait
}

// awaitForgotten waits until no broker accepts calls for the removed queue of a name.
func awaitForgotten(ctx context.Context, name string, wait time.Duration) error {
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
	}
	e := queue.Refuse(queue.Unavailable, "a queue %q was removed a moment ago, and brokers may not know yet: %w", name, context.Cause(ctx)).
		WithHint("declare the queue again in %s", wait.Round(time.Second))
	e.RetryAfter = wait
	return e
}

// deleteRemoved deletes the objects of the removed queues that the list, as it was last read, names. A
// broker that does not know of the removal yet may still write. So a queue is struck off only after
// nothing was found of it for strikeOffAfter. It costs no request if no queue was removed.
func (r *Registry) deleteRemoved(ctx context.Context) error {
	if err := r.lock(ctx); err != nil {
		return err
	}
	removed := slices.Clone(r.list.Removed)
	r.unlock()
	var failed error
	for _, g := range removed {
		found, err := r.deleteObjects(ctx, g)
		if err == nil && r.emptyLongEnough(g, found == 0) {
			err = r.change(ctx, func(f *registryFile) (bool, error) {
				at := slices.Index(f.Removed, g)
				if at >= 0 {
					f.Removed = slices.Delete(slices.Clone(f.Removed), at, at+1)
				}
				return at >= 0, nil
			})
		}
		failed = errors.Join(failed, err)
	}
	return failed
}

// emptyLongEnough reports whether no object of a removed queue was found for strikeOffAfter.
func (r *Registry) emptyLongEnough(g removedQueue, nothing bool) bool {
	since, seen := r.emptySince.LoadOrStore(g, time.Now())
	if !nothing {
		r.emptySince.Delete(g)
		return false
	}
	over := seen && time.Since(since.(time.Time)) >= strikeOffAfter
	if over {
		r.emptySince.Delete(g)
	}
	return over
}

// deleteObjects deletes all objects of a removed queue and returns how many it found.
func (r *Registry) deleteObjects(ctx context.Context, g removedQueue) (found int, err error) {
	set := queue.Settings{Name: g.Name, Incarnation: g.Incarnation}
	for index := range g.Shards {
		n, err := r.deletePrefix(ctx, shardPrefix(r.root, &set, index)+"/")
		found += n
		if err != nil {
			return found, err
		}
	}
	return found, nil
}

// deletePrefix deletes all objects below a prefix and returns how many it found.
func (r *Registry) deletePrefix(ctx context.Context, prefix string) (found int, err error) {
	for after := ""; ; {
		page, err := r.bucket.List(ctx, prefix, after, 0)
		if err != nil {
			return found, err
		}
		var all errgroup.Group
		all.SetLimit(deletesAtOnce)
		for _, e := range page.Entries {
			all.Go(func() error { return r.bucket.Delete(ctx, e.Key) })
			after = e.Key
		}
		found += len(page.Entries)
		if err := all.Wait(); err != nil || !page.More {
			return found, err
		}
	}
}
