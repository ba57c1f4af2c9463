package queue

import (
	"errors"
	"fmt"
	"time"
)

// Tag is a kind of refusal that clients act on. Tags are part of the interface.
type Tag string

// The tags.
const (
	BadRequest      Tag = "BadRequest"       // 400: the request makes no sense
	Unauthorized    Tag = "Unauthorized"     // 401: no token, or the wrong one
	JobNotFound     Tag = "JobNotFound"      // 404: no such job, or it ended before the deduplication window
	QueueNotFound   Tag = "QueueNotFound"    // 404: no such queue
	StaleClaim      Tag = "StaleClaim"       // 409: the claim is over, was settled, or its token is forged
	TooManyShards   Tag = "TooManyShards"    // 409: the cluster's queues would have more shards than its limit
	ReshardConflict Tag = "ReshardConflict"  // 409: the number of the queue's shards is being changed to another one
	PayloadTooLarge Tag = "PayloadTooLarge"  // 413
	TooManyJobs     Tag = "TooManyJobs"      // 400: too many in one call
	QueueFull       Tag = "QueueFull"        // 429: no memory for more; try again later
	QueueNotOwner   Tag = "QueueNotOwner"    // 503: this broker does not own the shard now; ask again
	Unavailable     Tag = "QueueUnavailable" // 503: no broker is known, or the store cannot be reached; try again later
	Damaged         Tag = "QueueDamaged"     // 503: stored objects are missing or damaged; an operator must act
	UnknownOutcome  Tag = "UnknownOutcome"   // 503: the call may have had an effect; repeat it with the same ID or key
)

// Error is a refusal with its reason and a hint.
type Error struct {
	Tag     Tag
	Message string // what was refused, and why
	Hint    string // what to do about it; may be empty
	// RetryAfter is the time after which to try again; 0: the tag decides whether to try at
	// all.
	RetryAfter time.Duration
	Holder     string // address of the broker to ask instead, if known
	cause      error
}

// Error returns the message with the tag.
func (e *Error) Error() string { return fmt.Sprintf("%s: %s", e.Tag, e.Message) }

// Unwrap returns the cause, if there is one.
func (e *Error) Unwrap() error { return e.cause }

// Is reports whether target is an *Error with the same tag. So errors.Is(err, &queue.Error{Tag:
// queue.StaleClaim}) tests for the kind.
func (e *Error) Is(target error) bool {
	t, ok := target.(*Error)
	return ok && t.Tag == e.Tag
}

// Refuse makes an Error. The format may wrap a cause with %w.
func Refuse(tag Tag, format string, args ...any) *Error {
	err := fmt.Errorf(format, args...)
	cause := errors.Unwrap(err)
	if _, several := err.(interface{ Unwrap() []error }); several {
		cause = err
	}
	return &Error{Tag: tag, Message: err.Error(), cause: cause}
}

// WithHint sets the hint and returns e.
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
