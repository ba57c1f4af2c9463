package sqlite

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	lib "modernc.org/sqlite/lib"

	"github.com/emitd/emitd/internal/sqlitefile"
	"github.com/emitd/emitd/storage"
)

// FileError is a problem with the database file that an operator can fix.
type FileError struct {
	Path    string
	Problem string // what was found, and what was expected
	Hint    string // what to do
	Err     error  // the system's error, if there is one
}

// Error returns path, problem, system error and hint as one text.
func (e *FileError) Error() string {
	text := fmt.Sprintf("database file %s: %s", e.Path, e.Problem)
	if e.Err != nil {
		text += fmt.Sprintf(" (%v)", e.Err)
	}
	return text + ": " + e.Hint
}

// Unwrap returns the system's error.
func (e *FileError) Unwrap() error { return e.Err }

// LockedError says that another process held the write lock for as long as the call could wait. It
// is a storage.ErrUnavailable, and also a context error if a deadline ended the wait.
type LockedError struct {
	Path string
	// PID is the process that held the lock after the wait, 0 if unknown. Stopped says that this
	// process is stopped (SIGSTOP, a debugger), so that waiting does not help.
	PID     int
	Stopped bool
	Err     error
}

// Error names the process, if it is known.
func (e *LockedError) Error() string {
	who := "another process (one may be stopped inside a write transaction)"
	switch {
	case e.PID == os.Getpid():
		who = "another transaction of this process"
	case e.Stopped:
		who = fmt.Sprintf("process %d, which is stopped inside a write transaction", e.PID)
	case e.PID != 0:
		who = fmt.Sprintf("process %d", e.PID)
	}
	text := fmt.Sprintf("database file %s is locked by %s", e.Path, who)
	if e.Stopped {
		return text + fmt.Sprintf(": continue it (kill -CONT %d) or end it", e.PID)
	}
	return text + ": emitd doctor names it"
}

// Is makes errors.Is(err, storage.ErrUnavailable) true.
func (e *LockedError) Is(target error) bool { return target == storage.ErrUnavailable }

// Unwrap returns why the wait ended.
func (e *LockedError) Unwrap() error { return e.Err }

var errClosed = errors.New("the store is closed")

// explain translates errors of the driver into errors that a caller can act on.
func (s *Store) explain(err error) error {
	if err == nil {
		return nil
	}
	file := func(problem, hint string) error {
		return &FileError{Path: s.cfg.Path, Problem: problem, Hint: hint, Err: err}
	}
	switch sqlitefile.Code(err) {
	case lib.SQLITE_BUSY, lib.SQLITE_LOCKED:
		return s.lockError(err)
	case lib.SQLITE_READONLY, lib.SQLITE_PERM:
		return file("cannot be written", "make the file, its -wal and -shm files and its directory writable for this user, on a file system that is not mounted read-only")
	case lib.SQLITE_CANTOPEN:
		return file("cannot be opened or created", "make the file and its directory readable and writable for this user (the -wal, -shm and .wake files are created beside it)")
	case lib.SQLITE_NOTADB:
		return file("is not a SQLite database", "give the path of another file, or move this one away")
	case lib.SQLITE_CORRUPT:
		return file("is damaged", "stop all processes and restore a backup; see \"PRAGMA integrity_check\"")
	case lib.SQLITE_FULL:
		return fmt.Errorf("%w: %w", storage.ErrUnavailable, file("the disk is full", "make room; calls succeed again by themselves"))
	case lib.SQLITE_IOERR, lib.SQLITE_INTERRUPT, lib.SQLITE_PROTOCOL:
		return fmt.Errorf("%w: database file %s: %w", storage.ErrUnavailable, s.cfg.Path, err)
	}
	if errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("%w: database file %s: %w", storage.ErrUnavailable, s.cfg.Path, err)
	}
	return err
}

// lockError makes the error of a call that waited for the lock in vain. The error names the process that holds the
// lock. For a cancelled call it says only that it was cancelled.
func (s *Store) lockError(err error) error {
	if errors.Is(err, context.Canceled) {
		return context.Canceled
	}
	pid, stopped := s.WriteLockHolder()
	if !errors.Is(err, context.DeadlineExceeded) {
		err = errors.Join(context.DeadlineExceeded, err)
	}
	return &LockedError{Path: s.cfg.Path, PID: pid, Stopped: stopped, Err: err}
}

// gone says that the file does not exist any more.
func (s *Store) gone(err error) error {
	return fmt.Errorf("%w: %w", storage.ErrUnavailable, &FileError{
		Path: s.cfg.Path, Problem: "is gone", Err: err,
		Hint: "put it back (it is not created again while processes use it), or stop them all and start again",
	})
}

// locate makes a path absolute and follows symbolic links, so that all processes use the same names
// for the file and for the files beside it.
func locate(path string, mustExist bool) (string, error) {
	bad := func(problem, hint string, err error) (string, error) {
		return "", fmt.Errorf("open store: %w", &FileError{Path: path, Problem: problem, Hint: hint, Err: err})
	}
	if path == ":memory:" {
		return bad("names no file", "use a path, or storage/memory for a store within one process", nil)
	}
	abs, err := filepath.Abs(path)
	if err != nil {
		return "", fmt.Errorf("open store: %w", err)
	}
	dir, err := filepath.EvalSymlinks(filepath.Dir(abs))
	if err != nil {
		return bad("its directory does not exist", "create it: mkdir -p "+filepath.Dir(abs), err)
	}
	if fs := networkFS(dir); fs != "" {
		return bad("is on a network file system ("+fs+"), where SQLite's locks do not hold", "use a directory on a local disk; for several hosts use Postgres", nil)
	}
	abs = filepath.Join(dir, filepath.Base(abs))
	if real, err := filepath.EvalSymlinks(abs); err == nil {
		abs = real
	}
	info, err := os.Stat(abs)
	switch {
	case errors.Is(err, os.ErrNotExist) && mustExist:
		return bad("does not exist", "start a node with this store first, or check the path", nil)
	case errors.Is(err, os.ErrNotExist):
		return abs, nil
	case err != nil:
		return bad("cannot be looked at", "check the permissions of its directory", err)
	case !info.Mode().IsRegular():
		return bad("is not a regular file", "give the path of a file", nil)
	}
	return abs, nil
}
