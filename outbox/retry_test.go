package outbox_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/outbox"
)

// TestSkippedIsTriedAgain tests a sink that sends one row after the other and stops at the first failure:
// the skipped rows have not failed.
func TestSkippedIsTriedAgain(t *testing.T) {
	bubble(t, func(s *stage) {
		s.do = func(_ context.Context, d outbox.Delivery) []error {
			errs := make([]error, len(d.Rows))
			for i, r := range d.Rows {
				switch {
				case i > 0 && errs[i-1] != nil:
					errs[i] = fmt.Errorf("partition 3: %w", outbox.ErrSkipped)
				case r.Key == "bad" && r.Attempt < 3:
					errs[i] = errBad
				default:
					s.take(r)
				}
			}
			return errs
		}
		s.cfg.Parallel = 1
		s.log.publish(m("bad", 1), m("bad", 2), m("a", 1), m("", 1), m("bad", 3), m("b", 1))
		s.start(1)
		s.after(10 * time.Millisecond)
		s.want("at once", "a1@1", "1@1", "b1@1")
		s.after(time.Minute)
		s.want("after the pauses", "bad1@3", "bad2@3", "bad3@3")
		if err := s.drain(); err != nil {
			t.Error(err)
		}
	})
}

// TestSkippedBeforeTheFailure tests a sink that skips the first message of a key for the sake of a later one of the same
// key. Neither is settled by that, so the skipped one counts as failed: otherwise the relay would repeat the call for
// ever, without a pause.
func TestSkippedBeforeTheFailure(t *testing.T) {
	bubble(t, func(s *stage) {
		endless := false
		s.do = func(_ context.Context, d outbox.Delivery) []error {
			s.mu.Lock()
			endless = endless || s.calls > 100
			s.mu.Unlock()
			if endless || d.Rows[0].Key != "k" || d.Rows[0].Attempt > 2 {
				s.take(d.Rows...)
				return nil
			}
			errs := make([]error, len(d.Rows))
			for i := range errs {
				errs[i] = outbox.ErrPermanent
			}
			errs[0] = outbox.ErrSkipped
			return errs
		}
		s.cfg.Parallel = 1
		s.log.publish(m("k", 1), m("k", 2))
		s.start(1)
		s.after(time.Minute)
		if endless {
			t.Error("the call was repeated for ever")
		}
		s.want("after the pauses", "k1@3", "k2@3")
		if err := s.drain(); err != nil {
			t.Error(err)
		}
	})
}

// TestSkippedForNothing tests a sink that reports only skipped rows. That counts as a failure, because
// otherwise the relay would repeat the call for ever.
func TestSkippedForNothing(t *testing.T) {
	bubble(t, func(s *stage) {
		s.do = func(context.Context, outbox.Delivery) []error { return []error{outbox.ErrSkipped} }
		s.cfg.Policy, s.cfg.Retry.MaxAttempts = outbox.Skip, 3
		s.log.publish(m("a", 1))
		s.start(1)
		s.after(time.Minute)
		if dead := s.log.sub("sub").dead; len(dead) != 1 || dead[0].Attempts != 3 || s.calls != 3 {
			t.Errorf("dead %v after %d calls", dead, s.calls)
		}
		if err := s.drain(); err != nil {
			t.Error(err)
		}
	})
}

