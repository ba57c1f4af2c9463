package backoff

import (
	"context"
	"errors"
	"math"
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

func TestThePauseGrowsUpToTheLimit(t *testing.T) {
	const ms = time.Millisecond
	for name, c := range map[string]struct {
		p    Policy
		want []time.Duration // after 0, 1, 2, … failures
	}{
		"it doubles":          {Policy{First: 50 * ms, Limit: 300 * ms}, []time.Duration{50 * ms, 50 * ms, 100 * ms, 200 * ms, 300 * ms, 300 * ms}},
		"a factor":            {Policy{First: 100 * ms, Limit: 1000 * ms, Factor: 3}, []time.Duration{100 * ms, 100 * ms, 300 * ms, 900 * ms, 1000 * ms}},
		"a factor of 1":       {Policy{First: 100 * ms, Limit: 1000 * ms, Factor: 1}, []time.Duration{100 * ms, 100 * ms, 100 * ms}},
		"a factor below 1":    {Policy{First: 100 * ms, Limit: 1000 * ms, Factor: 0.1}, []time.Duration{100 * ms, 100 * ms, 100 * ms}},
		"first above limit":   {Policy{First: 100 * ms, Limit: 10 * ms}, []time.Duration{10 * ms, 10 * ms, 10 * ms}},
		"nothing is set":      {Policy{}, []time.Duration{0, 0, 0}},
		"the largest pause":   {Policy{First: math.MaxInt64, Limit: math.MaxInt64}, []time.Duration{math.MaxInt64, math.MaxInt64, math.MaxInt64}},
		"no pause, a limit":   {Policy{Limit: time.Hour}, []time.Duration{0, 0, 0}},
		"it would overflow":   {Policy{First: math.MaxInt64 / 2, Limit: math.MaxInt64, Factor: 1e300}, []time.Duration{math.MaxInt64 / 2, math.MaxInt64 / 2, math.MaxInt64, math.MaxInt64}},
		"not a number at all": {Policy{First: ms, Limit: time.Hour, Factor: math.NaN()}, []time.Duration{ms, ms, ms}},
	} {
		t.Run(name, func(t *testing.T) {
			for failures, want := range c.want {
				// A float has 53 bits, and the largest durations have 63.
				if got := c.p.After(failures); (got - want).Abs() > want/1e12 {
					t.Errorf("after %d failures %v, want %v", failures, got, want)
				}
			}
			if got := c.p.After(math.MaxInt); got > max(c.p.Limit, 0) {
				t.Errorf("after very many failures %v, the limit is %v", got, c.p.Limit)
			}
		})
	}
}

func TestJitterStaysBelowTheLimit(t *testing.T) {
	for _, d := range []time.Duration{0, 1, 2, 3, time.Millisecond, time.Hour, math.MaxInt64 - 1} {
		var got []time.Duration
		for range 1000 {
			got = append(got, Jitter(d))
		}
		if slices.Min(got) < d/2 || slices.Max(got) > d {
			t.Errorf("%v became %v to %v", d, slices.Min(got), slices.Max(got))
		}
		if spread := slices.Max(got) - slices.Min(got); d >= time.Millisecond && spread < d*2/5 {
			t.Errorf("%v is spread over %v only", d, spread)
		}
	}
	if p := (Policy{First: time.Second, Limit: time.Minute}); p.Jittered(3) < 2*time.Second || p.Jittered(3) > 4*time.Second {
		t.Error("the jitter is not that of the pause")
	}
}

func TestSpread(t *testing.T) {
	for _, c := range []struct {
		fraction, random float64
		want             time.Duration
	}{{0.2, 0, 8}, {0.2, 0.5, 10}, {0.2, 0.9999999999, 12}, {0, 0.7, 10}, {1, 0, 0}} {
		if got := Spread(10*time.Second, c.fraction, c.random).Round(time.Millisecond); got != c.want*time.Second {
			t.Errorf("fraction %v, random %v: %v, want %ds", c.fraction, c.random, got, c.want)
		}
	}
}

func TestSleep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		if err := Sleep(t.Context(), time.Minute); err != nil || time.Since(began) != time.Minute {
			t.Errorf("%v after %v", err, time.Since(began))
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		began = time.Now()
		if err := Sleep(ctx, time.Minute); !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != time.Second {
			t.Errorf("%v after %v", err, time.Since(began))
		}
		for _, d := range []time.Duration{-1, 0, time.Minute} {
			if err := Sleep(ctx, d); !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != time.Second {
				t.Errorf("%v after %v", err, time.Since(began))
			}
		}
	})
}
