package dir

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"syscall"

	"github.com/emitd/emitd/storage/blob"
)

var _ blob.Preserver = (*Bucket)(nil)

// Retain implements blob.Preserver: it gives each file of the object a second name. It reads no file, so
// it also works for files that the disk or the file system cannot read any more.
func (b *Bucket) Retain(ctx context.Context, key, as string) error {
	if err := errors.Join(blob.CheckKey(key), blob.CheckKey(as)); err != nil {
		return &blob.Error{Op: "keep", Key: key, Kind: err}
	}
	from, to := b.path(key), b.path(as)
	entries, err := os.ReadDir(versions(from))
	if err == nil || errors.Is(err, os.ErrNotExist) {
		err = b.linkName(ctx, from, to)
	}
	for _, entry := range entries {
		if err != nil && !errors.Is(err, os.ErrExist) {
			break
		}
		// A replacement that was collected after it was listed does not belong to the object.
		name := entry.Name()
		if e := b.linkName(ctx, filepath.Join(versions(from), name), filepath.Join(versions(to), name)); !errors.Is(e, os.ErrNotExist) {
			err = e
		}
	}
	switch {
	case errors.Is(err, os.ErrExist):
		err = blob.ErrExists
	case errors.Is(err, os.ErrNotExist):
		err = blob.ErrNotFound
	}
	return asError("keep", key, err)
}

// linkName gives a file a second name, durably.
func (b *Bucket) linkName(ctx context.Context, from, to string) error {
	if _, err := os.Lstat(from); err != nil {
		return err
	}
	if err := b.makeDir(filepath.Dir(to)); err != nil {
		return err
	}
	if err := b.link(ctx, from, to); err != nil {
		return err
	}
	return b.syncDir(filepath.Dir(to))
}

// unreadable reports whether an error of the operating system concerns the content of one file, and
// not the process or the whole directory: the disk cannot read the file, or the file is a link in a
// cycle.
func unreadable(err error) bool {
	return errors.Is(err, syscall.EIO) || errors.Is(err, syscall.ELOOP) || errors.Is(err, syscall.EBADMSG)
}
