package sqlitefile

import (
	"cmp"
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"time"

	modernc "modernc.org/sqlite"
	lib "modernc.org/sqlite/lib"
)

// Code returns the driver's primary result code, 0 if err does not come from the driver.
func Code(err error) int {
	var e *modernc.Error
	if errors.As(err, &e) {
		return e.Code() & 0xff
	}
	return 0
}

// IsBusy reports whether another connection holds a lock that this one needs. Errors of other
// drivers are recognised by SQLite's own text.
func IsBusy(err error) bool {
	if err == nil {
		return false
	}
	c := Code(err)
	return c == lib.SQLITE_BUSY || c == lib.SQLITE_LOCKED || strings.Contains(err.Error(), "database is locked")
}

// The pauses between two attempts to get a lock. They are short, because the lock is held for about
// a millisecond. They have jitter, because a regular pause could meet a regular writer again and
// again. SQLite has no queue for the lock; short pauses that hardly grow treat the writers equally.
const (
	shortestPause = 200 * time.Microsecond
	longestPause  = 2 * time.Millisecond
	patientPause  = 20 * time.Millisecond // after more than a second of waiting
)

// RetryBusy calls attempt until the file is not locked or ctx ends. If ctx ends, even in the middle
// of an attempt, the error contains both the context's error and what the call waited for. SQLite's
// own busy handler is not used, because it cannot be interrupted and is unfair.
func RetryBusy(ctx context.Context, attempt func() error) error {
	began, pause := time.Now(), shortestPause
	for err := error(nil); ; {
		if ctx.Err() != nil {
			return errors.Join(ctx.Err(), err)
		}
		switch now := attempt(); {
		case IsBusy(now):
			err = now
		case now == nil || ctx.Err() == nil || err == nil && errors.Is(now, ctx.Err()):
			return now
		default:
			return errors.Join(ctx.Err(), cmp.Or(err, now))
		}
		timer := time.NewTimer(pause/2 + rand.N(pause))
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
