// Package backoff computes the pauses between repeated attempts: they grow with each failure in a row, up to a
// limit, and are jittered, so that processes that failed together do not retry together.
//
// It is for attempts that failed. Two other kinds of waiting have rules of their own: a reader that polls
// because nothing has happened yet, and writers that compete for a lock.
package backoff

import (
	"context"
	"math/rand/v2"
	"time"
)

// Policy says how long to pause after a number of failures in a row.
type Policy struct {
	First time.Duration // the pause after the first failure
	Limit time.Duration // the longest pause
	// Factor is by how much the pause grows with each further failure; 0 is 2. A factor below 1 counts as 1.
	Factor float64
}

// After returns the pause after this many failures in a row, without jitter.
func (p Policy) After(failures int) time.Duration {
	factor, pause, limit := p.Factor, float64(p.First), float64(p.Limit)
	if factor == 0 {
		factor = 2
	}
	if factor > 1 { // otherwise the pause does not grow
		for n := 1; n < failures && pause < limit && pause > 0; n++ {
			pause *= factor
		}
	}
	if pause >= limit {
		return p.Limit
	}
	return time.Duration(pause)
}

// Jittered returns the pause after this many failures in a row, with [Jitter].
func (p Policy) Jittered(failures int) time.Duration { return Jitter(p.After(failures)) }

// Jitter returns a random duration between the half of d and d. So a limit stays a limit.
func Jitter(d time.Duration) time.Duration {
	return d/2 + rand.N(max(d-d/2, 0)+1) // no secret
}

// Spread returns d, varied by up to the fraction to either side. random is in [0, 1).
func Spread(d time.Duration, fraction, random float64) time.Duration {
	return time.Duration(float64(d) * (1 + fraction*(2*random-1)))
}

// Sleep waits for d. It returns ctx's error as soon as ctx has ended.
func Sleep(ctx context.Context, d time.Duration) error {
	if err := ctx.Err(); err != nil || d <= 0 {
		return err
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
