package dir

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/emitd/emitd/storage/blob"
)

// state says which file is the object: the key's own file, as long as n is 1, or its replacement with the
// number n.
type state struct {
	root nonce  // nonce of the key's own file
	n    uint64 // number of the version; the first replacement is 2
	self nonce  // nonce of the file that is the object
}

// version returns the object's version. It repeats only if a nonce repeats.
func (s state) version() blob.Version {
	return blob.Version(s.root.String() + "-" + strconv.FormatUint(s.n, 10))
}

// versions is the directory of a key's replacements. No key contains an "@".
func versions(path string) string { return path + "@" }

func versionFile(path string, root nonce, n uint64) string {
	return filepath.Join(versions(path), root.String()+"-"+strconv.FormatUint(n, 10))
}

// parseVersionFile is the inverse of versionFile for a name in its directory.
func parseVersionFile(name string) (root string, n uint64, ok bool) {
	root, number, found := strings.Cut(name, "-")
	n, err := strconv.ParseUint(number, 10, 64)
	return root, n, found && err == nil && strconv.FormatUint(n, 10) == number && len(root) == 2*len(nonce{})
}

// highest returns the highest replacement number of a root, 1 if there is none. The directory holds
// few files, so one system call lists it, in one step.
func highest(path string, root nonce) (uint64, error) {
	entries, err := os.ReadDir(versions(path))
	if errors.Is(err, os.ErrNotExist) {
		return 1, nil
	}
	if err != nil {
		return 0, err
	}
	top, want := uint64(1), root.String()
	for _, entry := range entries {
		if r, n, ok := parseVersionFile(entry.Name()); ok && r == want {
			top = max(top, n)
		}
	}
	return top, nil
}

// current opens the file that is the object. If there is none it returns blob.ErrNotFound. It tries
// again if a write or a deletion happened between its steps.
func (b *Bucket) current(path string) (state, *file, error) {
	for range attempts {
		s, f, err := b.tryCurrent(path)
		if err == nil || !errors.Is(err, os.ErrNotExist) {
			return s, f, err
		}
	}
	return state{}, nil, errBusy
}

// tryCurrent is one attempt of current. os.ErrNotExist asks for another one.
func (b *Bucket) tryCurrent(path string) (state, *file, error) {
	first, err := open(path)
	if errors.Is(err, os.ErrNotExist) {
		return state{}, nil, blob.ErrNotFound
	}
	if err != nil {
		return state{}, nil, err
	}
	root, n := first.self, uint64(0)
	if err = b.at("look"); err == nil {
		n, err = highest(path, root)
	}
	if err == nil {
		err = sameFile(path, first)
	}
	if err == nil && n == 1 {
		return state{root: root, n: 1, self: root}, first, nil
	}
	first.Close()
	if err != nil {
		return state{}, nil, err
	}
	f, err := open(versionFile(path, root, n))
	if err != nil {
		return state{}, nil, err
	}
	return state{root: root, n: n, self: f.self}, f, nil
}

// sameFile returns os.ErrNotExist if the path no longer leads to the open file. Otherwise the
// versions that were listed in between belong to the object.
func sameFile(path string, f *file) error {
	info, err := os.Stat(path)
	if err != nil {
		return err
	}
	if !os.SameFile(info, f.info) {
		return os.ErrNotExist
	}
	return nil
}

// create links the first file of a key.
func (b *Bucket) create(ctx context.Context, key string, data []byte, h header) (state, error) {
	tmp, err := b.temporary(h, data)
	if err != nil {
		return state{}, err
	}
	defer b.discard(tmp)
	path := b.path(key)
	if err := b.link(ctx, tmp, path); err != nil {
		if errors.Is(err, os.ErrExist) {
			return state{}, b.lost(blob.ErrExists, filepath.Dir(path))
		}
		return state{}, err
	}
	return state{root: h.self, n: 1, self: h.self}, b.publish(filepath.Dir(path))
}

// replace links the next version if accepts returns true for the current one.
func (b *Bucket) replace(ctx context.Context, key string, data []byte, h header, accepts func(state) bool) (state, error) {
	path := b.path(key)
	old, f, err := b.current(path)
	if errors.Is(err, blob.ErrNotFound) {
		return state{}, blob.ErrChanged
	}
	if err != nil {
		return state{}, err
	}
	f.Close()
	if !accepts(old) {
		return state{}, b.lost(blob.ErrChanged, versions(path))
	}
	h.replaced = old.self
	tmp, err := b.temporary(h, data)
	if err != nil {
		return state{}, err
	}
	defer b.discard(tmp)
	next := state{root: old.root, n: old.n + 1, self: h.self}
	if err := b.link(ctx, tmp, versionFile(path, next.root, next.n)); err != nil {
		if errors.Is(err, os.ErrExist) {
			return state{}, b.lost(blob.ErrChanged, versions(path))
		}
		return state{}, err
	}
	// Check before the sync: the sync is slow, and meanwhile the versions needed for the check may
	// be collected.
	if err := b.confirm(path, tmp, next); err != nil {
		return state{}, err
	}
	if err := b.publish(versions(path)); err != nil {
		return state{}, err
	}
	b.collect(path)
	return next, nil
}