// TestSinkRequestsAPause checks that a sink that is down and asks for a pause gets it, but at most an hour.
func TestSinkRequestsAPause(t *testing.T) {
	for after, want := range map[time.Duration][2]time.Duration{
		10 * time.Minute:     {10 * time.Minute, 11 * time.Minute},
		30 * 24 * time.Hour:  {time.Hour, 61 * time.Minute},
		-time.Hour:           {0, 3 * time.Second},
		time.Nanosecond:      {0, 3 * time.Second},
		500 * time.Hour * 24: {time.Hour, 61 * time.Minute},
	} {
		t.Run(after.String(), func(t *testing.T) {
			bubble(t, func(s *stage) {
				began := time.Now()
				var last time.Duration
				s.sink(func(outbox.Row) error {
					if last == 0 {
						last = -1
						return &outbox.RetryAfterError{After: after, Err: fmt.Errorf("closed for repairs: %w", outbox.ErrSinkDown)}
					}
					last = time.Since(began)
					return nil
				})
				s.log.publish(m("a", 1))
				s.start(1)
				s.after(2 * time.Hour)
				if last < want[0] || last > want[1] {
					t.Errorf("tried again after %v, want %v to %v", last, want[0], want[1])
				}
				s.want("in the end", "a1@1")
				if err := s.drain(); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// TestRetryAfterIsBounded checks that a nonsensical pause in a receiver's answer holds a key for at most
// a day.
func TestRetryAfterIsBounded(t *testing.T) {
	bubble(t, func(s *stage) {
		began := time.Now()
		var second time.Duration
		s.sink(func(r outbox.Row) error {
			if r.Attempt == 1 {
				return &outbox.RetryAfterError{After: 1 << 62, Err: errBad}
			}
			second = time.Since(began)
			return nil
		})
		s.log.publish(m("a", 1))
		s.start(1)
		s.after(48 * time.Hour)
		if second < 24*time.Hour || second > 25*time.Hour {
			t.Errorf("tried again after %v", second)
		}
		if err := s.drain(); err != nil {
			t.Error(err)
		}
	})
}

// TestBackoff checks that the back-off grows by its factor up to its bound, with jitter to either side.
func TestBackoff(t *testing.T) {
	bubble(t, func(s *stage) {
		tries := map[string][]time.Time{}
		s.sink(func(r outbox.Row) error {
			s.mu.Lock()
			defer s.mu.Unlock()
			tries[r.Key] = append(tries[r.Key], time.Now())
			return errBad
		})
		s.cfg.Retry = outbox.Retry{Backoff: 10 * time.Second, MaxBackoff: time.Minute, Factor: 3, Jitter: 0.5, MaxAttempts: 5}
		s.cfg.MaxPoll = 50 * time.Millisecond
		const keys = 200
		for i := range keys {
			s.log.publish(m(fmt.Sprint("k", i), 1))
		}
		s.start(1)
		s.after(5 * time.Minute)
		for n, base := range []time.Duration{10 * time.Second, 30 * time.Second, time.Minute, time.Minute} {
			var pauses []time.Duration
			for key, at := range tries {
				if len(at) != 5 {
					t.Fatalf("%s was tried %d times, want 5", key, len(at))
				}
				pauses = append(pauses, at[n+1].Sub(at[n]))
			}
			low, high, slack := slices.Min(pauses), slices.Max(pauses), 100*time.Millisecond
			if low < base/2 || low > base*6/10 || high > base*3/2+slack || high < base*14/10 {
				t.Errorf("pause %d: %v to %v, want about %v to %v", n+1, low, high, base/2, base*3/2)
			}
		}
		if err := s.drain(); err != nil {
			t.Error(err)
		}
	})
}

// TestUnitsShareTheBreaker checks that units of one relay share the circuit breaker, because they share
// the sink: one call probes it, not one per unit.
func TestUnitsShareTheBreaker(t *testing.T) {
	bubble(t, func(s *stage) {
		const units = 8
		var down atomic.Bool
		down.Store(true)
		s.sink(func(outbox.Row) error {
			if down.Load() {
				return outbox.ErrSinkDown
			}
			return nil
		})
		logs := make([]*memLog, units)
		s.cfg.Instances = units
		s.cfg.Log = unitLogs{logs}
		r, err := outbox.NewRelay(s.cfg)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		done := make(chan error, units)
		for i := range units {
			logs[i] = newMemLog()
			logs[i].publish(m(fmt.Sprint("k", i), 1))
		}
		for i := range units {
			a := daemon.NewAssignment(daemon.Fence{Unit: daemon.Unit{Daemon: outbox.ID("sub"), Index: i}, Generation: 1}, 1, "n", nil)
			go func() { done <- r.Run(ctx, a) }()
		}
		s.after(time.Minute)
		s.mu.Lock()
		if s.calls > units+20 {
			t.Errorf("%d calls in a minute", s.calls)
		}
		s.mu.Unlock()
		down.Store(false)
		s.after(2 * time.Minute)
		if got := s.came(); len(got) != units {
			t.Errorf("came %q", got)
		}
		cancel()
		for range units {
			if err := <-done; !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
		}
		_ = r.Close(context.Background())
	})
}

// unitLogs has a log for each unit.
type unitLogs struct{ logs []*memLog }

func (u unitLogs) Claim(ctx context.Context, c outbox.ClaimRequest) (outbox.Cursor, error) {
	return u.logs[c.Index].Claim(ctx, c)
}

func (u unitLogs) WakeUps(context.Context) <-chan struct{} { return nil }

// TestRefusedKeyGoesToItsLane tests a key of which every message is refused for good. It must free its
// page after a few calls, and its messages become dead one by one, in order.
func TestRefusedKeyGoesToItsLane(t *testing.T) {
	bubble(t, func(s *stage) {
		s.sink(func(r outbox.Row) error {
			if r.Key == "bad" {
				return fmt.Errorf("too long: %w", outbox.ErrPermanent)
			}
			return nil
		})
		s.cfg.Policy, s.cfg.Parallel = outbox.Skip, 1
		for i := range 300 {
			s.log.publish(m("bad", 1000+i))
		}
		s.log.publish(m("a", 1))
		failing := 0
		s.log.fail = func(call string) error {
			if call == "advance" && failing == 0 {
				s.mu.Lock()
				failing = s.calls
				s.mu.Unlock()
			}
			return nil
		}
		s.start(1)
		s.after(time.Minute)
		if failing > 3 {
			t.Errorf("the page took %d calls", failing)
		}
		var dead []string
		for _, o := range s.log.sub("sub").dead {
			dead = append(dead, string(o.Row.Payload))
		}
		if len(dead) != 300 || !slices.IsSorted(dead) || !strings.HasPrefix(dead[0], "bad1000") {
			t.Errorf("%d are dead: %.5q…", len(dead), dead)
		}
		s.want("the other key", "a1@1")
		if err := s.drain(); err != nil {
			t.Error(err)
		}
	})
}
