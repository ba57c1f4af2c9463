package broker

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"time"

	"github.com/emitd/emitd/queue"
	"github.com/emitd/emitd/storage/blob"
)

// Without the list of queues, no queue would be served. So it is stored twice. A change is written
// to the list, then to the copy, and only then acknowledged. The serial number of the list is
// therefore never lower than the copy's, unless somebody restored an older list. A list that is
// damaged, missing, or older than its copy is reported. The queues of the newest list that is known
// are served as before, and no queue can be declared or removed until the list is repaired
// ([Registry.Repair]).
//
// If both are missing, either the bucket is new, or the list is lost. If it is lost, there are
// still journals in the bucket, and then no queue is declared in their place.

// refresh reads the list if it has changed since it was last read. The caller holds the lock.
func (r *Registry) refresh(ctx context.Context) error {
	begun := time.Now()
	var o *blob.Object
	var err error
	if r.version == "" || r.damage != nil {
		o, err = r.bucket.Read(ctx, r.key)
	} else {
		o, err = r.bucket.ReadNewer(ctx, r.key, r.version)
	}
	switch {
	case errors.Is(err, blob.ErrNotModified):
		r.readAt = begun
		return nil
	case err != nil && !errors.Is(err, blob.ErrNotFound) && !errors.Is(err, blob.ErrCorrupt):
		return queue.Refuse(queue.Unavailable, "read the list of queues: %w", err)
	}
	if err := r.accept(ctx, o, err); err != nil {
		return err
	}
	r.readAt = begun
	return nil
}

// accept adopts what was read: the list, or, if the list is damaged, missing or too old, the newest
// one that is known. o is the object; without one, cause is the error of the read.
func (r *Registry) accept(ctx context.Context, o *blob.Object, cause error) error {
	var main *registryFile
	if cause == nil {
		main, cause = parseRegistry(o.Data)
	}
	if errors.Is(cause, errNewerList) {
		return cause
	}
	second, err := r.readCopy(ctx)
	if err != nil {
		return err
	}
	if second != nil && (main == nil || main.Serial < second.Serial) {
		// The list is never older than its copy, but others may have written both after the list was
		// read here. So it is read again, after the copy.
		if o, cause = r.bucket.Read(ctx, r.key); cause != nil && !errors.Is(cause, blob.ErrNotFound) && !errors.Is(cause, blob.ErrCorrupt) {
			return queue.Refuse(queue.Unavailable, "read the list of queues: %w", cause)
		}
		if main = nil; cause == nil {
			main, cause = parseRegistry(o.Data)
		}
		if errors.Is(cause, errNewerList) {
			return cause
		}
	}
	best, known := second, r.version != "" || r.damage != nil
	if known && (best == nil || best.Serial < r.list.Serial) {
		best = &r.list // this process has read a newer one
	}
	switch {
	case main != nil && (best == nil || main.Serial >= best.Serial):
		r.version, r.list, r.damage = o.Version, *main, nil
		if r.onRead != nil {
			r.onRead()
		}
	case main != nil:
		r.list, r.damage = *best, damagedList("it is an older one: it has the serial number %d, %d was written", main.Serial, best.Serial)
	case best != nil:
		r.list, r.damage = *best, damagedList("%w", cause)
	case !errors.Is(cause, blob.ErrNotFound):
		return damagedList("%w; there is no copy of it", cause)
	default:
		return r.acceptNone(ctx)
	}
	return nil
}

// acceptNone accepts that there is no list, if the bucket has no journals either.
func (r *Registry) acceptNone(ctx context.Context) error {
	page, err := r.bucket.List(ctx, joinKey(r.root, "v1/"), "", 100)
	if err != nil {
		return queue.Refuse(queue.Unavailable, "look for queues: %w", err)
	}
	for _, e := range page.Entries {
		if isJournal(strings.TrimPrefix(e.Key, joinKey(r.root, "v1/"))) {
			return damagedList("it is missing, and its copy too, but there are queues: %s", e.Key)
		}
	}
	r.version, r.list, r.damage = "", registryFile{}, nil
	return nil
}

// isJournal reports whether a key below v1/ belongs to a queue's journal: <hash>/<queue>/….
func isJournal(key string) bool {
	hash, rest, ok := strings.Cut(key, "/")
	return ok && len(hash) == 2 && strings.Contains(rest, "/")
}

func damagedList(format string, args ...any) *queue.Error {
	return queue.Refuse(queue.Damaged, "the list of queues is damaged: "+format, args...).
		WithHint("the queues that are known are served; see emitd queue verify, and rewrite the list from its copy with emitd queue repair --list")
}

