package outbox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"sync"
	"time"
)

func (r Retry) withDefaults() Retry {
	r.MaxAttempts = cmp.Or(r.MaxAttempts, 10)
	r.Backoff, r.MaxBackoff = cmp.Or(r.Backoff, time.Second), cmp.Or(r.MaxBackoff, 5*time.Minute)
	r.Factor, r.Jitter = cmp.Or(r.Factor, 2), cmp.Or(r.Jitter, 0.2)
	r.Jitter = max(r.Jitter, 0)
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

// after returns the pause after so many failures; dice is in [0, 1).
func (r Retry) after(attempts int, dice float64) time.Duration {
	d := float64(r.Backoff) * math.Pow(r.Factor, float64(max(attempts-1, 0)))
	d = min(d, float64(r.MaxBackoff))
	return time.Duration(d * (1 + r.Jitter*(2*dice-1)))
}

// judge decides what becomes of a message that failed.
func (c Config) judge(row Row, err error, dice float64) Outcome {
	o := Outcome{Row: row, Attempts: row.Attempt, Cause: err.Error()}
	if errors.Is(err, ErrPermanent) || c.Retry.MaxAttempts > 0 && row.Attempt >= c.Retry.MaxAttempts {
		switch c.Policy {
		case Skip:
			o.Kind = Dead
		case Drop:
			o.Kind = Dropped
		default:
			o.Kind = Held
		}
		return o
	}
	o.Kind, o.RetryIn = Waiting, c.Retry.after(row.Attempt, dice)
	var later *RetryAfterError
	if errors.As(err, &later) {
		o.RetryIn = max(o.RetryIn, later.After)
	}
	return o
}

// Pauses of a breaker.
const (
	breakFirst = 100 * time.Millisecond
	breakLast  = 30 * time.Second
)

// breaker rests a sink that is down: after a pause one call tries, and when it got through all may.
type breaker struct {
	mu    sync.Mutex
	pause time.Duration // 0 = closed: calls pass
	until time.Time
	probe chan struct{} // has a token while nobody tries
}

func newBreaker() *breaker {
	b := &breaker{probe: make(chan struct{}, 1)}
	b.probe <- struct{}{}
	return b
}

// errDrained is why a session ends that would have to wait for its sink while it should end.
var errDrained = errors.New("drained")

// pass waits until a call may be made, or gives up when the run drains. done must be called with its
// success.
func (b *breaker) pass(ctx context.Context, draining <-chan struct{}) (done func(up bool), err error) {
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
	b.mu.Lock()
	wait := time.Until(b.until)
	b.mu.Unlock()
	if !b.closed() && wait > 0 && !sleep(ctx, draining, wait) {
		back()
		if ctx.Err() == nil {
			return nil, errDrained
		}
		return nil, context.Cause(ctx)
	}
	return func(up bool) { b.result(up); back() }, nil
}

func (b *breaker) closed() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.pause == 0
}

func (b *breaker) result(up bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if up {
		b.pause = 0
		return
	}
	if b.pause > 0 && time.Now().Before(b.until) {
		return // calls that were under way when another one found out
	}
	b.pause = min(max(2*b.pause, breakFirst), breakLast)
	b.until = time.Now().Add(b.pause/2 + rand.N(b.pause)) //nolint:gosec // jitter is no secret
}
