package dir

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"syscall"

	"github.com/emitd/emitd/storage/blob"
)

var _ blob.Keeper = (*Bucket)(nil)

// Keep implements blob.Keeper: the files of the object get a second name each. Nothing is read, so it does
// for a file that the disk or the file system cannot read any more, too.
func (b *Bucket) Keep(ctx context.Context, key, as string) error {
	if err := errors.Join(blob.CheckKey(key), blob.CheckKey(as)); err != nil {
		return &blob.Error{Op: "keep", Key: key, Kind: err}
	}
	from, to := b.path(key), b.path(as)
	entries, err := os.ReadDir(versions(from))
	if err == nil || errors.Is(err, os.ErrNotExist) {
		err = b.second(ctx, from, to)
	}
	for _, entry := range entries {
		if err != nil && !errors.Is(err, os.ErrExist) {
			break
		}
		// A replacement that was collected since it was listed is not the object.
		name := entry.Name()
		if e := b.second(ctx, filepath.Join(versions(from), name), filepath.Join(versions(to), name)); !errors.Is(e, os.ErrNotExist) {
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

// second gives a file a second name, durably.
func (b *Bucket) second(ctx context.Context, from, to string) error {
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

// unreadable reports whether an error of the operating system is of what one file has, and not of the
// process or the whole directory: a file that the disk cannot read, or which is a link in a circle.
func unreadable(err error) bool {
	return errors.Is(err, syscall.EIO) || errors.Is(err, syscall.ELOOP) || errors.Is(err, syscall.EBADMSG)
}
