package broker

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"time"

	"github.com/emitd/emitd/queue"
	"github.com/emitd/emitd/storage/blob"
)

// A queue that was removed and declared again is another queue, with objects of its own. A broker of the removed one must
// not acknowledge a job that was submitted after the declaration: it would be deleted. So two rules hold. No broker accepts
// jobs or gives them out, unless its list of queues was read within maxListAge, and has the queue that the broker serves
// (checkListed). And a name can be declared again only maxListAge after its removal: whoever declares it earlier waits
// (untilForgotten). A call that was made after the declaration had ended is therefore accepted with a list that was read
// after the removal.
//
// The registry's lock is held during requests, which may take long. As long as the list is unchanged, calls do not wait for
// it, but only for the request that tells that the list is unchanged.

const (
	// maxListAge is how long a broker accepts calls for a queue without reading the list of queues again.
	maxListAge = 5 * time.Second
	// listReadTimeout bounds one attempt to read it for calls, so that the next attempt has time.
	listReadTimeout = 2 * time.Second
	listRetryPause  = 100 * time.Millisecond
	// knownWait is how long callers wait that can go on with an older list.
	knownWait = 500 * time.Millisecond
)

// listReading is what a Registry knows of the list, for those who do not hold its lock.
type listReading struct {
	changes uint64          // how often this process has found another list
	queues  []registryQueue // sorted by name; never changed
	version blob.Version    // "" if there is no list, or it is damaged
	readAt  time.Time       // when the list was last known to be current; zero: never
}

// since is how long ago t was, by the clock that shows more: one of them stands still while the machine is suspended.
func since(t time.Time) time.Duration { return max(time.Since(t), time.Since(t.Round(0))) }

// findQueue returns the queue with a name; nil if there is none.
func findQueue(queues []registryQueue, name string) *registryQueue {
	at, ok := slices.BinarySearchFunc(queues, name, func(q registryQueue, name string) int { return cmp.Compare(q.Name, name) })
	if !ok {
		return nil
	}
	return &queues[at]
}

// listing says that a list had the queue that this node serves.
type listing struct {
	incarnation, changes uint64
}

// checkListed refuses a call if the queue that this node serves was removed. It reads the list of queues if that was not read
// within maxListAge. While there are calls, it is read in the background before that (see keepListRecent).
func (b *Broker) checkListed(ctx context.Context, set *queue.Settings) error {
	q, _ := b.served(set.Name)
	if q == nil {
		return b.notOwner(set.Name, -1)
	}
	last, c := b.registry.reading.Load(), q.listed.Load()
	if last == nil || c == nil || *c != (listing{set.Incarnation, last.changes}) || since(last.readAt) >= maxListAge {
		var err error
		if last, err = b.registry.recent(ctx, maxListAge); err != nil {
			return err
		}
		now := findQueue(last.queues, set.Name)
		if now == nil {
			return noQueue(set.Name)
		}
		if now.Incarnation != set.Incarnation { // its shards move on as soon as they know
			return b.notOwner(set.Name, -1)
		}
		q.listed.Store(&listing{set.Incarnation, last.changes})
	}
	if since(last.readAt) > maxListAge/2 {
		signal(b.watcher.listAges)
	}
	return nil
}

// keepListRecent reads the list of queues when checkListed asks for it, so that calls do not wait for that.
func (b *Broker) keepListRecent(ctx context.Context) {
	for {
		select {
		case <-b.watcher.listAges:
			_, _ = b.registry.recent(ctx, maxListAge/2) // if it fails, calls ask again
		case <-ctx.Done():
			return
		}
	}
}

var errListUnread = errors.New("the list of queues was not read for too long: the object store does not answer")

// recent returns what is known of a list that is at most age old, or was read since the call. It tries to read it for
// maxListAge.
func (r *Registry) recent(ctx context.Context, age time.Duration) (*listReading, error) {
	called := time.Now()
	ctx, cancel := context.WithTimeoutCause(ctx, maxListAge, errListUnread)
	defer cancel()
	for {
		if last := r.reading.Load(); last != nil && !last.readAt.IsZero() && (since(last.readAt) < age || !last.readAt.Before(called)) {
			return last, nil
		}
		var failed error
		select {
		case read := <-r.readers.DoChan("", r.reread):
			failed = read.Err
		case <-ctx.Done():
		}
		if failed != nil {
			select {
			case <-time.After(listRetryPause):
			case <-ctx.Done():
			}
		}
		if ctx.Err() == nil {
			continue
		}
		if err := context.Cause(ctx); !errors.Is(err, errListUnread) {
			return nil, canceled(ctx, queue.Unavailable)
		}
		return nil, queue.Refuse(queue.Unavailable, "%w", errors.Join(errListUnread, failed))
	}
}

// reread reads the list for all who wait for it. It takes the lock only if the list has changed.
func (r *Registry) reread() (any, error) {
	ctx, cancel := context.WithTimeoutCause(context.Background(), listReadTimeout, errListUnread)
	defer cancel()
	begun := time.Now()
	if last := r.reading.Load(); last != nil && last.version != "" {
		switch _, err := r.bucket.ReadNewer(ctx, r.key, last.version); {
		case errors.Is(err, blob.ErrNotModified):
			r.noteUnchanged(last.version, begun)
			return nil, nil
		case err != nil && !errors.Is(err, blob.ErrNotFound) && !errors.Is(err, blob.ErrCorrupt):
			return nil, err
		}
	}
	if err := r.lock(ctx); err != nil {
		return nil, err
	}
	defer r.unlock()
	return nil, r.refreshIfOlder(ctx, begun, 0)
}

// noteUnchanged notes that the list had this version at some moment after begun.
func (r *Registry) noteUnchanged(version blob.Version, begun time.Time) {
	for {
		last := r.reading.Load()
		if last.version != version || !begun.After(last.readAt) {
			return
		}
		next := *last
		next.readAt = begun
		if r.reading.CompareAndSwap(last, &next) {
			return
		}
	}
}

// publish makes what the caller, who holds the lock, has learned of the list known to those who do not take the lock.
func (r *Registry) publish() {
	var last listReading
	if p := r.reading.Load(); p != nil {
		last = *p
	}
	next := listReading{last.changes, r.list.Queues, r.version, r.readAt}
	if r.damage != nil {
		next.version = ""
	}
	if next.version != "" && next.version == last.version && last.readAt.After(next.readAt) {
		next.readAt = last.readAt
	}
	if r.nonce != r.list.Nonce {
		r.nonce = r.list.Nonce
		r.noteRemoved()
		next.changes++
	}
	if next.changes != last.changes || next.version != last.version || !next.readAt.Equal(last.readAt) {
		r.reading.Store(&next)
	}
}

// known returns what is known of the list, and reads it first if it is older than age. If it cannot be read within
// knownWait, what is known is returned, however old it is; nil: nothing. It is for callers that notice a wrong answer.
func (r *Registry) known(ctx context.Context, age time.Duration) (*listReading, error) {
	if last := r.reading.Load(); last != nil && !last.readAt.IsZero() && since(last.readAt) < age {
		return last, nil
	}
	brief, cancel := context.WithTimeoutCause(ctx, knownWait, errListUnread)
	defer cancel()
	read, err := r.recent(brief, age)
	if err == nil {
		return read, nil
	}
	if last := r.reading.Load(); ctx.Err() == nil && last != nil && len(last.queues) > 0 {
		return last, nil
	}
	return nil, err
}
