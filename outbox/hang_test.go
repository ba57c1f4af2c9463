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
	"github.com/emitd/emitd/outbox/internal/progress"
	"github.com/emitd/emitd/outbox/sink"
)

// partial makes the sink behave like the real ones: keys are sent in parallel, each takes a while, and
// what hangs is given up when the context ends. It then returns the results it has.
func (s *stage) partial(parallel int, took time.Duration, hangs func(r outbox.Row) bool) {
	s.do = func(ctx context.Context, d outbox.Delivery) []error {
		errs := make([]error, len(d.Rows))
		lanes := map[string][]int{}
		var order []string
		for i, r := range d.Rows {
			errs[i] = context.DeadlineExceeded
			if lanes[r.Key] == nil {
				order = append(order, r.Key)
			}
			lanes[r.Key] = append(lanes[r.Key], i)
		}
		slots := make(chan struct{}, parallel)
		var wg sync.WaitGroup
		for _, key := range order {
			select {
			case slots <- struct{}{}:
			case <-ctx.Done():
				continue
			}
			wg.Go(func() {
				defer func() { <-slots }()
				for _, i := range lanes[key] {
					if hangs(d.Rows[i]) {
						<-ctx.Done()
						return
					}
					select {
					case <-time.After(took):
					case <-ctx.Done():
						return
					}
					s.take(d.Rows[i])
					errs[i] = nil
				}
			})
		}
		wg.Wait()
		return errs
	}
}

// twice returns the messages that came more than once.
func twice(got []string) (out []string) {
	seen := map[string]bool{}
	for _, g := range got {
		p, _, _ := strings.Cut(g, "@")
		if seen[p] {
			out = append(out, p)
		}
		seen[p] = true
	}
	return out
}

// TestHungKeyLeavesItsPage checks that a key that hangs delays the other keys of its page once, by
// Config.PageTimeout, and no key after that. Messages that were taken must not come again.
func TestHungKeyLeavesItsPage(t *testing.T) {
	bubble(t, func(s *stage) {
		s.partial(8, time.Millisecond, func(r outbox.Row) bool { return r.Key == "k7" })
		s.cfg.Retry.MaxAttempts, s.cfg.Policy = 2, outbox.Skip
		s.start(1)
		for i := range 64 {
			s.log.publish(m(fmt.Sprint("k", i), 1), m(fmt.Sprint("k", i), 2))
		}
		s.after(11 * time.Second)
		if n := len(s.came()); n != 126 {
			t.Errorf("%d came within the page timeout of 10 s, want 126", n)
		}
		began := len(s.came())
		for i := range 64 {
			s.log.publish(m(fmt.Sprint("k", i), 3))
		}
		s.after(100 * time.Millisecond)
		if n := len(s.came()) - began; n != 63 {
			t.Errorf("%d came while the key hangs in its lane, want 63", n)
		}
		s.after(10 * time.Minute)
		if again := twice(s.came()); len(again) > 0 {
			t.Errorf("came again: %q", again)
		}
		if dead := s.log.sub("sub").dead; len(dead) != 3 || !strings.Contains(dead[0].Cause, "not taken within 30s") {
			t.Errorf("dead %v", dead)
		}
		if err := s.drain(); err != nil {
			t.Error(err)
		}
	})
}

// TestSlowReceiver checks that a receiver which needs 200 ms for each message is not taken for one that hangs:
// nothing is parked, and nothing comes twice, although a page of one key takes 100 s.
func TestSlowReceiver(t *testing.T) {
	bubble(t, func(s *stage) {
		s.do = func(ctx context.Context, d outbox.Delivery) []error {
			return sink.Each(ctx, d.Rows, 16, func(ctx context.Context, i int) error {
				select {
				case <-time.After(200 * time.Millisecond):
					s.take(d.Rows[i])
					return nil
				case <-ctx.Done():
					return context.Cause(ctx)
				}
			})
		}
		for i := range 500 {
			s.log.publish(m("busy", i))
		}
		s.start(1)
		for range 100 {
			s.after(time.Second)
			if lanes := s.log.parked("sub"); lanes > 0 {
				t.Fatalf("%d keys are parked", lanes)
			}
		}
		s.after(time.Second)
		if n := len(s.came()); n != 500 || len(twice(s.came())) > 0 {
			t.Errorf("%d came, %q again", n, twice(s.came()))
		}
		if err := s.drain(); err != nil {
			t.Error(err)
		}
	})
}

