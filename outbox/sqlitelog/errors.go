package sqlitelog

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	modernc "modernc.org/sqlite"
	lib "modernc.org/sqlite/lib"

	"github.com/emitd/emitd/outbox"
)

var (
	// errReplaced says that the database file is not the one that was opened.
	errReplaced = fmt.Errorf("%w: the database file was replaced by another one", outbox.ErrMoved)
	errClosed   = errors.New("the log is closed")
)

const hintMigrate = "migrate it (emitd migrate up, or sqlitelog.Migrate)"

// code is the driver's primary result code, 0 if err is not of the driver.
func code(err error) int {
	var e *modernc.Error
	if errors.As(err, &e) {
		return e.Code() & 0xff
	}
	return 0
}

// isBusy reports whether another connection holds a lock that this one wants. Other drivers are
// known by SQLite's own text.
func isBusy(err error) bool {
	if err == nil {
		return false
	}
	c := code(err)
	return c == lib.SQLITE_BUSY || c == lib.SQLITE_LOCKED || strings.Contains(err.Error(), "database is locked")
}

// explain says what was attempted and, where it is known, what to do.
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
	case isBusy(err):
		hint = "another transaction writes to the file, or this one read before it wrote (begin with InTx, or BEGIN IMMEDIATE)"
	case code(err) == lib.SQLITE_READONLY, code(err) == lib.SQLITE_PERM:
		hint = "make the file, its -wal and -shm files and its directory writable for this user"
	case code(err) == lib.SQLITE_CANTOPEN:
		hint = "the file or its directory is not there or not accessible for this user"
	case code(err) == lib.SQLITE_NOTADB:
		hint = "this is not a SQLite database"
	case code(err) == lib.SQLITE_CORRUPT:
		hint = "the file is damaged: stop all processes and restore a backup"
	case code(err) == lib.SQLITE_FULL:
		hint = "the disk is full; calls succeed again once there is room"
	}
	if hint != "" {
		return fmt.Errorf("%s: %s: %w", what, hint, err)
	}
	return fmt.Errorf("%s: %w", what, err)
}

// The pauses between two attempts at a lock: short, because it is held for about a millisecond, and
// with jitter, because a regular pause may meet a regular writer for ever.
const (
	firstPause   = 200 * time.Microsecond
	longestPause = 2 * time.Millisecond
	patientPause = 20 * time.Millisecond // once somebody holds it for more than a second
)

// retryBusy calls attempt until it does not find the file locked or ctx ends. SQLite's own busy
// handler is of no use: it cannot be interrupted, and it is unfair.
func retryBusy(ctx context.Context, attempt func() error) error {
	began, pause := time.Now(), firstPause
	for err := error(nil); ; {
		if ctx.Err() != nil {
			return errors.Join(ctx.Err(), err)
		}
		switch now := attempt(); {
		case isBusy(now):
			err = now
		case now != nil && ctx.Err() != nil: // its time was up in the middle of an attempt
			return errors.Join(ctx.Err(), cmp.Or(err, now))
		default:
			return now
		}
		timer := time.NewTimer(pause/2 + rand.N(pause)) //nolint:gosec // jitter is no secret
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return errors.Join(ctx.Err(), err)
		}
		if pause = min(pause*3/2, longestPause); time.Since(began) > time.Second {
			pause = patientPause
		}
	}
}
