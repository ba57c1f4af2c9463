// Package filelock keeps a file locked for as long as a process has it open. The kernel releases the lock
// when the last process that has inherited it ends, however it ends. The file itself remains, and its
// content has no meaning.
package filelock

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// ErrHeld says that another process holds the lock.
var ErrHeld = errors.New("the lock is held by another process")

// Lock creates the file if necessary and locks it, without waiting. unlock may be called once.
func Lock(path string) (unlock func(), err error) {
	f, err := open(path, os.O_CREATE|os.O_RDWR)
	if err != nil {
		return nil, err
	}
	return func() { _ = f.Close() }, nil
}

// retry is the pause between two attempts of While.
const retry = 20 * time.Millisecond

// While calls do while it holds the lock of a file, and removes the file afterwards, where a file that is open can be
// removed. It waits for other processes until ctx ends.
func While(ctx context.Context, path string, do func() error) error {
	for {
		f, err := open(path, os.O_CREATE|os.O_RDWR)
		if err == nil && !isAt(f, path) { // the process before has removed it in the meantime
			_ = f.Close()
			continue
		}
		if err == nil {
			defer f.Close()
			defer os.Remove(path) // before the lock is released
			return do()
		}
		if !errors.Is(err, ErrHeld) {
			return err
		}
		select {
		case <-time.After(retry):
		case <-ctx.Done():
			return err
		}
	}
}

// isAt reports whether a path still leads to an open file.
func isAt(f *os.File, path string) bool {
	own, err := f.Stat()
	if err != nil {
		return false
	}
	there, err := os.Stat(path)
	return err == nil && os.SameFile(own, there)
}

func open(path string, flags int) (*os.File, error) {
	f, err := os.OpenFile(path, flags, 0o600)
	if err != nil {
		return nil, fmt.Errorf("lock: %w", err)
	}
	if err := lock(f); err != nil {
		return nil, errors.Join(fmt.Errorf("lock %s: %w", path, err), f.Close())
	}
	return f, nil
}

// leftover is the age at which Temp removes an unlocked file. It is generous, because until then another
// process may still check, by locking the file, that the owner has ended.
const leftover = 24 * time.Hour

// Temp creates a new file in dir, readable for everyone, and locks it. It removes files that killed
// processes have left behind.
func Temp(dir string, now time.Time) (*os.File, error) {
	sweep(dir, now)
	f, err := os.CreateTemp(dir, "emitd-*.lock")
	if err != nil {
		return nil, fmt.Errorf("lock: %w", err)
	}
	err = lock(f)
	if err == nil {
		err = f.Chmod(0o644) // processes of other users may check whether it is locked
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("lock %s: %w", f.Name(), err), f.Close(), os.Remove(f.Name()))
	}
	return f, nil
}

// sweep removes files of dir that are old and that no process has locked.
func sweep(dir string, now time.Time) {
	files, err := filepath.Glob(filepath.Join(dir, "emitd-*.lock"))
	if err != nil {
		return
	}
	for _, path := range files {
		info, err := os.Lstat(path)
		if err != nil || !info.Mode().IsRegular() || now.Sub(info.ModTime()) < leftover {
			continue
		}
		if f, err := open(path, os.O_RDWR); err == nil {
			_ = os.Remove(path)
			_ = f.Close()
		}
	}
}
