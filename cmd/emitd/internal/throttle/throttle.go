// Package throttle wraps a bucket so that it costs no more than allowed. It has a rate for each
// class of requests, and a budget of writes for each day.
//
// # Rates
//
// Each [Class] has a token bucket of its own. A call takes its token before it waits, so
// simultaneous callers are spread out, each behind the previous one. A hundred reads at a rate of
// one a second take a hundred seconds, less the burst, however many callers there are. If a
// caller's context would end before it may send, the call is refused at once with
// blob.ErrThrottled, and its place is given back. Reads of a few objects ([Config.First]) do not wait; they take a token too,
// so others wait longer.
//
// # Budget
//
// [Config.WritesPerDay] bounds the calls of Create, Replace, Write and Delete in a day. A day
// begins with the first of them and ends 24 hours later; the next such call begins another. This
// process never sends more than that in one such day. A call beyond the budget is refused with
// blob.ErrBudget and the time until the next day (blob.RetryAfter), or waits for that time if
// [Config.WaitForBudget] is set. A refused call has not been sent, and has not happened.
//
// # What is not counted
//
// What a backend does by itself inside one call (repetitions, reading back a write of unknown
// outcome) is not counted here. It is rare, and bounded by the call's context. The store bills it
// nevertheless.
package throttle

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/emitd/emitd/internal/backoff"
	"github.com/emitd/emitd/storage/blob"
)

// Rate is a token bucket. The zero Rate does not limit.
type Rate struct {
	PerSecond float64 // tokens; 0 is no limit
	Burst     int     // that may be saved up; 0 is 1
}

// Config says what is allowed. Its zero value allows everything.
type Config struct {
	Reads, Writes, Lists, Deletes Rate

	// First are the keys of objects whose reads do not wait.
	First []string

	// WritesPerDay is the budget; 0 is none. Deletes count too: most stores do not bill them, but a
	// program in a loop may delete as well.
	WritesPerDay int64

	// WaitForBudget makes calls wait for the next day instead of failing. It is for copies and
	// imports.
	WaitForBudget bool
}

// validate names the field and what is wrong with it.
func (c Config) validate() error {
	var errs []error
	for class, r := range c.rates() {
		if r.PerSecond < 0 || math.IsNaN(r.PerSecond) || math.IsInf(r.PerSecond, 0) {
			errs = append(errs, fmt.Errorf("throttle: %s per second are %v: want 0 (no limit) or more", class, r.PerSecond))
		}
		if r.Burst < 0 {
			errs = append(errs, fmt.Errorf("throttle: burst of %s is %d: want 0 (that is 1) or more", class, r.Burst))
		}
	}
	if c.WritesPerDay < 0 {
		errs = append(errs, fmt.Errorf("throttle: writes per day are %d: want 0 (no budget) or more", c.WritesPerDay))
	}
	return errors.Join(errs...)
}

func (c Config) rates() map[Class]Rate {
	return map[Class]Rate{Reads: c.Reads, Writes: c.Writes, Lists: c.Lists, Deletes: c.Deletes}
}

// Class is a kind of request with a rate of its own.
type Class string

// The classes.
const (
	Reads   Class = "reads"
	Writes  Class = "writes"
	Lists   Class = "lists"
	Deletes Class = "deletes"
)

// Stats counts the requests of one class by their outcome.
type Stats struct {
	Sent       int64         // to the bucket
	Delayed    int64         // of those sent, after a wait
	Waited     time.Duration // in sum
	Refused    int64         // blob.ErrThrottled
	OverBudget int64         // blob.ErrBudget
}

// Bucket is a throttled blob.Bucket. Use New.
type Bucket struct {
	inner  blob.Bucket
	config Config

	mu      sync.Mutex
	buckets map[Class]*tokens
	stats   map[Class]Stats
	day     day
}

var _ blob.Bucket = (*Bucket)(nil)

// New wraps a bucket.
func New(inner blob.Bucket, config Config) (*Bucket, error) {
	if err := config.validate(); err != nil {
		return nil, err
	}
	b := &Bucket{inner: inner, config: config, buckets: map[Class]*tokens{}, stats: map[Class]Stats{}}
	for class, rate := range config.rates() {
		if rate.PerSecond > 0 {
			b.buckets[class] = newTokens(rate)
		}
	}
	b.day.limit = config.WritesPerDay
	return b, nil
}

