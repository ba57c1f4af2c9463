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

// Watch implements [storage.Waker]. It looks at the status of the wake file every
// [Config.WatchInterval], and on Linux as soon as the kernel says that it has changed: one system
// call, no statement. Every hint is for everybody.
func (s *Store) Watch(ctx context.Context, wake func(storage.Wake)) error {
	told, end := s.wakes.changes() // before the first look: nothing falls between
	defer end()
	last := s.wakes.look()
	tick := time.NewTicker(s.cfg.WatchInterval)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-tick.C:
		case <-told:
		}
		if now := s.wakes.look(); now != last {
			last = now
			wake(storage.Wake{Leader: true})
		}
	}
}

// wakeFile is a file beside the database whose size changes with every change that others may
// wait for. Its size, not its time, tells: times of files are as coarse as a few milliseconds,
// and two changes within one would look like one.
type wakeFile struct {
	path   string
	log    *slog.Logger
	failed sync.Once
}

// wakeSuffix follows the path of the database.
const wakeSuffix = ".wake"

// wakeSizes is how many sizes there are before they repeat. The file is sparse: it takes no room.
const wakeSizes = 1 << 20

// touch makes the size that of an event's number. Two processes may do so in the wrong order;
// a watcher then sees one change more, never one less.
func (w *wakeFile) touch(head int64) {
	size := 1 + head%wakeSizes
	err := os.Truncate(w.path, size)
	if os.IsNotExist(err) {
		if err = w.create(); err == nil {
			err = os.Truncate(w.path, size)
		}
	}
	if err != nil {
		w.failed.Do(func() {
			w.log.Warn("cannot write the wake file: changes are found at the next heartbeat only", "path", w.path, "error", err)
		})
	}
}

// create makes the file be, with the mode of the database: whoever may use that may use both.
func (w *wakeFile) create() error {
	mode := os.FileMode(0o600)
	if info, err := os.Stat(strings.TrimSuffix(w.path, wakeSuffix)); err == nil {
		mode = info.Mode().Perm()
	}
	f, err := os.OpenFile(w.path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if errors.Is(err, os.ErrExist) {
		return nil // by another process, meanwhile
	}
	if err != nil {
		return err
	}
	return errors.Join(f.Chmod(mode), f.Close()) // of which a umask takes nothing away
}

// look returns what changes with every touch.
func (w *wakeFile) look() (seen struct{ size, modified int64 }) {
	if info, err := os.Stat(w.path); err == nil {
		seen.size, seen.modified = info.Size(), info.ModTime().UnixNano()
	}
	return seen
}
