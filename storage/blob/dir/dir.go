// Package dir is a bucket in a directory of a file system, for one machine: development, tests,
// single nodes. Several processes may use it at once. It has no locks, so a process that was killed
// or stopped cannot hold one.
//
// # Files
//
// The first content of key a/b is the file a/b. Its header contains a random nonce, R. Every
// replacement is a file of its own: a/b@/R-2, a/b@/R-3, .... The object is the file with the
// highest number for the R in a/b. A file gets its name by link(2) when it is complete and synced,
// and it is never changed:
//
//	create   write .tmp/x, fsync, link .tmp/x to a/b,       fsync a,    remove .tmp/x
//	replace  write .tmp/x, fsync, link .tmp/x to a/b@/R-n+1, fsync a/b@, remove .tmp/x
//	delete   rename a/b to .tmp/y, fsync a, remove a/b@/R-*, remove .tmp/y
//
// link(2) fails if the name exists, so exactly one of several racing writers succeeds. (A check
// followed by rename(2) would sometimes let two succeed, because rename replaces.) A process that
// is killed between any two steps leaves either no effect or the whole one. It may also leave files
// that no reader looks at; writers remove them later.
//
// Callers that wait for the sync of one directory share the next one that begins. The one that is under way does not count,
// because it may have begun before the name was there.
//
// The nonce makes deletion one step. Without a/b, the files of its R do not count any more. Even a
// writer that was stopped for a day in the middle of a replacement cannot bring them back. A
// version consists of R and the number; it never repeats.
//
// A file without any name (O_TMPFILE) would not do as .tmp/x: ext4 without a journal would sync it as one that nobody
// names, and a power failure right after the last fsync could lose it. On ext4, .tmp is made away from the bucket's
// other files: a file's place is looked for near its first directory, and where other programs delete many files, as in
// /tmp, that takes longer than writing it.
//
// # Collection of old versions
//
// The last [keptVersions] versions stay. A writer may be stopped between reading version n and linking n+1.
// If it is stopped for long enough, another writer has made n+1 meanwhile, and n+1 has been
// collected since. The stopped writer's link would then succeed in the gap. It therefore checks
// again afterwards. The header of every version names the nonce of the version it replaced, so n+2
// shows whose n+1 was the real one. And a real version is made read-only before it is collected,
// which its writer sees on the temporary name that it still has. Readers never see a file in a gap,
// because a higher one exists.
//
// # Files that cannot be read
//
// A file with other content than was written, or that the disk or the file system cannot read, is
// listed, and reading it returns blob.ErrCorrupt. Keep gives it a second name, without reading it.
//
// # Not guaranteed
//
// A system call cannot be interrupted. On a disk that hangs, calls return late, after their
// context's end, and report what really happened. Network file systems are not supported, because
// their caches make a link visible late. Open refuses a file system without hard links (FAT). On
// Windows directories cannot be synced, so the last writes before a power failure may be missing.
// Deletion there fails with blob.ErrUnavailable while another process has the file open.
package dir

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/emitd/emitd/storage/blob"
)

// keptVersions is how many versions of one object stay: the current one, and those that readers may be
// about to open. They are listed in one system call, so the number must be small.
const keptVersions = 8

// stale is the age at which Open removes files that a killed process left in .tmp. A writer that
// was stopped for longer finds its file gone, and reports that nothing happened.
const stale = time.Hour

// attempts bounds the repetitions of a step that lost a race with another process. Each lost race
// means that another process made progress.
const attempts = 1000

// Config says where the bucket is.
type Config struct {
	// Path is the directory; Open creates it. All processes must use the same file system, and
	// nothing else may write into it.
	Path string

	// NoSync skips fsync, which is two to a hundred times faster, depending on the disk.
	// Acknowledged writes still survive any end of the process, but not a power failure.
	NoSync bool
}

// Bucket is a blob.Bucket in a directory. Use Open.
type Bucket struct {
	root   string
	noSync bool
	syncs  dirSyncs
	step   func(string) error // for tests: may end a call before a step; nil otherwise
}

var _ blob.Bucket = (*Bucket)(nil)

// Open creates the directory if needed, checks that its file system has hard links, and removes
// what killed processes left behind.
func Open(config Config) (*Bucket, error) {
	root, err := filepath.Abs(config.Path)
	if err != nil || config.Path == "" {
		return nil, fmt.Errorf("open object directory %q: %w", config.Path, errors.Join(blob.ErrNoBucket, err))
	}
	b := &Bucket{root: root, noSync: config.NoSync}
	if err := b.makeTmp(); err != nil {
		return nil, fmt.Errorf("open object directory: %w", withKind(err))
	}
	if err := b.checkLinks(); err != nil {
		return nil, err
	}
	return b, b.removeStale(time.Now())
}

