package worker

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"runtime/debug"
	"strings"
	"time"

	"github.com/emitd/emitd/internal/queue/wire/limits"
	"github.com/emitd/emitd/queue"
)

// Job is a claimed job as its handler gets it.
type Job[T any] struct {
	queue.Info
	// Args is the decoded payload. A T of []byte gets the bytes unchanged.
	Args T
	// Draining is closed when the worker has begun to stop: the handler should finish, or
	// return an error soon.
	Draining <-chan struct{}
}

// ErrRelease is returned by a handler to release its job at once. That counts as no attempt, but the attempt of a handler
// that has run for a third of the visibility timeout is counted already.
var ErrRelease = errors.New("give the job back")

// Permanent marks an error after which a retry would fail too: the job is dead at once.
func Permanent(err error) error { return &outcomeError{err: err, dead: true} }

// RetryAfter marks an error after which the job is tried again d later, whatever its policy.
func RetryAfter(d time.Duration, err error) error { return &outcomeError{err: err, after: &d} }

// outcomeError is an error that determines what happens to the job.
type outcomeError struct {
	err   error
	dead  bool
	after *time.Duration
}

// Error returns the text of the marked error.
func (v *outcomeError) Error() string {
	if v.err == nil {
		return "failed"
	}
	return v.err.Error()
}

// Unwrap returns the marked error.
func (v *outcomeError) Unwrap() error { return v.err }

// PanicError is the failure of a handler that panicked or ended its goroutine.
type PanicError struct {
	Value any
	Stack []byte
}

// Error returns the panic's value and the line of code.
func (p *PanicError) Error() string { return fmt.Sprintf("panic: %v%s", p.Value, origin(p.Stack)) }

// origin returns the line of code that panicked, from a stack.
func origin(stack []byte) string {
	_, after, ok := bytes.Cut(stack, []byte("\npanic("))
	if !ok {
		return ""
	}
	lines := strings.SplitN(string(after), "\n", 5)
	if len(lines) < 4 {
		return ""
	}
	at, _, _ := strings.Cut(strings.TrimSpace(lines[3]), " ")
	return " at " + at
}

// handler runs a job and returns the result to store.
type handler func(ctx context.Context, info queue.Info, payload []byte, draining <-chan struct{}) ([]byte, error)

// Handle registers f as the handler of a type. The payload is decoded as JSON into a T. It panics
// if the type has a handler already or cannot be that of a job, or after Run.
func Handle[T any](w *Worker, typ string, f func(ctx context.Context, j Job[T]) error) {
	HandleResult(w, typ, func(ctx context.Context, j Job[T]) (none, error) { return none{}, f(ctx, j) })
}

// none is the result type of handlers without a result.
type none struct{}

// HandleResult is [Handle] for handlers with a result. The result is stored as JSON with the
// completed job for the deduplication window. A result above [queue.MaxResult] is dropped, and
// OnError is called.
func HandleResult[T, R any](w *Worker, typ string, f func(ctx context.Context, j Job[T]) (R, error)) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.handlers[typ] != nil || w.started {
		panic(fmt.Sprintf("worker: a second handler of %q, or one after Run", typ))
	}
	if err := limits.Job(&queue.Job{Type: typ}); err != nil { // the broker would refuse each claim
		panic(fmt.Sprintf("worker: a handler of %.80q: %v", typ, err))
	}
	w.handlers[typ] = func(ctx context.Context, info queue.Info, payload []byte, draining <-chan struct{}) ([]byte, error) {
		j := Job[T]{Info: info, Draining: draining}
		if err := decode(payload, &j.Args); err != nil {
			return nil, Permanent(fmt.Errorf("payload of %d bytes does not decode into %T: %w", len(payload), j.Args, err))
		}
		result, err := f(ctx, j)
		if err != nil {
			return nil, err
		}
		return w.encode(result), nil
	}
}

// decode decodes a payload into args. An empty payload is accepted for handlers without arguments.
func decode[T any](payload []byte, args *T) error {
	switch to := any(args).(type) {
	case *[]byte:
		*to = payload
		return nil
	case *struct{}:
		if len(payload) == 0 {
			return nil
		}
	}
	return json.Unmarshal(payload, args)
}

// encode encodes a result. The work is done, so a result that cannot be stored does not undo it.
func (w *Worker) encode(result any) []byte {
	if _, ok := result.(none); ok {
		return nil
	}
	b, err := json.Marshal(result)
	if err == nil && len(b) > queue.MaxResult {
		err = fmt.Errorf("%d bytes, at most %d are kept", len(b), queue.MaxResult)
	}
	if err != nil {
		w.failed("result", fmt.Errorf("result dropped: %w", err))
		return nil
	}
	return b
}

// guard runs a handler and converts a panic into an error.
func guard(ctx context.Context, h handler, r *run, draining <-chan struct{}) (result []byte, err error) {
	returned := false
	ended := make(chan struct{})
	// A goroutine of its own: runtime.Goexit, as testing's FailNow calls it, must not end ours.
	go func() {
		defer close(ended)
		defer func() {
			if v := recover(); v != nil {
				err = &PanicError{Value: v, Stack: debug.Stack()}
			} else if !returned {
				err = &PanicError{Value: "the handler ended its goroutine (runtime.Goexit)"}
			}
		}()
		result, err = h(ctx, r.claim.Job, r.claim.Payload, draining)
		returned = true
	}()
	<-ended
	return result, err
}
