// Package progress tells a relay, while it calls a sink, how the call goes on.
package progress

import (
	"context"
	"errors"
	"time"
)

// stallTimer ends a call that goes on for too long without progress.
type stallTimer struct {
	timer *time.Timer
	limit time.Duration
}

type stallTimerKey struct{}

// WithTimeout returns the context of a call. It ends when limit has passed without progress, with the cause
// context.DeadlineExceeded.
func WithTimeout(ctx context.Context, limit time.Duration) (context.Context, context.CancelFunc) {
	ctx, end := context.WithCancelCause(ctx)
	p := &stallTimer{limit: limit, timer: time.AfterFunc(limit, func() { end(context.DeadlineExceeded) })}
	return context.WithValue(ctx, stallTimerKey{}, p), func() { p.timer.Stop(); end(nil) }
}

// Report says that the receiver has taken a message of the call. The call's time limit starts anew, so that a
// receiver which is slow is not taken for one that hangs.
func Report(ctx context.Context) {
	if p, ok := ctx.Value(stallTimerKey{}).(*stallTimer); ok && ctx.Err() == nil {
		p.timer.Reset(p.limit)
	}
}

type reportKey struct{}

// WithReport returns a context in which [Taken] calls report.
func WithReport(ctx context.Context, report func(i int)) context.Context {
	return context.WithValue(ctx, reportKey{}, report)
}

// Taken reports that the receiver has taken row i, before the call that sends it has ended. Without it, rows
// that were taken count as not confirmed if ctx ends while the call waits for others.
func Taken(ctx context.Context, i int) {
	if report, ok := ctx.Value(reportKey{}).(func(i int)); ok {
		report(i)
	}
	Report(ctx)
}

// unansweredError is the error of a message to which the receiver gave no answer.
type unansweredError struct{ error }

func (e unansweredError) Unwrap() error { return e.error }

// Unanswered marks the error of a message for which the receiver broke the connection and said nothing, or said
// nothing for too long. Either the message is the cause, or the receiver answers nobody: the relay finds out which.
func Unanswered(err error) error { return unansweredError{err} }

// IsUnanswered reports whether an error is one of [Unanswered].
func IsUnanswered(err error) bool {
	_, is := errors.AsType[unansweredError](err)
	return is
}
