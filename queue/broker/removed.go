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

// A queue that was removed and declared again is another queue, with objects of its own. A broker of the removed one must
// not acknowledge a job that was submitted after the declaration: it would be deleted. So two rules hold. No broker accepts
// a call, unless its list of queues was read within maxListAge, and has the queue that the broker serves (checkListed). And a
// name can be declared again only maxListAge after its removal: whoever declares it earlier waits. A call that was made
// after the declaration had ended is therefore accepted with a list that was read after the removal.

// maxListAge is how long a broker accepts calls for a queue without reading the list of queues again.
const maxListAge = 5 * time.Second

// listReading is what a Registry knows of the list.
type listReading struct {
	changes uint64    // how often this process has found another list
	readAt  time.Time // when the list was last known to be current; zero: never
}

// since is how long ago t was, by the clock that shows more: one of them stands still while the machine is suspended.
func since(t time.Time) time.Duration { return max(time.Since(t), time.Since(t.Round(0))) }

// listing says that a list had the queue that this node serves.
type listing struct {
	incarnation, changes uint64
}

// checkListed refuses a call if the queue that this node serves was removed. It reads the list of queues if that was not read
// within maxListAge. While there are calls, it is read in the background before that (see keepListRecent).
func (b *Broker) checkListed(ctx context.Context, q *servedQueue, set *queue.Settings) error {
	last, c := b.registry.reading.Load(), q.listed.Load()
	if last != nil && c != nil && *c == (listing{set.Incarnation, last.changes}) {
		if age := since(last.readAt); age < maxListAge {
			if age > maxListAge/2 {
				signal(b.watcher.listAges)
			}
			return nil
		}
	}
	incarnation, changes, err := b.registry.incarnation(ctx, set.Name, maxListAge)
	if err != nil {
		return err
	}
	if incarnation == 0 {
		return noQueue(set.Name)
	}
	if incarnation != set.Incarnation { // its shards move on as soon as they know
		return b.notOwner(set.Name, -1)
	}
	q.listed.Store(&listing{incarnation, changes})
	return nil
}

// keepListRecent reads the list of queues when checkListed asks for it, so that calls do not wait for that. If it fails, it
// tries again after a tenth of a second, as long as there are calls.
func (b *Broker) keepListRecent(ctx context.Context) {
	for {
		select {
		case <-b.watcher.listAges:
		case <-ctx.Done():
			return
		}
		if _, _, err := b.registry.incarnation(ctx, "", maxListAge/2); err == nil {
			continue
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
			return
		}
	}
}

var errListUnread = errors.New("the list of queues was not read for too long: the object store does not answer")

// incarnation returns the incarnation of a queue in a list that is at most age old, and the number of this list. The
// incarnation is 0 if the queue is not on it. A store that does not answer is waited for as long as maxListAge.
func (r *Registry) incarnation(ctx context.Context, name string, age time.Duration) (incarnation, changes uint64, err error) {
	called := time.Now()
	ctx, cancel := context.WithTimeoutCause(ctx, maxListAge, errListUnread)
	defer cancel()
	if err = r.lock(ctx); err == nil {
		defer r.unlock()
		err = r.refreshIfOlder(ctx, called, age)
	}
	if err != nil && errors.Is(context.Cause(ctx), errListUnread) {
		err = queue.Refuse(queue.Unavailable, "%w", errListUnread)
	}
	if err != nil {
		return 0, 0, err
	}
	if set := r.find(name); set != nil {
		incarnation = set.Incarnation
	}
	return incarnation, r.publish().changes, nil
}

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
