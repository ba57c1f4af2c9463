package object

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/emitd/emitd/internal/backoff"
	"github.com/emitd/emitd/storage"
	"github.com/emitd/emitd/storage/blob"
)

// tries bounds how often a request is sent that fails in a way that passes by itself. corruptTries
// bounds it for one that returns half an object, or an object that is broken for good.
const (
	tries        = 8
	corruptTries = 3
)

// maxPause is the longest pause between two repetitions.
const maxPause = time.Second

var retries = backoff.Policy{First: 20 * time.Millisecond, Limit: maxPause}

// retry repeats a request while it fails in a way that passes by itself, at most tries times and
// not beyond ctx. The request must be repeatable.
func (s *Store) retry(ctx context.Context, request func() error) error {
	corrupt := 0
	for try := 1; ; try++ {
		err := request()
		if errors.Is(err, blob.ErrCorrupt) {
			corrupt++
		}
		if err == nil || !isTransient(err) || try == tries || corrupt == corruptTries || ctx.Err() != nil {
			return err
		}
		wait := max(retries.Jittered(try), blob.RetryAfter(err))
		if ended := backoff.Sleep(ctx, wait); ended != nil {
			return fmt.Errorf("%w (%w)", err, ended)
		}
	}
}

// isTransient reports whether the same request may succeed later. A corrupt object counts, because a
// broken connection may have cut it in half. One that is really corrupt stays so; see corruptTries.
func isTransient(err error) bool {
	for _, kind := range []error{blob.ErrUnknownOutcome, blob.ErrUnavailable, blob.ErrThrottled, blob.ErrCorrupt} {
		if errors.Is(err, kind) {
			return true
		}
	}
	return false
}

// isConflict reports whether a conditional write found another object than the known one.
func isConflict(err error) bool {
	return errors.Is(err, blob.ErrChanged) || errors.Is(err, blob.ErrExists)
}

// readNewer reads an object; nil says that it is still the known one.
func (s *Store) readNewer(ctx context.Context, key string, known blob.Version) (*blob.Object, error) {
	if known == "" {
		return s.bucket.Read(ctx, key)
	}
	o, err := s.bucket.ReadNewer(ctx, key, known)
	if errors.Is(err, blob.ErrNotModified) {
		return nil, nil
	}
	return o, err
}

// put creates the object, or replaces the known one.
func (s *Store) put(ctx context.Context, key string, data []byte, old blob.Version) (blob.Version, error) {
	if old == "" {
		return s.bucket.Create(ctx, key, data)
	}
	return s.bucket.Replace(ctx, key, data, old)
}

// wrapErr says what failed, and marks errors that pass by themselves as storage.ErrUnavailable, and the bound of the
// cluster object as storage.ErrFull. A nil error stays nil.
func wrapErr(err error, format string, args ...any) error {
	if err == nil {
		return nil
	}
	what := fmt.Sprintf(format, args...)
	switch {
	case isTransient(err) || errors.Is(err, blob.ErrBudget):
		return fmt.Errorf("%s: %w: %w", what, storage.ErrUnavailable, err)
	case errors.Is(err, blob.ErrTooLarge):
		return fmt.Errorf("%s: %w: %w", what, storage.ErrFull, err)
	}
	return fmt.Errorf("%s: %w", what, err)
}
