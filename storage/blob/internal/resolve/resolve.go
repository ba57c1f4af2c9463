// Package resolve finds out the outcome of a write to a store across a network.
//
// A conditional write (create if absent, replace if unchanged) is sent once at a time. The result
// is an [Effect]. Timeouts and broken connections leave it unknown.
// Each write stores a nonce beside its data. If the outcome is unknown, the writer reads the object
// back:
//
//	nonce is mine                     it has happened
//	object is as the condition wants  send the same bytes under the same condition again
//	object is another one             ErrExists or ErrChanged; also ErrUnknownOutcome, if an earlier
//	                                  attempt may have happened and been replaced since
//	cannot read                       wait, read again
//
// Sending again is harmless even while the first request is still under way. Both have the same
// condition, and once one of them has happened, the condition is false for the other. A refusal
// (412) after an attempt with unknown outcome may be caused by the caller's own write, so the
// object is read in this case too. A conflict (409) means that the store was busy with the key:
// this attempt has not happened; read and send again.
//
// A call ends with the caller's context at the latest, and after Limit if that context has no
// deadline. AttemptTimeout bounds a single attempt, so that one dead connection does not use up the
// call's time. A context of [backoff.Once] ends it before the first pause.
//
// The package works on one call at a time and starts no goroutines.
package resolve

import (
	"cmp"
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/emitd/emitd/internal/backoff"
	"github.com/emitd/emitd/storage/blob"
)

// Effect is what one request says about its effect.
type Effect int

// The effects.
const (
	Done     Effect = iota // it has happened, or it is the requested answer
	Refused                // the condition does not hold (412); it has not happened
	Conflict               // the store is busy with the key (409); it has not happened
	Failed                 // it has not happened, and sending again does not help
	NotSent                // it has not happened; sending again may help
	Unknown                // the outcome is unknown
)

// Answer is the result of one request.
type Answer struct {
	Effect  Effect
	Version blob.Version
	Err     *blob.Error // of every effect but Done
}

// ObjectInfo is what reading an object's metadata found.
type ObjectInfo struct {
	Exists  bool
	Nonce   string
	Version blob.Version
}

// Policy bounds the repetitions of one call. Its zero value is usable.
type Policy struct {
	blob.RetryPolicy

	traced bool // see Over
}

// Over returns the policy for calls through a client; nil is the default client of net/http. The
// transports of net/http report each connection that a request gets, so no report means that
// nothing was sent.
func Over(client *http.Client, p blob.RetryPolicy) Policy {
	transport := http.DefaultTransport
	if client != nil && client.Transport != nil {
		transport = client.Transport
	}
	_, traced := transport.(*http.Transport)
	return Policy{p, traced}
}

func (p Policy) attemptTimeout(size int) time.Duration {
	timeout := p.AttemptTimeout
	if timeout == 0 {
		timeout = 15 * time.Second
	}
	return timeout + time.Duration(size>>20)*time.Second
}

func (p Policy) bound(ctx context.Context) (context.Context, context.CancelFunc) {
	if _, bounded := ctx.Deadline(); bounded {
		return ctx, func() {}
	}
	limit := p.Limit
	if limit == 0 {
		limit = time.Minute
	}
	return context.WithTimeout(ctx, limit)
}

// pause waits before attempt n (1 is the first repetition). The wait is random between half and all
// of a growing time, or what the store asked for if that is longer. The error says why there is no further attempt.
func (p Policy) pause(ctx context.Context, n int, retryAfter time.Duration) error {
	if !backoff.Retries(ctx) {
		return errCallerRepeats
	}
	base := cmp.Or(p.Pause, 50*time.Millisecond)
	d := max(backoff.Policy{First: base, Limit: 40 * base}.Jittered(n), retryAfter)
	if deadline, ok := ctx.Deadline(); ok && time.Until(deadline) <= d {
		return context.DeadlineExceeded // the context would end during the pause, so return at once
	}
	return backoff.Sleep(ctx, d)
}

