package outbox_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/emitd/emitd/outbox"
)

// crowd is a set of undeliverable messages at the head of the log.
type crowd struct {
	name  string
	rows  []outbox.Message
	fails func(r outbox.Row) error // of the crowd
	cfg   func(c *outbox.Config)
}

func crowds() []crowd {
	one, many, mixed := make([]outbox.Message, 10_000), make([]outbox.Message, 1000), make([]outbox.Message, 10_000)
	for i := range one {
		one[i] = m("bad", i)
		mixed[i] = m(fmt.Sprint("bad", i%1000), i)
	}
	for i := range many {
		many[i] = m(fmt.Sprint("bad", i), 1)
	}
	bad := func(outbox.Row) error { return errBad }
	dead := func(outbox.Row) error { return fmt.Errorf("no such topic: %w", outbox.ErrPermanent) }
	with := func(p outbox.Policy) func(c *outbox.Config) { return func(c *outbox.Config) { c.Policy = p } }
	return []crowd{
		{"10,000 of one key", one, bad, with(outbox.Hold)},
		{"10,000 of one key, refused for good, skipped", one, dead, with(outbox.Skip)},
		{"10,000 of one key, refused for good, dropped", one, dead, with(outbox.Drop)},
		{"1,000 keys", many, bad, with(outbox.Hold)},
		{"1,000 keys, refused for good, skipped", many, dead, with(outbox.Skip)},
		{"1,000 keys of ten", mixed, bad, with(outbox.Skip)},
		{"both", append(slices.Clone(one), many...), bad, with(outbox.Hold)},
	}
}

// TestHeadOfLine checks that undeliverable messages at the head of the log do not delay other keys,
// although the sink and the log take time: the p99 of the others must stay the same.
func TestHeadOfLine(t *testing.T) {
	for _, c := range crowds() {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			var with, without time.Duration
			staged(t, func(s *stage) { without = others(s, crowd{}) })
			staged(t, func(s *stage) { with = others(s, c) })
			if with > without*12/10 {
				t.Errorf("the p99 of other keys is %v, %v without the crowd", with, without)
			} else {
				t.Logf("the p99 of other keys is %v, %v without the crowd", with, without)
			}
		})
	}
}

// others publishes messages of other keys behind a crowd and returns the p99 of their latencies.
func others(s *stage, c crowd) time.Duration {
	const n = 300
	var mu sync.Mutex
	sent, got := map[string]time.Time{}, map[string]time.Duration{}
	s.log.takes = func(call string) time.Duration { // as long as a database would
		switch call {
		case "next":
			return 2 * time.Millisecond
		case "due", "settle": // of many messages at once
			return 10 * time.Millisecond
		default:
			return time.Millisecond
		}
	}
	s.do = func(ctx context.Context, d outbox.Delivery) []error {
		time.Sleep(3 * time.Millisecond)
		errs := make([]error, len(d.Rows))
		stuck := map[string]bool{}
		mu.Lock()
		defer mu.Unlock()
		for i, r := range d.Rows {
			switch {
			case stuck[r.Key]:
				errs[i] = outbox.ErrSkipped
			case strings.HasPrefix(r.Key, "bad"):
				errs[i], stuck[r.Key] = c.fails(r), true
			default:
				got[string(r.Payload)] = time.Since(sent[string(r.Payload)])
			}
		}
		return errs
	}
	if c.cfg != nil {
		c.cfg(&s.cfg)
	}
	s.log.publish(c.rows...)
	s.start(1)
	s.after(100 * time.Millisecond)
	for i := range n {
		msg := m(fmt.Sprintf("k%d-", i%100), i)
		mu.Lock()
		sent[string(msg.Payload)] = time.Now()
		mu.Unlock()
		s.log.publish(msg)
		s.after(5 * time.Millisecond)
	}
	s.after(time.Minute)
	if err := s.drain(); err != nil && !errors.Is(err, context.Canceled) {
		s.t.Error(err)
	}
	mu.Lock()
	defer mu.Unlock()
	if len(got) != n {
		s.t.Fatalf("%d of %d came", len(got), n)
	}
	var all []time.Duration
	for _, d := range got {
		all = append(all, d)
	}
	slices.Sort(all)
	return all[len(all)*99/100]
}

