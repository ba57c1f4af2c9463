// Package blob is the contract of an object store: whole objects that are written only if
// unchanged.
//
// # What a bucket is
//
// A bucket maps keys to objects. An object is a byte slice that is written whole and read whole (or
// its beginning). Nothing appends to an object, and no reader sees half of one. [Bucket.Create]
// writes only if the key has no object. [Bucket.Replace] writes only if the object is the one that
// the caller read. When several such calls race for one key, in any number of processes, at most
// one happens.
//
// A bucket is strongly consistent. A call that begins after another returned sees its effect, in
// Read, ReadPrefix, ReadNewer and List alike.
//
// # Versions
//
// A [Version] names the state of one key. It is opaque: compare it for equality, store it, pass it
// back. Its order and its form mean nothing. Writes of different bytes have different versions.
// Writes of the *same* bytes to the same key may have the same version (an S3 ETag is a checksum),
// so an object that goes A, B, A may look unchanged. A caller that replaces objects must therefore
// make each content unique, by a counter or a random number in it. No design may depend on versions
// that never repeat. A version of one key says nothing about another key, nor about another bucket.
//
// # What an error says
//
// A call that only reads changes nothing when it returns an error, and may be repeated. A call that
// writes (Create, Replace, Write, Delete) and returns an error is in one of two classes.
// [NotApplied] tells which:
//
//   - It has *certainly not happened* and never will. The error is of one of the kinds
//     [ErrNotFound], [ErrExists], [ErrChanged], [ErrDenied], [ErrNoBucket], [ErrThrottled],
//     [ErrBudget], [ErrUnavailable], [ErrUnfit], [ErrKey] or [ErrTooLarge], and is not an
//     [ErrUnknownOutcome].
//   - Anything else is an *unknown outcome*. The write has happened, or has not, or will happen
//     later. It may even happen after the process has ended, if a proxy still holds the request.
//     Backends return [ErrUnknownOutcome]; an error of no known kind means the same.
//
// ErrUnknownOutcome takes precedence over every other kind that the same error has. An error that
// is both ErrChanged (or ErrExists) and ErrUnknownOutcome means that the object is now another one.
// Whether the caller's write came before it can no longer be determined.
//
// When the context ends before anything was sent, the error is ErrUnavailable and the context's.
// When it ends later, the error is ErrUnknownOutcome and the context's.
//
// There are two ways to resolve an unknown outcome. One is to read the object and look for a number
// that only this write contains. The other is to repeat the same call with the same bytes. That is
// harmless for Create and Replace, because at most one of the two happens. If the repetition
// returns ErrExists or ErrChanged, another write was first, possibly the caller's own. Backends do
// both by themselves, with a nonce that they store beside the data, until the caller's context
// ends. They return an unknown outcome only if that fails, or if the caller repeats calls itself (the queue's journal does).
//
// # Time
//
// Every call ends soon after its context does. Nothing in this contract needs a clock. The times in
// a listing are the store's and only inform people.
//
// # Keys
//
// A key is 1 to [MaxKey] bytes: segments joined by "/". Each segment has 1 to [MaxSegment] letters,
// digits, ".", "_" and "-" of ASCII, and neither begins nor ends with ".". The caller promises two
// things, because some stores (those on a file system) cannot distinguish such keys. No key is
// another one's directory ("a" and "a/b"), and no two keys differ only in case.
package blob

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
)

// The bounds of a key, an object and a page.
const (
	MaxKey     = 512     // bytes of a key
	MaxSegment = 200     // bytes of a key between two slashes
	MaxSize    = 1 << 30 // bytes of an object
	MaxPage    = 1000    // entries of one List
)

// Bucket is the interface of an object store. Its methods may be called from any goroutine. They
// neither keep nor change the slices that they get; the slices that they return belong to the
// caller. Every method may return ErrDenied, ErrNoBucket, ErrThrottled, ErrBudget, ErrUnavailable
// or ErrKey. The comments of the methods name only the others.
type Bucket interface {
	// Read returns the object and the version of exactly these bytes. Errors: ErrNotFound,
	// ErrCorrupt.
	Read(ctx context.Context, key string) (*Object, error)

	// ReadPrefix returns the first n bytes (n > 0), or all if there are fewer, and the version of
	// the whole object. Errors: ErrNotFound, ErrCorrupt.
	ReadPrefix(ctx context.Context, key string, n int) (*Object, error)

	// ReadNewer is like Read, but while the object has the version that the caller knows, it
	// transfers nothing and returns ErrNotModified. Errors: ErrNotModified, ErrNotFound, ErrCorrupt.
	ReadNewer(ctx context.Context, key string, known Version) (*Object, error)

	// Create writes a key that has no object. Errors: ErrExists, ErrUnknownOutcome, ErrTooLarge.
	Create(ctx context.Context, key string, data []byte) (Version, error)

	// Replace writes the key if its object still has the version old, which is never empty. For a
	// key without object it returns ErrChanged. Errors: ErrChanged, ErrUnknownOutcome, ErrTooLarge.
	Replace(ctx context.Context, key string, data []byte, old Version) (Version, error)

	// Write writes without condition. Use it only for keys that one process alone writes, and that
	// no process creates or replaces: a late Write overwrites a newer one. Errors:
	// ErrUnknownOutcome, ErrTooLarge.
	Write(ctx context.Context, key string, data []byte) (Version, error)

	// List returns the keys that begin with prefix and sort after `after` (both may be empty), in
	// the order of their bytes, at most limit of them: 0 and more than MaxPage mean MaxPage.
	// A prefix need not end at a slash.
	List(ctx context.Context, prefix, after string, limit int) (*Page, error)

	// Delete removes the object, without condition. It is no error if there is none. A late
	// deletion removes what was created since, so do not use a name twice where that matters.
	// Errors: ErrUnknownOutcome.
	Delete(ctx context.Context, key string) error
}

