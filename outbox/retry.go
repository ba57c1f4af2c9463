package outbox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"
	"time"

	"github.com/emitd/emitd/internal/backoff"
)

func (r Retry) withDefaults() Retry {
	r.MaxAttempts = cmp.Or(r.MaxAttempts, 10)
	r.Backoff, r.MaxBackoff = cmp.Or(r.Backoff, time.Second), cmp.Or(r.MaxBackoff, 5*time.Minute)
	r.Factor, r.Jitter = cmp.Or(r.Factor, 2), cmp.Or(r.Jitter, 0.2)
	r.Jitter = max(r.Jitter, 0)
	r.MissingFor = cmp.Or(r.MissingFor, 15*time.Minute)
	return r
}

func (r Retry) validate() error {
	var errs []error
	if r.Backoff < 0 || r.MaxBackoff < r.Backoff {
		errs = append(errs, fmt.Errorf("retry.max_backoff is %v, retry.backoff %v: want 0 < backoff ≤ max_backoff", r.MaxBackoff, r.Backoff))
	}
	if r.Factor < 1 || math.IsNaN(r.Factor) || math.IsInf(r.Factor, 0) {
		errs = append(errs, fmt.Errorf("retry.factor is %v, want 1 or more", r.Factor))
	}
	if r.Jitter > 1 || math.IsNaN(r.Jitter) {
		errs = append(errs, fmt.Errorf("retry.jitter is %v, want 0 to 1", r.Jitter))
	}
	return errors.Join(errs...)
}

// pause returns the pause after a number of failed attempts. dice is in [0, 1) and sets the jitter.
func (r Retry) pause(attempts int, dice float64) time.Duration {
	p := backoff.Policy{First: r.Backoff, Limit: r.MaxBackoff, Factor: r.Factor}
	return backoff.Spread(p.After(attempts), r.Jitter, dice)
}

// missingPause is the longest pause between two attempts to find a destination that is missing. So a key
// continues within about a minute after its destination has appeared.
const missingPause = time.Minute

// waitedForMissing reports whether the pauses before an attempt add up to MissingFor.
func (r Retry) waitedForMissing(attempt int) bool {
	waited := time.Duration(0)
	for n := 1; n < attempt && waited < r.MissingFor; n++ {
		waited += min(r.pause(n, 0.5), missingPause)
	}
	return waited >= r.MissingFor
}

// causeOf returns the text of an error as the cause of an outcome. It begins with the text of ErrMissing if the error is
// one, and only then: logs tell by it why a message waits.
func causeOf(err error) string {
	text := err.Error()
	switch begins := strings.HasPrefix(text, ErrMissing.Error()); {
	case errors.Is(err, ErrMissing) && !begins:
		return ErrMissing.Error() + ": " + text
	case begins && !errors.Is(err, ErrMissing):
		return "error: " + text
	}
	return text
}

// outcomeOfMissing decides the outcome of a message whose destination is missing.
func (c *Config) outcomeOfMissing(o Outcome, dice float64) Outcome {
	o.Kind, o.RetryIn = Waiting, min(c.Retry.pause(o.Attempts, dice), missingPause)
	if c.Retry.waitedForMissing(o.Attempts) {
		if o.Kind = c.Policy.kind(); o.Kind != Held {
			o.RetryIn = 0
		}
	}
	return o
}

// kind returns what becomes of a message that is not tried again.
func (p Policy) kind() Kind {
	switch p {
	case Skip:
		return Dead
	case Drop:
		return Dropped
	default:
		return Held
	}
}

// maxRetryAfter bounds what a receiver may ask for, because a nonsensical value must not hold a key for
// ever.
const maxRetryAfter = 24 * time.Hour

// outcomeOf decides the outcome of a message that failed.
func (c *Config) outcomeOf(row Row, err error, dice float64) Outcome {
	missing := errors.Is(err, ErrMissing)
	changed := row.Attempt > 1 && row.Missing != missing
	if changed {
		row.Attempt = 1 // the attempts before failed for a reason that is gone, and have a limit of their own
	}
	o := Outcome{Row: row, Attempts: row.Attempt, Cause: causeOf(err)}
	if errors.Is(err, errUnsendable) && c.Policy != Drop {
		o.Kind = Dead // whatever the policy: no operator can make it deliverable, and its key must go on
		return o
	}
	if missing {
		if o = c.outcomeOfMissing(o, dice); changed && o.RetryIn > 0 {
			o.RetryIn = min(c.Retry.MaxBackoff, missingPause) // a message that fails for both reasons in turn has no back-off otherwise
		}
		return o
	}
	if errors.Is(err, ErrPermanent) || c.Retry.MaxAttempts > 0 && row.Attempt >= c.Retry.MaxAttempts {
		o.Kind = c.Policy.kind()
		return o
	}
	o.Kind, o.RetryIn = Waiting, c.Retry.pause(row.Attempt, dice)
	var later *RetryAfterError
	if errors.As(err, &later) {
		o.RetryIn = max(o.RetryIn, min(later.After, maxRetryAfter))
	}
	return o
}

// breaks are the pauses of the circuit breaker. A sink may ask for a longer one, up to maxRequestedPause.
var breaks = backoff.Policy{First: 100 * time.Millisecond, Limit: 30 * time.Second}

const maxRequestedPause = time.Hour

// breaker is the circuit breaker of a sink. After the sink was down, it lets one call through after a
// pause; if that call succeeds, all calls may pass. All units of a relay share it, because they share the
// sink.
type breaker struct {
	mu       sync.Mutex
	failures int // pauses in a row; 0: the breaker is closed and calls pass
	until    time.Time
	probe    chan struct{} // holds a token while no call probes the sink
}

func newBreaker() *breaker {
	b := &breaker{probe: make(chan struct{}, 1)}
	b.probe <- struct{}{}
	return b
}

// health is what a call showed about the sink.
type health int

const (
	unclear health = iota
	isUp
	isDown
)

// errDrained ends a session that would have to wait for its sink although its unit drains.
var errDrained = errors.New("drained")

// acquire waits until a call may be made. It gives up when the unit drains. The caller must call done with
// what the call showed, and with the pause that the sink asked for, if any.
func (b *breaker) acquire(ctx context.Context, draining <-chan struct{}) (done func(s health, rest time.Duration), err error) {
	if b.closed() {
		return b.result, nil
	}
	select {
	case <-b.probe:
	case <-draining:
		return nil, errDrained
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
	back := func() { b.probe <- struct{}{} }
	if b.closed() { // the previous probe succeeded
		back()
		return b.result, nil
	}
	b.mu.Lock()
	wait := time.Until(b.until)
	b.mu.Unlock()
	if wait > 0 && !sleep(ctx, draining, wait) {
		back()
		if ctx.Err() == nil {
			return nil, errDrained
		}
		return nil, context.Cause(ctx)
	}
	return func(s health, rest time.Duration) { b.result(s, rest); back() }, nil
}

func (b *breaker) closed() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.failures == 0
}

func (b *breaker) result(s health, rest time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := time.Now()
	switch {
	case s == unclear:
		return
	case s == isUp:
		if now.Before(b.until) && b.failures > 0 {
			return // this call began before another one found the sink down: the probe after the pause decides
		}
		b.failures = 0
		return
	case b.failures == 0 || !now.Before(b.until): // otherwise this call began before, too: the pause is not doubled
		b.failures++
		b.until = now.Add(breaks.Jittered(b.failures))
	}
	if at := now.Add(min(rest, maxRequestedPause)); at.After(b.until) {
		b.until = at
	}
}