// readCopy returns the copy; nil if it is missing or damaged.
func (r *Registry) readCopy(ctx context.Context) (*registryFile, error) {
	o, err := r.bucket.Read(ctx, r.copyKey)
	switch {
	case errors.Is(err, blob.ErrNotFound), errors.Is(err, blob.ErrCorrupt):
		return nil, nil
	case err != nil:
		return nil, queue.Refuse(queue.Unavailable, "read the copy of the list of queues: %w", err)
	}
	f, err := parseRegistry(o.Data)
	if errors.Is(err, errNewerList) {
		return nil, err
	}
	return f, nil //nolint:nilerr // a copy that says nothing is none
}

// writeCopy writes the list to the copy, unless the copy is the same or newer because another
// process was faster. The caller holds the lock.
func (r *Registry) writeCopy(ctx context.Context) error {
	data, err := json.MarshalIndent(&r.list, "", "  ")
	if err != nil {
		return queue.Refuse(queue.Unavailable, "encode the list of queues: %w", err)
	}
	for range registryTries {
		o, err := r.bucket.Read(ctx, r.copyKey)
		switch {
		case err == nil:
			if f, bad := parseRegistry(o.Data); bad == nil && f.Serial >= r.list.Serial {
				return nil
			}
			_, err = r.bucket.Replace(ctx, r.copyKey, data, o.Version)
		case errors.Is(err, blob.ErrNotFound):
			_, err = r.bucket.Create(ctx, r.copyKey, data)
		case errors.Is(err, blob.ErrCorrupt):
			if err = r.bucket.Delete(ctx, r.copyKey); err == nil {
				_, err = r.bucket.Create(ctx, r.copyKey, data)
			}
		}
		switch {
		case err == nil:
			return nil
		case errors.Is(err, blob.ErrChanged), errors.Is(err, blob.ErrExists):
		default:
			return queue.Refuse(queue.UnknownOutcome, "write the copy of the list of queues: %w", err).WithHint("repeat the call")
		}
	}
	return queue.Refuse(queue.UnknownOutcome, "the copy of the list of queues was changed by others %d times in a row", registryTries).WithHint("repeat the call")
}

// EnsureCopy writes the copy of the list if it is older than the list or missing. Lists from before
// there were copies have none, and a process may have died between the two writes. It returns what
// is wrong with the list, if anything.
func (r *Registry) EnsureCopy(ctx context.Context) error {
	if err := r.lock(ctx); err != nil {
		return err
	}
	defer r.unlock()
	switch err := r.refresh(ctx); {
	case err != nil:
		return err
	case r.damage != nil:
		return r.damage
	case r.version == "":
		return nil
	}
	return r.writeCopy(ctx)
}

// Damage returns what was wrong with the list when it was last read; nil if nothing was.
func (r *Registry) Damage(ctx context.Context) *queue.Error {
	if err := r.lock(ctx); err != nil {
		return nil
	}
	defer r.unlock()
	return r.damage
}

// Repair replaces a damaged list of queues with the newest list that is known. The damaged object
// is preserved under another key, which is returned as kept. kept is empty if the list was not
// damaged, and then nothing is written; it is also empty if there was no readable object to
// preserve. With dry, Repair writes nothing and only returns what it would do.
func (r *Registry) Repair(ctx context.Context, dry bool) (queues []queue.Settings, kept string, err error) {
	if err := r.lock(ctx); err != nil {
		return nil, "", err
	}
	defer r.unlock()
	if err := r.refresh(ctx); err != nil {
		return nil, "", err
	}
	for _, q := range r.list.Queues {
		queues = append(queues, q.settings())
	}
	if r.damage == nil {
		return queues, "", nil
	}
	next := r.list
	next.Format, next.Nonce, next.Serial = next.format(), nonceText(), next.Serial+1
	kept = joinKey(r.root, "v1/damaged/queues-"+next.Nonce)
	if dry {
		return queues, kept, nil
	}
	o, err := r.bucket.Read(ctx, r.key)
	switch {
	case err == nil:
		if _, err := r.bucket.Create(ctx, kept, o.Data); err != nil {
			return nil, "", queue.Refuse(queue.Unavailable, "keep the damaged list of queues: %w", err)
		}
		r.version = o.Version
	case errors.Is(err, blob.ErrNotFound):
		r.version, kept = "", ""
	case errors.Is(err, blob.ErrCorrupt): // the object cannot be read, so it cannot be preserved
		if err := r.bucket.Delete(ctx, r.key); err != nil {
			return nil, "", queue.Refuse(queue.Unavailable, "take the damaged list of queues away: %w", err)
		}
		r.version, kept = "", ""
	default:
		return nil, "", queue.Refuse(queue.Unavailable, "read the list of queues: %w", err)
	}
	done, err := r.write(ctx, &next)
	switch {
	case err != nil:
		return nil, "", err
	case !done:
		return nil, "", queue.Refuse(queue.Unavailable, "the list of queues was changed meanwhile").WithHint("run emitd queue verify again")
	}
	r.damage = nil
	return queues, kept, r.writeCopy(ctx)
}
