package queue

import (
	"context"
	"encoding/json"
	"errors"
	"strings"
	"time"

	"github.com/emitd/emitd/storage/blob"
)

// The list of queues is one object; without it, no queue would be served. So there is a copy. A change
// is written to the list, then to the copy, and only then acknowledged: the serial number of the list is
// never lower than the copy's, unless somebody has put an older list back. A list that is damaged, gone,
// or older than its copy is named; the queues of the newest list that is known are served as before, and
// nothing can be declared or removed until the list is repaired ([Registry.Repair]).
//
// Without both, the bucket is new, or everything that says which queues there are is lost: then their
// journals are there, and nothing is declared in their place.

// refresh reads the list if it is another one than is known. The caller has the lock.
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
	case errors.Is(err, blob.ErrUnchanged):
		r.read = begun
		return nil
	case err != nil && !errors.Is(err, blob.ErrNotFound) && !errors.Is(err, blob.ErrCorrupt):
		return Refuse(Unavailable, "read the list of queues: %w", err)
	}
	if err := r.take(ctx, o, err); err != nil {
		return err
	}
	r.read = begun
	return nil
}

// take takes over what the list says, or, if it does not say it as it should, what its copy says. o is
// the object, or cause says why there is none.
func (r *Registry) take(ctx context.Context, o *blob.Object, cause error) error {
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
	best, known := second, r.version != "" || r.damage != nil
	if known && (best == nil || best.Serial < r.list.Serial) {
		best = &r.list // a process that runs knows it, too
	}
	switch {
	case main != nil && (best == nil || main.Serial >= best.Serial):
		r.version, r.list, r.damage = o.Version, *main, nil
	case main != nil:
		r.list, r.damage = *best, damagedList("it is an older one: it has the serial number %d, %d was written", main.Serial, best.Serial)
	case best != nil:
		r.list, r.damage = *best, damagedList("%w", cause)
	case !errors.Is(cause, blob.ErrNotFound):
		return damagedList("%w; there is no copy of it", cause)
	default:
		return r.takeNone(ctx)
	}
	return nil
}

// takeNone takes it that there is no list, if there is no queue either.
func (r *Registry) takeNone(ctx context.Context) error {
	page, err := r.bucket.List(ctx, join(r.root, "v1/"), "", 100)
	if err != nil {
		return Refuse(Unavailable, "look for queues: %w", err)
	}
	for _, e := range page.Entries {
		if isJournal(strings.TrimPrefix(e.Key, join(r.root, "v1/"))) {
			return damagedList("it is gone, and so is its copy, but there are queues: %s", e.Key)
		}
	}
	r.version, r.list, r.damage = "", registryFile{}, nil
	return nil
}

// isJournal reports whether a key below v1/ is of a queue's journal: <hash>/<queue>/….
func isJournal(key string) bool {
	hash, rest, ok := strings.Cut(key, "/")
	return ok && len(hash) == 2 && strings.Contains(rest, "/")
}

func damagedList(format string, args ...any) *Error {
	return Refuse(Damaged, "the list of queues is damaged: "+format, args...).
		WithHint("the queues that are known are served; see emitd queue verify, and write the list anew from its copy with emitd queue repair --list")
}

// readCopy returns what the copy says; nil if there is none, or it says nothing.
func (r *Registry) readCopy(ctx context.Context) (*registryFile, error) {
	o, err := r.bucket.Read(ctx, r.copyKey)
	switch {
	case errors.Is(err, blob.ErrNotFound), errors.Is(err, blob.ErrCorrupt):
		return nil, nil
	case err != nil:
		return nil, Refuse(Unavailable, "read the copy of the list of queues: %w", err)
	}
	f, err := parseRegistry(o.Data)
	if errors.Is(err, errNewerList) {
		return nil, err
	}
	return f, nil //nolint:nilerr // a copy that says nothing is none
}

// writeCopy makes the copy say what the list says, unless it says something newer: somebody was faster.
// The caller has the lock.
func (r *Registry) writeCopy(ctx context.Context) error {
	data, err := json.MarshalIndent(&r.list, "", "  ")
	if err != nil {
		return Refuse(Unavailable, "encode the list of queues: %w", err)
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
			return Refuse(UnknownOutcome, "write the copy of the list of queues: %w", err).WithHint("repeat the call")
		}
	}
	return Refuse(UnknownOutcome, "the copy of the list of queues was changed by others %d times in a row", registryTries).WithHint("repeat the call")
}

// Secure writes the copy of the list if it is behind: a list of before there were copies has none, and
// whoever changed the list may have died in between. It reports what is wrong with the list, if anything.
func (r *Registry) Secure(ctx context.Context) error {
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

// Damage returns what was wrong with the list when it was read last; nil: nothing.
func (r *Registry) Damage(ctx context.Context) *Error {
	if err := r.lock(ctx); err != nil {
		return nil
	}
	defer r.unlock()
	return r.damage
}

// Repair writes a damaged list of queues anew, from the newest list that is known, and keeps what stood in
// its place as an object of its own. It returns the queues of the list and where the damaged one is kept:
// empty if the list was not damaged, and nothing was written; with dry, nothing is written in any case.
func (r *Registry) Repair(ctx context.Context, dry bool) (queues []Settings, kept string, err error) {
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
	next.Format, next.Nonce, next.Serial = registryFormat, nonceText(), next.Serial+1
	kept = join(r.root, "v1/damaged/queues-"+next.Nonce)
	if dry {
		return queues, kept, nil
	}
	o, err := r.bucket.Read(ctx, r.key)
	switch {
	case err == nil:
		if _, err := r.bucket.Create(ctx, kept, o.Data); err != nil {
			return nil, "", Refuse(Unavailable, "keep the damaged list of queues: %w", err)
		}
		r.version = o.Version
	case errors.Is(err, blob.ErrNotFound):
		r.version, kept = "", ""
	case errors.Is(err, blob.ErrCorrupt): // nobody can read what is there
		if err := r.bucket.Delete(ctx, r.key); err != nil {
			return nil, "", Refuse(Unavailable, "take the damaged list of queues away: %w", err)
		}
		r.version, kept = "", ""
	default:
		return nil, "", Refuse(Unavailable, "read the list of queues: %w", err)
	}
	done, err := r.write(ctx, &next)
	switch {
	case err != nil:
		return nil, "", err
	case !done:
		return nil, "", Refuse(Unavailable, "the list of queues was changed meanwhile").WithHint("run emitd queue verify again")
	}
	r.damage = nil
	return queues, kept, r.writeCopy(ctx)
}