// TestManyHungKeys tests many keys that hang in a receiver that takes a few at a time. The other keys are
// parked behind them, and must come as soon as they are tried without them.
func TestManyHungKeys(t *testing.T) {
	bubble(t, func(s *stage) {
		bad := func(r outbox.Row) bool { return strings.HasPrefix(r.Key, "bad") }
		s.partial(4, time.Millisecond, bad)
		s.cfg.Retry.MaxAttempts, s.cfg.Policy = 1, outbox.Skip
		for i := range 20 {
			s.log.publish(m(fmt.Sprint("bad", i), 1))
		}
		for i := range 200 {
			s.log.publish(m(fmt.Sprint("good", i), 1))
		}
		s.start(1)
		s.after(time.Hour)
		if n := len(s.came()); n != 200 || len(twice(s.came())) > 0 {
			t.Errorf("%d came, %q again", n, twice(s.came()))
		}
		if n := len(s.log.sub("sub").dead); n != 20 {
			t.Errorf("%d are dead, want 20", n)
		}
		for _, g := range s.came() {
			if !strings.HasSuffix(g, "@1") {
				t.Errorf("an attempt was counted against %s", g)
			}
		}
		if err := s.drain(); err != nil {
			t.Error(err)
		}
	})
}

// TestNothingAnswers checks that the sink counts as down if the receiver answers nothing at all: no key
// is blamed, and keys that were not tried are not parked.
func TestNothingAnswers(t *testing.T) {
	bubble(t, func(s *stage) {
		var silent atomic.Bool
		silent.Store(true)
		s.partial(8, time.Millisecond, func(outbox.Row) bool { return silent.Load() })
		s.cfg.Parallel = 1
		for i := range 50 {
			s.log.publish(m(fmt.Sprint("k", i), 1))
		}
		s.start(1)
		s.after(5 * time.Minute)
		if lanes := len(s.log.sub("sub").lanes); lanes > 0 {
			t.Errorf("%d lanes", lanes)
		}
		silent.Store(false)
		s.after(5 * time.Minute)
		if n := len(s.came()); n != 50 {
			t.Errorf("%d came", n)
		}
		if err := s.drain(); err != nil {
			t.Error(err)
		}
	})
}

// hangsUp makes the sink behave like a receiver that takes requests in parallel and breaks the connection at some.
func (s *stage) hangsUp(at func(r outbox.Row) bool) {
	s.do = func(ctx context.Context, d outbox.Delivery) []error {
		return sink.Each(ctx, d.Rows, 8, func(_ context.Context, i int) error {
			if at(d.Rows[i]) {
				return progress.Unanswered(errors.New("the receiver hung up"))
			}
			s.take(d.Rows[i])
			return nil
		})
	}
}

// TestHangsUpOnEverything checks that a receiver that breaks each connection counts as down: no attempt is counted,
// and no key is parked, however long it takes.
func TestHangsUpOnEverything(t *testing.T) {
	bubble(t, func(s *stage) {
		var broken atomic.Bool
		broken.Store(true)
		s.hangsUp(func(outbox.Row) bool { return broken.Load() })
		s.cfg.Parallel, s.cfg.Retry.MaxAttempts = 1, 2
		for i := range 50 {
			s.log.publish(m(fmt.Sprint("k", i%25), i))
		}
		s.start(1)
		s.after(time.Hour)
		if sub := s.log.sub("sub"); len(sub.lanes)+len(sub.dead) > 0 {
			t.Errorf("lanes %v, dead %v", sub.lanes, sub.dead)
		}
		broken.Store(false)
		s.after(5 * time.Minute)
		if n := len(s.came()); n != 50 || len(twice(s.came())) > 0 {
			t.Errorf("%d came, %q again", n, twice(s.came()))
		}
		if err := s.drain(); err != nil {
			t.Error(err)
		}
	})
}

// TestHangsUpOnOneKey checks that a message at which the receiver breaks the connection, each time, has attempts
// counted against it, although all messages that were on their way with it had no answer either. No other key waits
// for it.
func TestHangsUpOnOneKey(t *testing.T) {
	bubble(t, func(s *stage) {
		s.do = func(_ context.Context, d outbox.Delivery) []error {
			if slices.ContainsFunc(d.Rows, func(r outbox.Row) bool { return r.Key == "k7" }) { // it crashes
				return []error{progress.Unanswered(errors.New("the receiver hung up"))}
			}
			s.take(d.Rows...)
			return nil
		}
		s.cfg.Parallel, s.cfg.Retry.MaxAttempts, s.cfg.Policy = 1, 3, outbox.Skip
		for i := range 50 {
			s.log.publish(m(fmt.Sprint("k", i%25), i))
		}
		s.start(1)
		s.after(time.Hour)
		if n := len(s.came()); n != 48 || len(twice(s.came())) > 0 {
			t.Errorf("%d came, %q again", n, twice(s.came()))
		}
		dead := s.log.sub("sub").dead
		if len(dead) != 2 || dead[0].Row.Key != "k7" || dead[1].Row.Key != "k7" || !strings.Contains(dead[0].Cause, "hung up") {
			t.Errorf("dead %v", dead)
		}
		if err := s.drain(); err != nil {
			t.Error(err)
		}
	})
}

