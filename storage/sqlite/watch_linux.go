package sqlite

import (
	"os"

	"golang.org/x/sys/unix"
)

// changes tells of changes of the file when they happen, where the kernel does (inotify): another
// process's hint then need not wait for the next look. Whatever fails, or is missed because the file was
// replaced, the looks find. end returns when nothing of it is left.
func (w *wakeFile) changes() (told <-chan struct{}, end func()) {
	none := func() {}
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, none // there are only so many for a user
	}
	events := os.NewFile(uintptr(fd), "inotify")
	if err = w.create(); err == nil {
		_, err = unix.InotifyAddWatch(fd, w.path, unix.IN_MODIFY)
	}
	if err != nil {
		events.Close()
		return nil, none
	}
	changed, done := make(chan struct{}, 1), make(chan struct{})
	go func() {
		defer close(done)
		buf := make([]byte, 64*unix.SizeofInotifyEvent)
		for {
			if _, err := events.Read(buf); err != nil {
				return // closed
			}
			select {
			case changed <- struct{}{}:
			default:
			}
		}
	}()
	return changed, func() { events.Close(); <-done }
}
