package owner

import (
	"errors"
	"fmt"

	"github.com/emitd/emitd/queue/internal/journal/format"
)

// The kinds of errors; package journal documents them.
var (
	ErrFenced     = errors.New("another owner has taken the journal over")
	ErrOtherStore = errors.New("the journal belongs to another cluster store")
	ErrGeneration = errors.New("the journal was owned by a higher generation")
	ErrCorrupt    = errors.New("an object of the journal is corrupt")
	ErrNewer      = errors.New("an object of the journal has a newer format")
	ErrMissing    = errors.New("an object of the journal is missing")
	ErrFull       = errors.New("too many bytes are not acknowledged yet")
	ErrTooLarge   = errors.New("the records are too large for one call")
	ErrClosed     = errors.New("the log is closed")
	ErrBusy       = errors.New("a checkpoint is being written")
	ErrRepairing  = errors.New("a repair of the journal has begun and has not ended")
)

// GenerationError is an ErrGeneration; see package journal.
type GenerationError struct {
	Generation, Held, Floor int64
	Owner                   string
}

// Error names both generations.
func (e *GenerationError) Error() string {
	return fmt.Sprintf("generation %d: %v: generation %d of %q; the next must be at least %d",
		e.Generation, ErrGeneration, e.Held, e.Owner, e.Floor)
}

// Is makes errors.Is(err, ErrGeneration) true.
func (e *GenerationError) Is(target error) bool { return target == ErrGeneration }

// ObjectError names an object that is corrupt, newer, missing or foreign, and why.
type ObjectError struct {
	Key  string
	Kind error
	Err  error // may be nil
}

// Error names the object.
func (e *ObjectError) Error() string {
	if e.Err == nil {
		return fmt.Sprintf("%s: %v", e.Key, e.Kind)
	}
	return fmt.Sprintf("%s: %v: %v", e.Key, e.Kind, e.Err)
}

// Unwrap makes errors.Is find the kind.
func (e *ObjectError) Unwrap() []error { return []error{e.Kind, e.Err} }

// broken makes the error for an object that package format could not decode.
func broken(key string, err error) error {
	kind := ErrCorrupt
	if errors.Is(err, format.ErrNewer) {
		kind = ErrNewer
	}
	return &ObjectError{Key: key, Kind: kind, Err: err}
}

// corrupt makes the error for an object with impossible content.
func corrupt(key, format string, args ...any) error {
	return &ObjectError{Key: key, Kind: ErrCorrupt, Err: fmt.Errorf(format, args...)}
}