// errCallerRepeats is the error of a call without retries.
var errCallerRepeats = errors.New("sent once")

// Call is one conditional write.
type Call struct {
	Op, Key string
	Size    int
	Nonce   string
	Kind    error        // the kind of a refusal: blob.ErrExists or blob.ErrChanged
	Old     blob.Version // the version that the object must have; empty: there must be none
	Send    func(context.Context) Answer
	Stat    func(context.Context) (ObjectInfo, Answer)

	// ReadTwice is for stores that may answer a read of the metadata with the nonce of one write and
	// the version of the next. The caller's own nonce then counts only if a second read returns the
	// same. What the first read returned was then the object at some moment in between, because a
	// nonce does not come back.
	ReadTwice bool
}

// conditionalWrite is a conditional write in progress.
type conditionalWrite struct {
	Policy
	Call
	pauses         int  // so far
	refusals       int  // so far
	outcomeUnknown bool // an attempt may have happened
}

// Write carries out a conditional write.
func (p Policy) Write(ctx context.Context, call Call) (blob.Version, error) {
	ctx, cancel := p.bound(ctx)
	defer cancel()
	if err := ctx.Err(); err != nil {
		return "", &blob.Error{Op: call.Op, Key: call.Key, Kind: blob.ErrUnavailable, Err: err}
	}
	w := &conditionalWrite{Policy: p, Call: call}
	for {
		answer := p.once(ctx, call.Size, call.Send)
		switch answer.Effect {
		case Done:
			return answer.Version, nil
		case Failed:
			return "", call.finish(answer.Err, w.outcomeUnknown)
		case Refused:
			w.refusals++
		case Unknown:
			w.outcomeUnknown = true
		case Conflict, NotSent:
		}
		version, again, err := w.readBack(ctx, answer)
		if !again {
			return version, err
		}
	}
}

// readBack reads the object back until it is clear what to do. again asks to send the write again.
func (w *conditionalWrite) readBack(ctx context.Context, answer Answer) (v blob.Version, again bool, err error) {
	refused := answer.Effect == Refused
	for last, first := answer.Err, true; ; first = false {
		if stopped := w.pauseBeforeNext(ctx, first && refused, last.RetryAfter); stopped != nil {
			if refused && !w.outcomeUnknown {
				return "", false, w.finish(&blob.Error{Kind: w.Kind}, false) // rely on the store's refusal
			}
			return "", false, w.ended(last, stopped, w.outcomeUnknown)
		}
		if answer.Effect == NotSent && !w.outcomeUnknown {
			return "", true, nil // this call has changed nothing
		}
		var seen ObjectInfo
		stat := w.once(ctx, 0, func(ctx context.Context) (a Answer) { seen, a = w.Stat(ctx); return a })
		switch {
		case stat.Effect == Failed && refused && !w.outcomeUnknown:
			return "", false, w.finish(&blob.Error{Kind: w.Kind}, false)
		case stat.Effect == Failed:
			return "", false, w.finish(stat.Err, w.outcomeUnknown)
		case stat.Effect != Done:
			last = stat.Err
			continue
		case seen.Exists && seen.Nonce == w.Nonce:
			w.outcomeUnknown = true // it has happened; from now on it can only have been replaced
			if !w.ReadTwice || w.same(ctx, seen) {
				return seen.Version, false, nil
			}
			last = &blob.Error{Kind: blob.ErrUnavailable, Err: errDiffer}
			continue
		case w.holds(seen) && w.refusals < maxRefusals:
			return "", true, nil
		}
		return "", false, w.finish(&blob.Error{Kind: w.Kind}, w.outcomeUnknown)
	}
}

// errDiffer is the error if a second read differs from the first.
var errDiffer = errors.New("the object changed between two reads")