// makeTmp creates the bucket's directory and .tmp in it, if they are missing.
func (b *Bucket) makeTmp() error {
	if info, err := os.Stat(b.tmp()); err == nil && info.IsDir() {
		return nil
	}
	if err := os.MkdirAll(b.root, 0o700); err != nil {
		return err
	}
	if err := mkdirApart(b.tmp()); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	return nil
}

func (b *Bucket) tmp() string { return filepath.Join(b.root, ".tmp") }

// path is where the first content of a key is. Valid keys need no escaping.
func (b *Bucket) path(key string) string { return filepath.Join(b.root, filepath.FromSlash(key)) }

// checkLinks makes and removes a hard link.
func (b *Bucket) checkLinks() error {
	name := filepath.Join(b.tmp(), "probe-"+newNonce().String())
	defer os.Remove(name)
	defer os.Remove(name + "-link")
	if err := os.WriteFile(name, nil, 0o600); err != nil {
		return fmt.Errorf("open object directory: %w", withKind(err))
	}
	if err := os.Link(name, name+"-link"); err != nil {
		return fmt.Errorf("open object directory %s: %w: its file system has no hard links (%w): choose a directory on a local disk with ext4, XFS, APFS or NTFS",
			b.root, blob.ErrUnfit, err)
	}
	return nil
}

func (b *Bucket) removeStale(now time.Time) error {
	entries, err := os.ReadDir(b.tmp())
	if err != nil {
		return fmt.Errorf("open object directory: %w", withKind(err))
	}
	for _, entry := range entries {
		if info, err := entry.Info(); err == nil && now.Sub(info.ModTime()) > stale {
			_ = os.Remove(filepath.Join(b.tmp(), entry.Name())) // another process may be doing the same
		}
	}
	return nil
}

// Create implements blob.Bucket.
func (b *Bucket) Create(ctx context.Context, key string, data []byte) (blob.Version, error) {
	return b.write(ctx, "create", key, data, func(h header) (state, error) { return b.create(ctx, key, data, h) })
}

// Replace implements blob.Bucket.
func (b *Bucket) Replace(ctx context.Context, key string, data []byte, old blob.Version) (blob.Version, error) {
	return b.write(ctx, "replace", key, data, func(h header) (state, error) {
		return b.replace(ctx, key, data, h, func(now state) bool { return now.version() == old })
	})
}

// Write implements blob.Bucket.
func (b *Bucket) Write(ctx context.Context, key string, data []byte) (blob.Version, error) {
	return b.write(ctx, "write", key, data, func(h header) (state, error) {
		for range attempts {
			s, err := b.replace(ctx, key, data, h, func(state) bool { return true })
			if errors.Is(err, blob.ErrChanged) && blob.NotApplied(err) {
				s, err = b.create(ctx, key, data, h)
			}
			if errors.Is(err, blob.ErrExists) && blob.NotApplied(err) {
				continue
			}
			return s, err
		}
		return state{}, errBusy
	})
}

// write is the common part of all three: the checks, and the form of errors.
func (b *Bucket) write(ctx context.Context, op, key string, data []byte, do func(header) (state, error)) (blob.Version, error) {
	if err := blob.CheckKey(key); err != nil {
		return "", &blob.Error{Op: op, Key: key, Kind: err}
	}
	if len(data) > blob.MaxSize {
		return "", &blob.Error{Op: op, Key: key, Kind: blob.ErrTooLarge}
	}
	if err := ctx.Err(); err != nil {
		return "", &blob.Error{Op: op, Key: key, Kind: blob.ErrUnavailable, Err: err}
	}
	s, err := do(newHeader(data))
	if err != nil {
		return "", asError(op, key, err)
	}
	return s.version(), nil
}

// Delete implements blob.Bucket.
func (b *Bucket) Delete(ctx context.Context, key string) error {
	if err := blob.CheckKey(key); err != nil {
		return &blob.Error{Op: "delete", Key: key, Kind: err}
	}
	if err := ctx.Err(); err != nil {
		return &blob.Error{Op: "delete", Key: key, Kind: blob.ErrUnavailable, Err: err}
	}
	return asError("delete", key, b.remove(key))
}
