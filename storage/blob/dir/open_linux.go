package dir

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// openFile is os.OpenFile without the attempt to wait for the file by epoll, which costs five system calls for each file and
// is always in vain.
func openFile(path string, flag int, perm os.FileMode) (*os.File, error) {
	for {
		fd, err := unix.Open(path, flag|unix.O_CLOEXEC, uint32(perm.Perm()))
		if err == nil {
			return os.NewFile(uintptr(fd), path), nil
		}
		if !errors.Is(err, unix.EINTR) {
			return nil, &os.PathError{Op: "open", Path: path, Err: err}
		}
	}
}
