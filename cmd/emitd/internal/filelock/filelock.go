// Package filelock keeps a file locked for as long as the process lives: the kernel releases the
// lock when the process ends, however it ends. The file itself stays; its content means nothing.
package filelock

import (
	"errors"
	"fmt"
	"os"
)

// ErrHeld says that another process holds the lock.
var ErrHeld = errors.New("the lock is held by another process")

// Lock creates the file if needed and locks it, without waiting. unlock may be called once.
func Lock(path string) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock: %w", err)
	}
	if err := lock(f); err != nil {
		return nil, errors.Join(fmt.Errorf("lock %s: %w", path, err), f.Close())
	}
	return func() { _ = f.Close() }, nil
}
