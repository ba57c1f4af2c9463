package dir

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/emitd/emitd/storage/blob"
)

// Read implements blob.Bucket.
func (b *Bucket) Read(ctx context.Context, key string) (*blob.Object, error) {
	return b.read(ctx, key, blob.MaxSize, "")
}

// ReadPrefix implements blob.Bucket.
func (b *Bucket) ReadPrefix(ctx context.Context, key string, n int) (*blob.Object, error) {
	return b.read(ctx, key, max(n, 0), "")
}

// ReadNewer implements blob.Bucket.
func (b *Bucket) ReadNewer(ctx context.Context, key string, known blob.Version) (*blob.Object, error) {
	return b.read(ctx, key, blob.MaxSize, known)
}

func (b *Bucket) read(ctx context.Context, key string, n int, known blob.Version) (*blob.Object, error) {
	if err := blob.CheckKey(key); err != nil {
		return nil, &blob.Error{Op: "read", Key: key, Kind: err}
	}
	if err := ctx.Err(); err != nil {
		return nil, &blob.Error{Op: "read", Key: key, Kind: blob.ErrUnavailable, Err: err}
	}
	s, f, err := b.current(b.path(key))
	if errors.Is(err, blob.ErrNotFound) && b.gone() {
		err = blob.ErrNoBucket
	}
	if err != nil {
		return nil, asError("read", key, err)
	}
	defer f.Close()
	if known != "" && s.version() == known {
		return nil, asError("read", key, blob.ErrNotModified)
	}
	data, err := f.data(n)
	if err != nil {
		return nil, asError("read", key, err)
	}
	return &blob.Object{Data: data, Version: s.version()}, nil
}

// gone reports whether the bucket itself is missing. An unmounted disk must not look empty.
func (b *Bucket) gone() bool {
	_, err := os.Lstat(b.tmp())
	return err != nil
}

// List implements blob.Bucket. It reads only the directories that can hold keys of the page, and
// the headers of the files on the page.
func (b *Bucket) List(ctx context.Context, prefix, after string, limit int) (*blob.Page, error) {
	if err := blob.CheckPrefix(prefix); err != nil {
		return nil, &blob.Error{Op: "list", Key: prefix, Kind: err}
	}
	w := walk{bucket: b, prefix: prefix, after: after, limit: blob.PageLimit(limit), page: &blob.Page{}}
	base := prefix[:strings.LastIndexByte(prefix, '/')+1]
	if err := w.dir(ctx, base); err != nil {
		return nil, asError("list", prefix, err)
	}
	if len(w.page.Entries) == 0 && b.gone() {
		return nil, asError("list", prefix, blob.ErrNoBucket)
	}
	return w.page, nil
}

// walk is one listing.
type walk struct {
	bucket        *Bucket
	prefix, after string
	limit         int
	page          *blob.Page
}

// dir lists the keys that begin with base, which is empty or ends with a slash.
func (w *walk) dir(ctx context.Context, base string) error {
	if err := ctx.Err(); err != nil {
		return withCause(blob.ErrUnavailable, err)
	}
	path := w.bucket.path(base)
	entries, err := os.ReadDir(path)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	names, replaced := w.names(base, entries)
	for _, name := range names {
		if w.page.More {
			return nil
		}
		if strings.HasSuffix(name, "/") {
			err = w.dir(ctx, base+name)
		} else {
			err = w.file(base+name, replaced[name])
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// names returns the names in a directory that can be on the page, in the order of the keys. A directory gets
// a slash at its end, so that it sorts as the keys in it do. Names in replaced have replacements.
func (w *walk) names(base string, entries []os.DirEntry) (names []string, replaced map[string]bool) {
	names, replaced = make([]string, 0, len(entries)), map[string]bool{}
	for _, entry := range entries {
		name := entry.Name()
		if of, is := strings.CutSuffix(name, "@"); is {
			replaced[of] = true
			continue
		}
		if blob.CheckKey(name) != nil { // not of a bucket, such as a copy that an editor or rsync has left
			continue
		}
		if entry.IsDir() {
			name += "/"
		}
		if w.mayHold(base + name) {
			names = append(names, name)
		}
	}
	slices.SortFunc(names, cmp.Compare[string])
	return names, replaced
}

// mayHold reports whether a key, or a key in a directory, can be on the page.
func (w *walk) mayHold(key string) bool {
	if strings.HasSuffix(key, "/") {
		return (strings.HasPrefix(key, w.prefix) || strings.HasPrefix(w.prefix, key)) &&
			(key > w.after || strings.HasPrefix(w.after, key))
	}
	return strings.HasPrefix(key, w.prefix) && key > w.after
}

// file puts a key on the page, unless it has been deleted meanwhile. replaced says whether there was a directory of its
// replacements.
func (w *walk) file(key string, replaced bool) error {
	if len(w.page.Entries) == w.limit {
		w.page.More = true
		return nil
	}
	s, f, err := w.open(key, replaced)
	if errors.Is(err, blob.ErrNotFound) {
		return nil
	}
	if errors.Is(err, blob.ErrCorrupt) || errors.Is(err, os.ErrPermission) || unreadable(err) {
		// The file exists, and a caller that reads it gets the error.
		return w.addDamaged(key)
	}
	if err != nil {
		return fmt.Errorf("%q: %w", key, err)
	}
	defer f.Close()
	w.page.Entries = append(w.page.Entries, blob.Entry{
		Key: key, Version: s.version(), Size: int64(f.length), Modified: f.info.ModTime(),
	})
	return nil
}

// open opens the file that was the object at some time since the listing began: its own file, if there was no directory of
// replacements. A replacement that has been made since does not matter, nor does a deletion.
func (w *walk) open(key string, replaced bool) (state, *file, error) {
	path := w.bucket.path(key)
	if replaced {
		return w.bucket.current(path)
	}
	f, err := open(path)
	if errors.Is(err, os.ErrNotExist) {
		return state{}, nil, blob.ErrNotFound
	}
	if err != nil {
		return state{}, nil, err
	}
	return state{root: f.self, n: 1, self: f.self}, f, nil
}

// addDamaged puts a key on the page whose file cannot be read: without a version, and with the size of the file
// that holds its first version.
func (w *walk) addDamaged(key string) error {
	info, err := os.Lstat(w.bucket.path(key))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("%q: %w", key, err)
	}
	w.page.Entries = append(w.page.Entries, blob.Entry{Key: key, Size: max(info.Size()-int64(headerSize), 0), Modified: info.ModTime()})
	return nil
}
