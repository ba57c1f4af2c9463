package dir

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
)

// removeBelow removes the versions that are no longer needed, in ascending order: wasCurrent relies on that.
func (b *Bucket) removeBelow(path string, root nonce, live []uint64, top uint64) {
	slices.Sort(live)
	for _, n := range live {
		if n+keptVersions > top || b.at("collect") != nil || !markSuperseded(path, root, n) {
			return
		}
		if err := os.Remove(versionFile(path, root, n)); err != nil && !errors.Is(err, os.ErrNotExist) {
			return // stop, to keep the order
		}
	}
}

// markSuperseded prepares a version for removal. If the next version names it, it was the object, so it
// is marked read-only. A writer that has not checked yet finds the mark on the name that it still
// has. markSuperseded reports whether the version may be removed.
func markSuperseded(path string, root nonce, n uint64) bool {
	f, err := open(versionFile(path, root, n))
	if err != nil {
		return errors.Is(err, os.ErrNotExist)
	}
	defer f.Close()
	next, err := open(versionFile(path, root, n+1))
	if err != nil {
		return errors.Is(err, os.ErrNotExist) // linked into a gap, or collected by another process
	}
	next.Close()
	return next.replaced != f.self || mark(f) == nil
}

// isMarked reports whether a file has been the object and was replaced.
func isMarked(info os.FileInfo) bool { return info.Mode().Perm()&0o200 == 0 }

// remove deletes an object. The rename is the deletion; the rest is cleanup. It is a rename and not
// an unlink because the nonce of exactly the removed file says which versions were deleted with it.
func (b *Bucket) remove(key string) error {
	path := b.path(key)
	if err := b.at("rename"); err != nil {
		return err
	}
	if info, err := os.Lstat(path); err == nil && info.IsDir() {
		return nil // a directory of keys is no object
	}
	deletedPath := filepath.Join(b.tmp(), newNonce().String())
	err := os.Rename(path, deletedPath)
	if errors.Is(err, os.ErrNotExist) {
		if _, err := os.Lstat(b.tmp()); err != nil {
			return err
		}
		return nil
	}
	if err != nil {
		return err
	}
	if err := b.publish(filepath.Dir(path)); err != nil {
		return err
	}
	b.cleanUp(path, deletedPath)
	return nil
}

// cleanUp removes the remaining files of a deleted object. If it fails, the files stay and do no harm.
func (b *Bucket) cleanUp(path, tombstone string) {
	b.removeVersions(path, tombstone)
	if b.at("bury") == nil {
		_ = os.Remove(tombstone)
	}
	for parent := filepath.Dir(path); parent != b.root; parent = filepath.Dir(parent) {
		if b.at("prune") != nil || os.Remove(parent) != nil {
			return // not empty
		}
	}
}

// removeVersions removes the replacements of a deleted object. Most objects have none, and then nothing is opened.
func (b *Bucket) removeVersions(path, tombstone string) {
	entries, err := os.ReadDir(versions(path))
	if err != nil {
		return
	}
	f, err := open(tombstone)
	if err != nil {
		return
	}
	f.Close()
	dead := f.self
	for _, entry := range entries {
		if root, _, ok := parseVersionFile(entry.Name()); ok && root == dead.String() && b.at("bury") == nil {
			_ = os.Remove(filepath.Join(versions(path), entry.Name()))
		}
	}
	_ = os.Remove(versions(path)) // fails if the key was created again and has replacements
}

// discard removes a temporary file, linked or not.
func (b *Bucket) discard(tmp string) {
	if b.at("discard") == nil {
		_ = os.Remove(tmp)
	}
}