// Version names one state of one key; the package comment says what it does not promise. The empty
// Version belongs to no object.
type Version string

// Object is an object as it was read.
type Object struct {
	Data    []byte
	Version Version
}

// Entry is one line of a listing.
type Entry struct {
	Key      string
	Version  Version // as Read would return it; empty: the object cannot be read
	Size     int64
	Modified time.Time // by a clock of the store, coarse; for people only
}

// Page is one answer of List. If More is set, the next page begins after the last entry's key. A
// page may hold fewer entries than requested and still not be the last.
type Page struct {
	Entries []Entry
	More    bool
}

// The kinds of errors. Compare with errors.Is. The package comment says what each class promises.
var (
	ErrNotFound       = errors.New("no such object")
	ErrExists         = errors.New("the object already exists")
	ErrChanged        = errors.New("the object is not the one that was read")
	ErrNotModified    = errors.New("the object is the known one")
	ErrUnknownOutcome = errors.New("it is not known whether the write was or will be applied")
	ErrDenied         = errors.New("permission denied")
	ErrNoBucket       = errors.New("no such bucket")
	ErrThrottled      = errors.New("the store requests a lower rate")
	ErrBudget         = errors.New("the budget of requests is used up")
	ErrUnavailable    = errors.New("the store is not available")
	ErrCorrupt        = errors.New("the object differs from what was written")
	ErrKey            = errors.New("not a valid key")
	ErrTooLarge       = errors.New("the object is too large")
	ErrUnfit          = errors.New("the store violates the contract")
)

// certain are the kinds that say a write has not happened and never will.
var certain = []error{
	ErrNotFound, ErrExists, ErrChanged, ErrDenied, ErrNoBucket, ErrThrottled,
	ErrBudget, ErrUnavailable, ErrUnfit, ErrKey, ErrTooLarge,
}

// NotApplied reports whether a call that returned err has certainly not changed anything and never
// will. It is false for nil, for every ErrUnknownOutcome and for errors of no kind of this package.
func NotApplied(err error) bool {
	if err == nil || errors.Is(err, ErrUnknownOutcome) {
		return false
	}
	for _, kind := range certain {
		if errors.Is(err, kind) {
			return true
		}
	}
	return false
}

// Error is the form of the backends' errors. It never contains credentials, signed addresses or
// data.
type Error struct {
	Op         string        // read, create, replace, write, list, delete, keep
	Key        string        // or the prefix of a list
	Kind       error         // one of the kinds above; nil if there is none but Unknown
	Unknown    bool          // it is also an ErrUnknownOutcome
	RetryAfter time.Duration // of an ErrThrottled or ErrBudget, if known
	Status     int           // of HTTP, if the store answered; 0 otherwise
	Err        error         // the cause
}

// Error returns as one text what was attempted, the kind and the cause.
func (e *Error) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %q", e.Op, e.Key)
	if e.Kind != nil {
		fmt.Fprintf(&b, ": %v", e.Kind)
	}
	if e.Unknown {
		fmt.Fprintf(&b, ": %v", ErrUnknownOutcome)
	}
	if e.RetryAfter > 0 {
		fmt.Fprintf(&b, " (retry after %s)", e.RetryAfter)
	}
	if e.Err != nil {
		fmt.Fprintf(&b, ": %v", e.Err)
	}
	return b.String()
}

// Unwrap makes errors.Is find the kind, ErrUnknownOutcome and the cause.
func (e *Error) Unwrap() []error {
	wrapped := make([]error, 0, 3)
	if e.Kind != nil {
		wrapped = append(wrapped, e.Kind)
	}
	if e.Unknown {
		wrapped = append(wrapped, ErrUnknownOutcome)
	}
	if e.Err != nil {
		wrapped = append(wrapped, e.Err)
	}
	return wrapped
}

// RetryAfter returns how long the store or the budget asks the caller to wait, 0 if it does not
// say.
func RetryAfter(err error) time.Duration {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.RetryAfter
	}
	return 0
}