// TestLanesArePaced checks that keys that are tried in vain leave the log and the processor free for
// three quarters of the time. As soon as they can be delivered, there is no pause.
func TestLanesArePaced(t *testing.T) {
	bubble(t, func(s *stage) {
		const keys = 320
		var up atomic.Bool
		var mu sync.Mutex
		var requested []time.Time
		s.log.takes = func(call string) time.Duration {
			mu.Lock()
			defer mu.Unlock()
			if call == "due" {
				requested = append(requested, time.Now())
			}
			return time.Millisecond
		}
		s.sink(func(outbox.Row) error {
			if up.Load() {
				return nil
			}
			return errBad
		})
		for i := range keys {
			s.log.publish(m(fmt.Sprint("bad", i), 1))
		}
		s.start(1)
		spans := func() (shortest, longest time.Duration) {
			mu.Lock()
			defer mu.Unlock()
			shortest = time.Hour
			for i := 1; i < len(requested); i++ {
				if gap := requested[i].Sub(requested[i-1]); gap < 500*time.Millisecond { // otherwise the next wave has begun
					shortest, longest = min(shortest, gap), max(longest, gap)
				}
			}
			return shortest, longest
		}
		s.after(1900 * time.Millisecond) // the first wave of attempts, a second after the failures
		if shortest, _ := spans(); shortest < 8*time.Millisecond {
			t.Errorf("keys in vain were asked for after %v", shortest)
		}
		up.Store(true)
		mu.Lock()
		requested = nil
		mu.Unlock()
		s.after(5 * time.Second)
		if _, longest := spans(); longest > 8*time.Millisecond || len(s.came()) != keys {
			t.Errorf("%d of %d came, with pauses of %v", len(s.came()), keys, longest)
		}
		if err := s.drain(); err != nil {
			t.Error(err)
		}
	})
}

// TestLanesWaitForGaps checks that keys that are tried in vain wait for a gap between pages. If there are
// no gaps, they are tried all the same.
func TestLanesWaitForGaps(t *testing.T) {
	for name, c := range map[string]struct {
		atSink, every time.Duration // how long a page takes, and how often one comes
		beside        int           // most attempts in vain during a page, in percent
	}{
		"gaps":    {3 * time.Millisecond, 5 * time.Millisecond, 10},
		"no gaps": {20 * time.Millisecond, 5 * time.Millisecond, 100},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(s *stage) {
				const keys = 100
				var mu sync.Mutex
				tried := map[string]bool{}
				pages, beside, all := 0, 0, 0
				s.do = func(_ context.Context, d outbox.Delivery) []error {
					if good := !strings.HasPrefix(d.Rows[0].Key, "bad"); good {
						mu.Lock()
						pages++
						mu.Unlock()
						time.Sleep(c.atSink)
						mu.Lock()
						pages--
						mu.Unlock()
						return nil
					}
					mu.Lock()
					defer mu.Unlock()
					if d.Rows[0].Attempt > 1 {
						tried[d.Rows[0].Key] = true
						all++
						if pages > 0 {
							beside++
						}
					}
					return []error{errBad}
				}
				s.bad(keys)
				s.start(1)
				s.after(500 * time.Millisecond) // they are in lanes now
				for i := range 600 {
					s.log.publish(m("good", i))
					s.after(c.every)
				}
				mu.Lock()
				if len(tried) < keys || 100*beside > c.beside*all {
					t.Errorf("%d of %d keys were tried again, %d of %d times beside a page", len(tried), keys, beside, all)
				}
				mu.Unlock()
				if err := s.drain(); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// TestLanesAreGathered checks that keys that become due one after the other and are tried in vain are
// stored together.
func TestLanesAreGathered(t *testing.T) {
	bubble(t, func(s *stage) {
		const keys = 100
		var mu sync.Mutex
		settled, attempts := 0, 0
		s.log.takes = func(call string) time.Duration {
			mu.Lock()
			defer mu.Unlock()
			if call == "settle" {
				settled++
			}
			return time.Millisecond
		}
		s.sink(func(r outbox.Row) error {
			mu.Lock()
			defer mu.Unlock()
			if r.Key == "good" {
				return nil
			}
			if r.Attempt > 1 {
				attempts++
			}
			return errBad
		})
		s.cfg.Retry.Jitter = 0.2
		s.bad(keys)
		s.start(1)
		for i := range 300 { // the first retries are due 0.8 to 1.2 s after the failures
			s.log.publish(m("good", i))
			s.after(5 * time.Millisecond)
		}
		mu.Lock()
		if attempts != keys || settled > keys/8 {
			t.Errorf("%d attempts were stored in %d transactions", attempts, settled)
		}
		mu.Unlock()
		if err := s.drain(); err != nil {
			t.Error(err)
		}
	})
}
