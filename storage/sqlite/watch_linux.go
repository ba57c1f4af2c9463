package sqlite

import (
	"os"

	"golang.org/x/sys/unix"
)

// changes reports changes of the file when they happen, if the kernel can (inotify). A wake-up of
// another process is then found before the next check. The checks find what fails here, or is
// missed because the file was replaced. end returns when all resources are released.
func (w *wakeFile) changes() (signal <-chan struct{}, end func()) {
	none := func() {}
	fd, err := unix.InotifyInit1(unix.IN_CLOEXEC | unix.IN_NONBLOCK)
	if err != nil {
		return nil, none // the kernel limits how many a user may have
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
				return // end has closed it
			}
			select {
			case changed <- struct{}{}:
			default:
			}
		}
	}()
	return changed, func() { events.Close(); <-done }
}
