package object

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/emitd/emitd/storage"
	"github.com/emitd/emitd/storage/blob"
)

// The bounds of how often one request is repeated that failed in a way that passes, and one that
// brought half an object, or one that is broken for good.
const (
	tries        = 8
	corruptTries = 3
)

// The pauses between the repetitions: they double, and are jittered down to a half.
const (
	firstPause = 20 * time.Millisecond
	maxPause   = time.Second
)

// insist repeats a request that may be repeated while it fails in a way that passes by itself, at
// most tries times and not beyond ctx.
func (s *Store) insist(ctx context.Context, request func() error) error {
	pause, corrupt := firstPause, 0
	for try := 1; ; try++ {
		err := request()
		if errors.Is(err, blob.ErrCorrupt) {
			corrupt++
		}
		if err == nil || !passes(err) || try == tries || corrupt == corruptTries || ctx.Err() != nil {
			return err
		}
		wait := max(pause/2+rand.N(pause/2), blob.RetryAfter(err)) //nolint:gosec // jitter is no secret
		if ended := sleep(ctx, wait); ended != nil {
			return fmt.Errorf("%w (%w)", err, ended)
		}
		pause = min(2*pause, maxPause)
	}
}

// passes reports whether the same request may succeed later. Half an object is what a broken
// connection leaves; what is really broken stays so.
func passes(err error) bool {
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

// sleep waits, or returns why not to the end.
func sleep(ctx context.Context, d time.Duration) error {
	if err := ctx.Err(); err != nil || d <= 0 {
		return err
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// readNewer reads an object; nil says that it is still the known one.
func (s *Store) readNewer(ctx context.Context, key string, known blob.Version) (*blob.Object, error) {
	if known == "" {
		return s.bucket.Read(ctx, key)
	}
	o, err := s.bucket.ReadNewer(ctx, key, known)
	if errors.Is(err, blob.ErrUnchanged) {
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

// attempted says what failed, and translates the bucket's words for what passes by itself; nil
// stays nil.
func attempted(err error, format string, args ...any) error {
	if err == nil {
		return nil
	}
	what := fmt.Sprintf(format, args...)
	if passes(err) || errors.Is(err, blob.ErrBudget) {
		return fmt.Errorf("%s: %w: %w", what, storage.ErrUnavailable, err)
	}
	return fmt.Errorf("%s: %w", what, err)
}
