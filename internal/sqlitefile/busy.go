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

// Code is the driver's primary result code, 0 if err is not of the driver.
func Code(err error) int {
	var e *modernc.Error
	if errors.As(err, &e) {
		return e.Code() & 0xff
	}
	return 0
}

// IsBusy reports whether another connection holds a lock that this one wants. Other drivers are known
// by SQLite's own text.
func IsBusy(err error) bool {
	if err == nil {
		return false
	}
	c := Code(err)
	return c == lib.SQLITE_BUSY || c == lib.SQLITE_LOCKED || strings.Contains(err.Error(), "database is locked")
}

// The pauses between two attempts at a lock: short ones, because the lock is held for about a
// millisecond, and with jitter, because a regular pause may meet a regular writer for ever. SQLite has
// no queue for the lock; short pauses that hardly grow are what keeps writers even.
const (
	shortestPause = 200 * time.Microsecond
	longestPause  = 2 * time.Millisecond
	patientPause  = 20 * time.Millisecond // once somebody holds it for more than a second
)

// RetryBusy calls attempt until it does not find the file locked or ctx ends; then the error says both,
// also when time is up in the middle of an attempt. SQLite's own busy handler is of no use: it cannot be
// interrupted, and it is unfair.
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
