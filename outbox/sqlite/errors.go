package sqlite

import (
	"errors"
	"fmt"
	"strings"

	lib "modernc.org/sqlite/lib"

	"github.com/emitd/emitd/internal/sqlitefile"
	"github.com/emitd/emitd/outbox"
)

var (
	// errReplaced says that the database file is not the one that was opened.
	errReplaced = fmt.Errorf("%w: the database file was replaced by another one", outbox.ErrMoved)
	errClosed   = errors.New("the log is closed")
)

const hintMigrate = "migrate it (emitd migrate up, or sqlite.Migrate of emitd/outbox/sqlite)"

// explain adds to an error what was attempted and, if it is known, what to do.
func explain(what, file string, err error) error {
	if err == nil {
		return nil
	}
	if file != "" {
		what += " in " + file
	}
	hint := ""
	switch text := err.Error(); {
	case errors.Is(err, outbox.ErrFenced), errors.Is(err, outbox.ErrNotFound), errors.Is(err, outbox.ErrSchema), errors.Is(err, outbox.ErrMoved):
	case strings.Contains(text, "no such table"), strings.Contains(text, "no such column"), strings.Contains(text, "has no column named"):
		return fmt.Errorf("%s: %w: the outbox's tables are missing or of another version: %s: %w", what, outbox.ErrSchema, hintMigrate, err)
	case sqlitefile.IsBusy(err):
		hint = "another transaction writes to the file, or this one read before it wrote (begin with InTx, or BEGIN IMMEDIATE)"
	case sqlitefile.Code(err) == lib.SQLITE_READONLY, sqlitefile.Code(err) == lib.SQLITE_PERM:
		hint = "make the file, its -wal and -shm files and its directory writable for this user"
	case sqlitefile.Code(err) == lib.SQLITE_CANTOPEN:
		hint = "the file or its directory is not there or not accessible for this user"
	case sqlitefile.Code(err) == lib.SQLITE_NOTADB:
		hint = "this is not a SQLite database"
	case sqlitefile.Code(err) == lib.SQLITE_CORRUPT:
		hint = "the file is damaged: stop all processes and restore a backup"
	case sqlitefile.Code(err) == lib.SQLITE_FULL:
		hint = "the disk is full; calls succeed again once there is room"
	}
	if hint != "" {
		return fmt.Errorf("%s: %s: %w", what, hint, err)
	}
	return fmt.Errorf("%s: %w", what, err)
}
