package sqlite

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/emitd/emitd/storage"
)

// Watch implements [storage.Watcher]. It checks the status of the wake file every
// [Config.WatchInterval], and on Linux also as soon as the kernel reports a change. Each check is
// one system call and no statement. Every wake-up is for everybody.
func (s *Store) Watch(ctx context.Context, wake func(storage.WakeUp)) error {
	changed, end := s.wakes.changes() // before the first check, so that no change is missed
	defer end()
	last := s.wakes.stat()
	tick := time.NewTicker(s.cfg.WatchInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		case <-changed:
		}
		if now := s.wakes.stat(); now != last {
			last = now
			wake(storage.WakeUp{Leader: true})
		}
	}
}

// wakeFile is a file beside the database. Its size changes with every change that other processes
// may wait for. Its time would not do: the clock of file times ticks only every few
// milliseconds, so two changes within one tick would look like one.
type wakeFile struct {
	path   string
	log    *slog.Logger
	failed sync.Once
}

// wakeSuffix is appended to the path of the database.
const wakeSuffix = ".wake"

// wakeSizes is how many different sizes events have before they repeat. The file is sparse and takes
// no space.
const wakeSizes = 1 << 20

// touch sets the size according to the newest event's number. A change without an event would leave the size as it is, and
// then some file systems (XFS, Btrfs, tmpfs) report no change at all. So it makes the file larger. If two processes find
// the same size, both have committed before either changes it, and one change tells of both. Two processes may set the size in
// the wrong order. A watcher then sees one change more. It misses changes only if they lead back to the size that it
// saw last, within the same tick of the clock of file times, and the kernel does not report them. The next heartbeats find them.
func (w *wakeFile) touch(head int64) {
	size := 1 + head%wakeSizes
	if w.stat().size == size {
		size += wakeSizes
	}
	err := os.Truncate(w.path, size)
	if os.IsNotExist(err) {
		if err = w.create(); err == nil {
			err = os.Truncate(w.path, size)
		}
	}
	if err != nil {
		w.failed.Do(func() {
			w.log.Warn("cannot write the wake file: changes are found only at the next heartbeat", "path", w.path, "error", err)
		})
	}
}

// create creates the file with the mode of the database, so that everyone who may use the database
// may use this file too.
func (w *wakeFile) create() error {
	mode := os.FileMode(0o600)
	if info, err := os.Stat(strings.TrimSuffix(w.path, wakeSuffix)); err == nil {
		mode = info.Mode().Perm()
	}
	f, err := os.OpenFile(w.path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if errors.Is(err, os.ErrExist) {
		return nil // another process has created it meanwhile
	}
	if err != nil {
		return err
	}
	return errors.Join(f.Chmod(mode), f.Close()) // Chmod, because a umask would reduce the mode given to open
}

// stat returns values that change with every touch.
func (w *wakeFile) stat() (seen struct{ size, modified int64 }) {
	if info, err := os.Stat(w.path); err == nil {
		seen.size, seen.modified = info.Size(), info.ModTime().UnixNano()
	}
	return seen
}
