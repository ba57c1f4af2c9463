package queue

import (
	"errors"
	"fmt"
	"time"
)

// Tag names a kind of refusal; clients act upon it. Tags are part of the interface.
type Tag string

// The tags.
const (
	BadRequest      Tag = "BadRequest"       // 400: what was sent makes no sense
	Unauthorized    Tag = "Unauthorized"     // 401: no token, or not this one
	JobNotFound     Tag = "JobNotFound"      // 404: no such job, or forgotten after the dedup window
	QueueNotFound   Tag = "QueueNotFound"    // 404: no such queue
	StaleClaim      Tag = "StaleClaim"       // 409: the claim is over, settled or forged
	TooManyShards   Tag = "TooManyShards"    // 409: the queues of the cluster would have more shards than it may have
	PayloadTooLarge Tag = "PayloadTooLarge"  // 413
	TooManyJobs     Tag = "TooManyJobs"      // 400: too many in one call
	QueueFull       Tag = "QueueFull"        // 429: no memory for more; try later
	QueueNotOwner   Tag = "QueueNotOwner"    // 503: this broker may not answer now; ask again
	Unavailable     Tag = "QueueUnavailable" // 503: no broker is known; try later
	Damaged         Tag = "QueueDamaged"     // 503: stored objects are missing or damaged; an operator must look
	UnknownOutcome  Tag = "UnknownOutcome"   // 503: it may have happened; repeat with the same ID or key
)

// Error is a refusal: what, why, and what to do.
type Error struct {
	Tag     Tag
	Message string // what and why
	Hint    string // what to do; may be empty
	// RetryAfter is when to try again; 0: the tag says whether at all.
	RetryAfter time.Duration
	Holder     string // address of the broker to ask instead, if known
	cause      error
}

// Error returns the message with the tag.
func (e *Error) Error() string { return fmt.Sprintf("%s: %s", e.Tag, e.Message) }

// Unwrap returns what lies beneath, if anything.
func (e *Error) Unwrap() error { return e.cause }

// Is reports whether target is an *Error of the same tag, so that errors.Is(err,
// &queue.Error{Tag: queue.StaleClaim}) asks for the kind.
func (e *Error) Is(target error) bool {
	t, ok := target.(*Error)
	return ok && t.Tag == e.Tag
}

// Refuse makes an Error.
func Refuse(tag Tag, format string, args ...any) *Error {
	err := fmt.Errorf(format, args...)
	cause := errors.Unwrap(err)
	if _, several := err.(interface{ Unwrap() []error }); several {
		cause = err
	}
	return &Error{Tag: tag, Message: err.Error(), cause: cause}
}

// WithHint says what to do about it.
func (e *Error) WithHint(format string, args ...any) *Error {
	e.Hint = fmt.Sprintf(format, args...)
	return e
}

// TagOf returns the tag of an error, or "" if it has none.
func TagOf(err error) Tag {
	if e, ok := errors.AsType[*Error](err); ok {
		return e.Tag
	}
	return ""
}