// Stats returns the counts by class.
func (b *Bucket) Stats() map[Class]Stats {
	b.mu.Lock()
	defer b.mu.Unlock()
	return maps.Clone(b.stats)
}

// Budget returns how many writes of the current day were made, of how many, and when the next day
// begins (zero before the first write).
func (b *Bucket) Budget() (used, limit int64, next time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.day.roll(time.Now())
	if b.day.begin.IsZero() {
		return 0, b.day.limit, time.Time{}
	}
	return b.day.used, b.day.limit, b.day.begin.Add(dayLength)
}

// admit waits until a request may be sent.
func (b *Bucket) admit(ctx context.Context, class Class, op, key string) error {
	first := class == Reads && slices.Contains(b.config.First, key)
	if err := ctx.Err(); err != nil {
		return &blob.Error{Op: op, Key: key, Kind: blob.ErrUnavailable, Err: err}
	}
	deadline, bounded := ctx.Deadline()
	for {
		wait, err := b.reserve(class, deadline, bounded, first)
		if err != nil {
			err.Op, err.Key = op, key
			return err
		}
		again := wait.again
		if stopped := backoff.Sleep(ctx, wait.d); stopped != nil {
			b.release(class, wait)
			return &blob.Error{Op: op, Key: key, Kind: blob.ErrUnavailable, Err: stopped}
		}
		b.waited(class, wait, !again)
		if !again {
			return nil
		}
	}
}

// errTooLong is the error of a call whose context would end before it may send.
var errTooLong = fmt.Errorf("the configured rate is used up for longer than the call may take: %w", context.DeadlineExceeded)

// reservation is a place in the queue.
type reservation struct {
	d     time.Duration
	took  bool // a token was taken, and a write of the day
	again bool // the day's budget is used up: ask again after d
}

// reserve takes a place, without waiting for it; first is one that has not to wait.
func (b *Bucket) reserve(class Class, deadline time.Time, bounded, first bool) (reservation, *blob.Error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := time.Now()
	if class == Writes || class == Deletes {
		if left := b.day.full(now); left > 0 {
			return b.overBudget(class, left, bounded && deadline.Before(now.Add(left)))
		}
	}
	var d time.Duration
	if tokens := b.buckets[class]; tokens != nil {
		if !first {
			d = tokens.next(now)
		}
		if d > 0 && bounded && deadline.Before(now.Add(d)) {
			b.count(class, func(s *Stats) { s.Refused++ })
			return reservation{}, &blob.Error{Kind: blob.ErrThrottled, RetryAfter: d, Err: errTooLong}
		}
		tokens.take(now)
	}
	if class == Writes || class == Deletes {
		b.day.take(now)
	}
	return reservation{d: d, took: true}, nil
}

// overBudget refuses a write beyond the budget, or lets it wait.
func (b *Bucket) overBudget(class Class, left time.Duration, tooLong bool) (reservation, *blob.Error) {
	if b.config.WaitForBudget && !tooLong {
		return reservation{d: left, again: true}, nil
	}
	b.count(class, func(s *Stats) { s.OverBudget++ })
	return reservation{}, &blob.Error{
		Kind: blob.ErrBudget, RetryAfter: left,
		Err: fmt.Errorf("%d of %d writes of this day are used: raise the writes per day, or wait", b.day.used, b.day.limit),
	}
}

// release gives back the place of a caller that gave up waiting.
func (b *Bucket) release(class Class, t reservation) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !t.took {
		return
	}
	if tokens := b.buckets[class]; tokens != nil {
		tokens.giveBack()
	}
	if class == Writes || class == Deletes {
		b.day.giveBack()
	}
}

func (b *Bucket) waited(class Class, t reservation, sent bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.count(class, func(s *Stats) {
		if sent {
			s.Sent++
		}
		if t.d > 0 {
			s.Waited += t.d
			if sent {
				s.Delayed++
			}
		}
	})
}

func (b *Bucket) count(class Class, change func(*Stats)) {
	s := b.stats[class]
	change(&s)
	b.stats[class] = s
}