// same reads a second time, and reports whether the result is the same.
func (w *conditionalWrite) same(ctx context.Context, first ObjectInfo) bool {
	var second ObjectInfo
	stat := w.once(ctx, 0, func(ctx context.Context) (a Answer) { second, a = w.Stat(ctx); return a })
	return stat.Effect == Done && second == first
}

// maxRefusals bounds how often a refusal is not believed although the condition seems to be true.
const maxRefusals = 4

// holds reports whether the object is as the condition wants it.
func (w *conditionalWrite) holds(seen ObjectInfo) bool {
	return seen.Exists == (w.Old != "") && seen.Version == w.Old
}

// pauseBeforeNext pauses before the next request, unless the object should be read at once.
func (w *conditionalWrite) pauseBeforeNext(ctx context.Context, atOnce bool, retryAfter time.Duration) error {
	if atOnce && w.refusals == 1 {
		return ctx.Err()
	}
	w.pauses++
	return w.pause(ctx, w.pauses, retryAfter)
}

// finish adds the call to its error. With doubt, the error is an ErrUnknownOutcome.
func (c Call) finish(e *blob.Error, doubt bool) error {
	e.Op, e.Key = c.Op, c.Key
	e.Unknown = doubt
	return e
}

// ended is the error of a call whose time is over.
func (c Call) ended(last *blob.Error, stopped error, doubt bool) error {
	e := &blob.Error{Kind: blob.ErrUnavailable, Err: stopped}
	if last != nil {
		e.Kind, e.RetryAfter, e.Status, e.Err = last.Kind, last.RetryAfter, last.Status, withCause(stopped, last.Err)
	}
	if e.Kind == nil && !doubt {
		e.Kind = blob.ErrUnavailable
	}
	return c.finish(e, doubt)
}

// withCause joins the end of the context and the last error before it, in one line. An error that says both stays alone.
func withCause(stopped, cause error) error {
	switch {
	case cause == nil:
		return stopped
	case errors.Is(cause, stopped):
		return cause
	}
	return &both{stopped, cause}
}

type both struct{ stopped, cause error }

func (b *both) Error() string   { return b.stopped.Error() + ", after: " + b.cause.Error() }
func (b *both) Unwrap() []error { return []error{b.stopped, b.cause} }

// Repeat carries out a call that may be sent any number of times: reads, unconditional writes,
// deletions. If writes is set, an attempt with unknown outcome makes its error an
// ErrUnknownOutcome.
func (p Policy) Repeat(ctx context.Context, call Call, writes bool) (blob.Version, error) {
	ctx, cancel := p.bound(ctx)
	defer cancel()
	if err := ctx.Err(); err != nil {
		return "", &blob.Error{Op: call.Op, Key: call.Key, Kind: blob.ErrUnavailable, Err: err}
	}
	doubt := false
	for n := 1; ; n++ {
		answer := p.once(ctx, call.Size, call.Send)
		switch answer.Effect {
		case Done:
			return answer.Version, nil
		case Refused: // refused by a condition that was not sent
			answer.Err.Kind = blob.ErrUnavailable
			return "", call.finish(answer.Err, doubt)
		case Failed:
			return "", call.finish(answer.Err, doubt)
		case Unknown:
			doubt = writes
		case Conflict, NotSent:
		}
		if stopped := p.pause(ctx, n, answer.Err.RetryAfter); stopped != nil {
			return "", call.ended(answer.Err, stopped, doubt)
		}
	}
}

// once sends one request within its timeout.
func (p Policy) once(ctx context.Context, size int, send func(context.Context) Answer) Answer {
	attempt, cancel := context.WithTimeout(ctx, p.attemptTimeout(size))
	defer cancel()
	traced, conn := watch(attempt)
	answer := send(traced)
	if answer.Effect == Unknown && conn.never(p.traced) {
		answer.Effect = NotSent
	}
	if answer.Effect != Done && answer.Err == nil {
		answer.Err = &blob.Error{}
	}
	return answer
}
