package queue

import (
	"context"
	"errors"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"
)

// deletesAtOnce is how many deletions are under way.
const deletesAtOnce = 16

// buryAfter is for how long nothing is found of a removed queue until it is struck off: all brokers
// have heard of its removal by then.
const buryAfter = 2 * followEvery

// bury deletes the objects of the removed queues that the list, as it was read last, names. Brokers
// that have not heard of the removal may write on; so a queue is struck off only when nothing was
// found of it for a while. It costs no request if no queue was removed.
func (r *Registry) bury(ctx context.Context) error {
	if err := r.lock(ctx); err != nil {
		return err
	}
	graves := slices.Clone(r.list.Removed)
	r.unlock()
	var failed error
	for _, g := range graves {
		found, err := r.raze(ctx, g)
		if err == nil && r.still(g, found == 0) {
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

// still reports whether nothing was found of a removed queue for long enough.
func (r *Registry) still(g registryGrave, nothing bool) bool {
	since, seen := r.quiet.LoadOrStore(g, time.Now())
	if !nothing {
		r.quiet.Delete(g)
		return false
	}
	over := seen && time.Since(since.(time.Time)) >= buryAfter
	if over {
		r.quiet.Delete(g)
	}
	return over
}

// raze deletes all objects of a removed queue, and returns how many it found.
func (r *Registry) raze(ctx context.Context, g registryGrave) (found int, err error) {
	set := Settings{Name: g.Name, Incarnation: g.Incarnation}
	for index := range g.Shards {
		n, err := r.empty(ctx, prefix(r.root, &set, index)+"/")
		found += n
		if err != nil {
			return found, err
		}
	}
	return found, nil
}

// empty deletes what begins with a prefix.
func (r *Registry) empty(ctx context.Context, prefix string) (found int, err error) {
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