// TestSilentWithinThePage checks a receiver that is silent, behind a sink that gives up before the page's time limit
// does: the sink is down, no attempt is counted and no key is parked. If only one key gets no answer, attempts count
// for no other one.
func TestSilentWithinThePage(t *testing.T) {
	for name, silentFor := range map[string]string{"all": "k", "one key": "k7."} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(s *stage) {
				var healed atomic.Bool
				s.do = func(ctx context.Context, d outbox.Delivery) []error {
					return sink.Each(ctx, d.Rows, 8, func(ctx context.Context, i int) error {
						if !healed.Load() && strings.HasPrefix(d.Rows[i].Key, silentFor) {
							limited, cancel := sink.WithDeadline(ctx, sink.TimeoutError{What: "the receiver", After: 2 * time.Second})
							defer cancel()
							<-limited.Done()
							return fmt.Errorf("post: %w", context.Cause(limited))
						}
						s.take(d.Rows[i])
						return nil
					})
				}
				s.cfg.Parallel, s.cfg.Retry.MaxAttempts = 1, 2
				for i := range 50 {
					s.log.publish(m(fmt.Sprintf("k%d.", i%25), i))
				}
				s.start(1)
				s.after(time.Hour)
				held := s.log.parked("sub")
				switch {
				case silentFor == "k" && held > 0:
					t.Errorf("%d keys are parked", held)
				case silentFor != "k" && (held != 1 || len(s.came()) != 48):
					t.Errorf("%d keys are parked, %d messages came", held, len(s.came()))
				}
				healed.Store(true)
				s.after(5 * time.Minute)
				for _, g := range s.came() {
					if !strings.HasSuffix(g, "@1") {
						t.Errorf("an attempt was counted against %s", g)
					}
				}
				if n := len(s.came()); silentFor == "k" && n != 50 || len(twice(s.came())) > 0 {
					t.Errorf("%d came, %q again", n, twice(s.came()))
				}
				if err := s.drain(); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// TestDownIsFoundOutLater tests a sink that reports that it is down only while the relay searches for the
// keys that hang. The sink must count as down, and no key is parked.
func TestDownIsFoundOutLater(t *testing.T) {
	bubble(t, func(s *stage) {
		s.partial(8, time.Millisecond, func(outbox.Row) bool { return false })
		var calls, together atomic.Int64
		var restored atomic.Bool
		alive := s.do
		s.do = func(ctx context.Context, d outbox.Delivery) []error {
			if restored.Load() {
				together.CompareAndSwap(0, int64(len(d.Rows)))
				return alive(ctx, d)
			}
			err := outbox.ErrSinkDown
			if calls.Add(1) == 1 {
				<-ctx.Done()
				err = ctx.Err()
			}
			return slices.Repeat([]error{err}, len(d.Rows))
		}
		s.cfg.Parallel = 1
		for i := range 50 {
			s.log.publish(m(fmt.Sprint("k", i), 1))
		}
		s.start(1)
		s.after(5 * time.Minute)
		restored.Store(true)
		s.after(5 * time.Minute)
		if n := len(s.came()); n != 50 || together.Load() != 50 {
			t.Errorf("after %d calls %d came, %d of them at first", calls.Load(), n, together.Load())
		}
		if err := s.drain(); err != nil {
			t.Error(err)
		}
	})
}

// TestSlowSink checks that a sink that is always slower than Config.PageTimeout delivers everything, slowly.
func TestSlowSink(t *testing.T) {
	bubble(t, func(s *stage) {
		s.partial(4, 7*time.Second, func(outbox.Row) bool { return false })
		for i := range 60 {
			s.log.publish(m(fmt.Sprint("k", i%20), i))
		}
		s.start(1)
		s.after(30 * time.Minute)
		if n := len(s.came()) - len(twice(s.came())); n != 60 {
			t.Errorf("%d came", n)
		}
		if sub := s.log.sub("sub"); len(sub.lanes)+len(sub.dead) > 0 {
			t.Errorf("lanes %v, dead %v", sub.lanes, sub.dead)
		}
		if err := s.drain(); err != nil {
			t.Error(err)
		}
	})
}

// TestClosesMidPage tests a receiver that closes in the middle of a page. Messages that it took must not
// be sent again, and the rest must come in order.
func TestClosesMidPage(t *testing.T) {
	bubble(t, func(s *stage) {
		var calls atomic.Int64
		s.sink(func(outbox.Row) error {
			if n := calls.Add(1); n > 30 && n <= 90 {
				return errors.New("connection reset")
			}
			return nil
		})
		s.cfg.Parallel = 1
		var want []string
		for i := range 100 {
			s.log.publish(m(fmt.Sprint("k", i%10), i))
			want = append(want, fmt.Sprintf("k%d%d", i%10, i))
		}
		s.start(1)
		s.after(10 * time.Minute)
		var got []string
		last := map[string]int{}
		for _, g := range s.came() {
			p, _, _ := strings.Cut(g, "@")
			at := slices.Index(want, p)
			if at < last[p[:2]] {
				t.Errorf("%s is out of order", p)
			}
			last[p[:2]] = at
			got = append(got, p)
		}
		slices.Sort(got)
		slices.Sort(want)
		if !slices.Equal(got, want) {
			t.Errorf("got %q", got)
		}
		if err := s.drain(); err != nil {
			t.Error(err)
		}
	})
}