// link gives a temporary file its name, and creates the directory if it is missing. It returns
// os.ErrExist if another file has the name.
func (b *Bucket) link(ctx context.Context, tmp, path string) error {
	for range attempts {
		if err := ctx.Err(); err != nil {
			return withCause(blob.ErrUnavailable, err)
		}
		if err := b.at("link"); err != nil {
			return err
		}
		err := os.Link(tmp, path)
		if errors.Is(err, os.ErrExist) {
			return b.ownLink(tmp, path, err)
		}
		if !errors.Is(err, os.ErrNotExist) {
			return err
		}
		if _, err := os.Lstat(tmp); err != nil {
			return fmt.Errorf("%w: the temporary file is gone: %w", blob.ErrUnavailable, err)
		}
		if err := b.makeDir(filepath.Dir(path)); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	return errBusy
}

// ownLink returns nil if path is a link to tmp itself, made by an earlier attempt whose answer was lost, and
// exists otherwise.
func (b *Bucket) ownLink(tmp, path string, exists error) error {
	a, errA := os.Lstat(tmp)
	c, errC := os.Lstat(path)
	if errA == nil && errC == nil && os.SameFile(a, c) {
		return nil
	}
	return exists
}

// lost returns why a write came too late, once the name that was first is durable: the caller may act on the knowledge
// that the object is there. If it cannot be made durable, the outcome is unknown and nothing else, because the name may be
// of an earlier attempt of the same caller, which would take it for stored.
func (b *Bucket) lost(why error, dir string) error {
	if err := b.publish(dir); err != nil {
		return err
	}
	return why
}

// publish makes a linked name durable. Other processes may have seen it already, so a failure is an
// unknown outcome.
func (b *Bucket) publish(dir string) error {
	err := b.at("sync")
	if err == nil {
		err = b.syncDir(dir)
	}
	if err != nil {
		return withCause(blob.ErrUnknownOutcome, err)
	}
	return nil
}

// confirm checks whether the link was made in time; see the package comment.
func (b *Bucket) confirm(path, tmp string, mine state) error {
	if err := b.at("confirm"); err != nil {
		return withCause(blob.ErrUnknownOutcome, err)
	}
	if !isRoot(path, mine.root) {
		return withCause(blob.ErrChanged, blob.ErrUnknownOutcome) // deleted, before the link or since
	}
	top, err := highest(path, mine.root)
	switch {
	case err != nil:
		return withCause(blob.ErrUnknownOutcome, err)
	case top == mine.n:
		return nil
	}
	return b.wasCurrent(path, tmp, mine, top)
}

// wasCurrent returns nil if the version was the object until a newer one replaced it, although a higher
// version exists. Otherwise the writer was so late that the version was linked into a gap that collected
// versions had left (see the package comment): wasCurrent removes it and returns blob.ErrChanged. A version
// that was the object is named in the header of its successor or, once it may be collected, marked read-only.
func (b *Bucket) wasCurrent(path, tmp string, mine state, top uint64) error {
	if f, err := open(versionFile(path, mine.root, mine.n+1)); err == nil {
		f.Close()
		if f.replaced == mine.self {
			return nil
		}
	}
	info, err := os.Stat(tmp) // the same file under its first name
	switch {
	case err != nil:
		return withCause(blob.ErrUnknownOutcome, err)
	case isMarked(info):
		return nil
	case !isRoot(path, mine.root):
		return withCause(blob.ErrChanged, blob.ErrUnknownOutcome)
	}
	// No reader has seen it, because a higher version existed before.
	_ = os.Remove(versionFile(path, mine.root, mine.n))
	return fmt.Errorf("%w: it is at version %d", blob.ErrChanged, top)
}

// isRoot reports whether the key's own file has the nonce.
func isRoot(path string, root nonce) bool {
	f, err := open(path)
	if err != nil {
		return false
	}
	f.Close()
	return f.self == root
}

// collect removes versions below the last few, from the lowest, and those of roots that were
// deleted. It lists the directory before it reads the root. A root that has files in that listing
// and is not the key's root afterwards cannot become it again.
func (b *Bucket) collect(path string) {
	entries, err := os.ReadDir(versions(path))
	if err != nil || len(entries) <= keptVersions {
		return
	}
	first, err := open(path)
	if err != nil {
		return
	}
	first.Close()
	root := first.self.String()
	var top uint64
	var live []uint64
	for _, entry := range entries {
		r, n, ok := parseVersionFile(entry.Name())
		switch {
		case ok && r == root:
			top, live = max(top, n), append(live, n)
		case ok && b.at("collect") == nil:
			_ = os.Remove(filepath.Join(versions(path), entry.Name()))
		}
	}
	b.removeBelow(path, first.self, live, top)
}
