package outbox_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/outbox"
)

var quiet = slog.New(slog.NewTextHandler(io.Discard, nil))

// stage is a relay on a log in memory, in a synctest bubble.
type stage struct {
	t     *testing.T
	log   *memLog
	cfg   outbox.Config
	a     *daemon.Assignment
	stop  context.CancelFunc
	done  chan error
	floor []int64

	mu    sync.Mutex
	got   []string // "payload@attempt"
	calls int
	do    func(ctx context.Context, d outbox.Delivery) []error // nil takes everything
}

// bubble runs a parallel test in a stage.
func bubble(t *testing.T, story func(s *stage)) {
	t.Helper()
	t.Parallel()
	staged(t, story)
}

// staged runs a test in a stage.
func staged(t *testing.T, story func(s *stage)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		s := &stage{t: t, log: newMemLog(), done: make(chan error, 1)}
		s.cfg = outbox.Config{Name: "sub", Log: s.log, Sink: s, Logger: quiet, Retry: outbox.Retry{Jitter: -1}}
		story(s)
		s.log.mu.Lock()
		defer s.log.mu.Unlock()
		if len(s.log.misplaced) > 0 {
			t.Errorf("stored: %q", s.log.misplaced)
		}
	})
}

func (s *stage) Deliver(ctx context.Context, d outbox.Delivery) []error {
	s.mu.Lock()
	s.calls++
	do := s.do
	s.mu.Unlock()
	if do == nil {
		s.take(d.Rows...)
		return nil
	}
	return do(ctx, d)
}

func (s *stage) take(rows ...outbox.Row) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, r := range rows {
		s.got = append(s.got, fmt.Sprintf("%s@%d", r.Payload, r.Attempt))
	}
}

// sink makes the sink decide row by row, by the rules of [outbox.Sink].
func (s *stage) sink(decide func(r outbox.Row) error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.do = func(_ context.Context, d outbox.Delivery) []error {
		errs := make([]error, len(d.Rows))
		stuck := map[string]bool{}
		for i, r := range d.Rows {
			if r.Key != "" && stuck[r.Key] {
				errs[i] = errors.New("behind a failure")
				continue
			}
			if errs[i] = decide(r); errs[i] != nil {
				stuck[r.Key] = true
				continue
			}
			s.take(r)
		}
		return errs
	}
}

func (s *stage) start(generation int64) {
	s.t.Helper()
	r, err := outbox.NewRelay(s.cfg)
	if err != nil {
		s.t.Fatal(err)
	}
	s.a = daemon.NewAssignment(daemon.Fence{Unit: daemon.Unit{Daemon: outbox.ID("sub")}, Generation: generation}, 1, "n", func(held int64) { s.floor = append(s.floor, held) })
	ctx, cancel := context.WithCancel(context.Background())
	s.stop = cancel
	go func() {
		err := r.Run(ctx, s.a)
		if err := r.Close(context.Background()); err != nil {
			s.t.Error(err)
		}
		s.done <- err
	}()
}

// came returns the messages taken so far.
func (s *stage) came() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.got)
}

// after lets time pass.
func (s *stage) after(d time.Duration) { time.Sleep(d); synctest.Wait() }

func (s *stage) drain() error {
	s.a.BeginDrain()
	err := <-s.done
	s.stop()
	return err
}

func (s *stage) want(what string, want ...string) {
	s.t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if !slices.Equal(s.got, want) {
		s.t.Errorf("%s: got %q, want %q", what, s.got, want)
	}
	s.got = nil
}

func m(key string, n int) outbox.Message {
	return outbox.Message{Topic: "t", Key: key, Payload: fmt.Appendf(nil, "%s%d", key, n)}
}

func refuse(key string, err error) func(outbox.Row) error {
	return func(r outbox.Row) error {
		if r.Key == key {
			return err
		}
		return nil
	}
}

var errBad = errors.New("bad")

// TestKeyWaits checks that a failing key is parked with the messages behind it, longer each time, while
// other keys go on. In the end its messages come in order.
func TestKeyWaits(t *testing.T) {
	bubble(t, func(s *stage) {
		var tries []time.Duration
		began := time.Now()
		s.sink(func(r outbox.Row) error {
			if r.Key == "a" && r.Attempt < 4 && string(r.Payload) == "a1" {
				tries = append(tries, time.Since(began).Round(100*time.Millisecond))
				return errBad
			}
			return nil
		})
		s.cfg.MaxPoll = 10 * time.Millisecond
		s.start(1)
		s.log.publish(m("a", 1), m("b", 1), m("a", 2))
		s.after(time.Millisecond)
		s.want("at once", "b1@1")
		s.log.publish(m("a", 3), m("b", 2))
		s.after(time.Millisecond)
		s.want("others", "b2@1")
		s.after(10 * time.Second)
		s.want("in order", "a1@4", "a2@1", "a3@1")
		if want := []time.Duration{0, time.Second, 3 * time.Second}; !slices.Equal(tries, want) {
			t.Errorf("tried after %v, want %v", tries, want)
		}
		s.log.publish(m("a", 4))
		s.after(time.Millisecond)
		s.want("the key is free", "a4@1")
		if err := s.drain(); err != nil {
			t.Error(err)
		}
	})
}

// TestPolicies checks what each policy does with a message that cannot be delivered, and that the cause
// is stored.
func TestPolicies(t *testing.T) {
	for _, c := range []struct {
		policy outbox.Policy
		err    error
		want   []string
		dead   string
		held   bool
	}{
		{outbox.Hold, outbox.ErrPermanent, []string{"b1@1"}, "", true},
		{outbox.Skip, outbox.ErrPermanent, []string{"b1@1", "a2@1"}, "a1 after 1: no such topic: permanent", false},
		{outbox.Drop, outbox.ErrPermanent, []string{"b1@1", "a2@1"}, "", false},
		{outbox.Hold, errBad, []string{"b1@1"}, "", true},
		{outbox.Skip, errBad, []string{"b1@1", "a2@1"}, "a1 after 3: no such topic: bad", false},
		{outbox.Drop, errBad, []string{"b1@1", "a2@1"}, "", false},
	} {
		t.Run(fmt.Sprintf("%s %v", c.policy, c.err), func(t *testing.T) {
			bubble(t, func(s *stage) {
				s.sink(func(r outbox.Row) error {
					if string(r.Payload) == "a1" {
						return fmt.Errorf("no such topic: %w", c.err)
					}
					return nil
				})
				s.cfg.Policy, s.cfg.Retry.MaxAttempts = c.policy, 3
				var letters []string
				s.cfg.Hooks.OnDeadLettered = func(_ string, r outbox.Row, cause string) { letters = append(letters, string(r.Payload)) }
				s.start(1)
				s.log.publish(m("a", 1), m("a", 2), m("b", 1))
				s.after(time.Hour)
				slices.SortFunc(s.got, func(a, b string) int { return strings.Compare(b, a) }) // workers have no order
				s.want("delivered", c.want...)
				if err := s.drain(); err != nil {
					t.Error(err)
				}
				sub := s.log.sub("sub")
				dead := ""
				for _, o := range sub.dead {
					dead += fmt.Sprintf("%s after %d: %s", o.Row.Payload, o.Attempts, o.Cause)
				}
				if dead != c.dead {
					t.Errorf("dead letters %q, want %q", dead, c.dead)
				}
				if lane := sub.lanes["key a"]; (lane != nil) != c.held || lane != nil && (!lane.held || len(lane.rows) != 2) {
					t.Errorf("the lane is %+v", lane)
				}
				if reported := len(letters) == 1; reported != (c.policy != outbox.Hold) {
					t.Errorf("hook: %q", letters)
				}
			})
		})
	}
}

// TestSinkDown checks that a sink that is down is left alone for a pause: no attempt is counted, no key
// is parked, and one call at a time probes it.
func TestSinkDown(t *testing.T) {
	bubble(t, func(s *stage) {
		var up atomic.Bool
		s.sink(func(outbox.Row) error {
			if !up.Load() {
				return fmt.Errorf("connection refused: %w", outbox.ErrSinkDown)
			}
			return nil
		})
		s.start(1)
		for i := range 20 {
			s.log.publish(m(fmt.Sprint("k", i), 1))
		}
		s.after(time.Minute)
		s.mu.Lock()
		if s.calls > 30 {
			t.Errorf("%d calls in a minute to a sink that is down", s.calls)
		}
		s.mu.Unlock()
		if got, want := s.log.sub("sub").faults, []string{"connection refused: sink is down"}; !slices.Equal(got, want) {
			t.Errorf("the trouble noted is %q, want %q", got, want)
		}
		up.Store(true)
		s.after(2 * time.Minute)
		if got := s.log.sub("sub").faults; len(got) != 2 || got[1] != "" {
			t.Errorf("the trouble noted is %q, want that it is over", got)
		}
		if len(s.came()) != 20 || len(s.log.sub("sub").lanes) > 0 {
			t.Errorf("got %q, lanes %v", s.came(), s.log.sub("sub").lanes)
		}
		for _, g := range s.came() {
			if !strings.HasSuffix(g, "@1") {
				t.Errorf("an attempt was counted: %s", g)
			}
		}
		if err := s.drain(); err != nil {
			t.Error(err)
		}
	})
}

// TestSinkPartlyDown tests a sink that takes some messages and is down for others. The others must come
// later, without a counted attempt and without being parked.
func TestSinkPartlyDown(t *testing.T) {
	bubble(t, func(s *stage) {
		n := 0
		s.sink(func(r outbox.Row) error {
			if r.Key == "b" {
				if n++; n < 4 {
					return fmt.Errorf("partition 3: %w", outbox.ErrSinkDown)
				}
			}
			return nil
		})
		s.cfg.Parallel, s.cfg.Retry.MaxAttempts = 1, 2
		s.start(1)
		s.log.publish(m("b", 1), m("a", 1), m("b", 2), m("a", 2))
		s.after(time.Minute)
		s.want("all", "a1@1", "a2@1", "b1@1", "b2@1")
		if lanes := s.log.sub("sub").lanes; len(lanes) > 0 {
			t.Errorf("lanes %v", lanes)
		}
		if err := s.drain(); err != nil {
			t.Error(err)
		}
	})
}

// TestDrainWhileSinkIsDown checks that a relay whose sink is down drains at once.
func TestDrainWhileSinkIsDown(t *testing.T) {
	bubble(t, func(s *stage) {
		s.sink(func(outbox.Row) error { return outbox.ErrSinkDown })
		s.start(1)
		s.log.publish(m("a", 1))
		s.after(time.Minute)
		began := time.Now()
		if err := s.drain(); err != nil {
			t.Error(err)
		}
		if took := time.Since(began); took > time.Second {
			t.Errorf("draining took %v", took)
		}
		if s.log.sub("sub").at != 0 {
			t.Error("the position went past what was not delivered")
		}
	})
}

// TestSinkHangs checks that a sink that hangs on one key delays that key's worker and fails only that
// key.
func TestSinkHangs(t *testing.T) {
	bubble(t, func(s *stage) {
		s.do = func(ctx context.Context, d outbox.Delivery) []error {
			for _, r := range d.Rows {
				if r.Key == "k7" {
					<-ctx.Done()
					errs := make([]error, len(d.Rows))
					for i := range errs {
						errs[i] = ctx.Err()
					}
					return errs
				}
			}
			s.take(d.Rows...)
			return nil
		}
		s.cfg.Retry.MaxAttempts, s.cfg.Policy = 2, outbox.Skip
		s.start(1)
		for i := range 64 {
			s.log.publish(m(fmt.Sprint("k", i), 1))
		}
		s.after(10 * time.Minute)
		if len(s.came()) != 63 || len(s.log.sub("sub").dead) != 1 {
			t.Errorf("%d came, dead %v", len(s.came()), s.log.sub("sub").dead)
		}
		for _, g := range s.came() {
			if !strings.HasSuffix(g, "@1") {
				t.Errorf("another key failed: %s", g)
			}
		}
		if err := s.drain(); err != nil {
			t.Error(err)
		}
	})
}

// TestSinkMisbehaves checks that a panic of the sink, or a result of the wrong length, is a failure of
// the messages that were tried.
func TestSinkMisbehaves(t *testing.T) {
	bubble(t, func(s *stage) {
		n := 0
		s.do = func(_ context.Context, d outbox.Delivery) []error {
			switch n++; n {
			case 1:
				panic("boom")
			case 2:
				return make([]error, 7)
			case 3:
				return []error{nil, errBad, errBad, errBad}
			case 4:
				return []error{errBad}
			}
			s.take(d.Rows...)
			return nil
		}
		s.start(1)
		s.log.publish(m("a", 1), m("a", 2))
		s.after(time.Minute)
		s.want("in the end", "a1@5", "a2@1")
		if err := s.drain(); err != nil {
			t.Error(err)
		}
	})
}

// TestRetryAfter checks that a RetryAfterError prolongs the back-off.
func TestRetryAfter(t *testing.T) {
	bubble(t, func(s *stage) {
		var tries []time.Duration
		began := time.Now()
		s.sink(func(r outbox.Row) error {
			tries = append(tries, time.Since(began).Round(time.Second))
			if r.Attempt == 1 {
				return &outbox.RetryAfterError{After: 40 * time.Second, Err: errBad}
			}
			return nil
		})
		s.start(1)
		s.log.publish(m("a", 1))
		s.after(time.Minute)
		if len(tries) != 2 || tries[1] < 40*time.Second || tries[1] > 42*time.Second {
			t.Errorf("tried after %v", tries)
		}
		if err := s.drain(); err != nil {
			t.Error(err)
		}
	})
}

// TestTopics checks that only the subscription's topics are delivered.
func TestTopics(t *testing.T) {
	bubble(t, func(s *stage) {
		s.cfg.Topics, s.cfg.Parallel = []string{"orders.*", "users"}, 1
		s.start(1)
		for _, topic := range []string{"orders.eu", "orders", "users", "users.eu", "other", "orders."} {
			s.log.publish(outbox.Message{Topic: topic, Payload: []byte(topic)})
		}
		s.after(time.Second)
		s.want("chosen", "orders.eu@1", "users@1", "orders.@1")
		if s.log.sub("sub").at != 6 {
			t.Error("the position does not go past what others want")
		}
		if err := s.drain(); err != nil {
			t.Error(err)
		}
	})
}

// TestEnds checks how a run ends: replaced, with another number of instances, drained, cancelled.
func TestEnds(t *testing.T) {
	for name, c := range map[string]struct {
		arrange func(s *stage)
		act     func(s *stage)
		want    error
		floor   int64
	}{
		"overtaken": {func(s *stage) { s.log.sub("sub").epoch = 9 }, nil, daemon.ErrStale, 9},
		"overtaken later": {nil, func(s *stage) {
			sub := s.log.sub("sub")
			s.log.mu.Lock()
			sub.epoch, sub.rev = 8, sub.rev+1
			s.log.mu.Unlock()
			s.log.publish(m("a", 1))
		}, daemon.ErrStale, 8},
		"resized": {func(s *stage) {
			s.log.fail = func(string) error { return &outbox.FencedError{Floor: 7, Resized: true} }
		}, nil, daemon.ErrRelease, 7},
		"drained":   {nil, func(s *stage) { s.a.BeginDrain() }, nil, 0},
		"cancelled": {nil, func(s *stage) { s.stop() }, context.Canceled, 0},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, func(s *stage) {
				if c.arrange != nil {
					c.arrange(s)
				}
				s.start(5)
				s.after(time.Second)
				if c.act != nil {
					c.act(s)
				}
				s.after(5 * time.Second)
				select {
				case err := <-s.done:
					if !errors.Is(err, c.want) || (err == nil) != (c.want == nil) {
						t.Errorf("ended with %v, want %v", err, c.want)
					}
				default:
					t.Error("it goes on")
					s.stop()
					<-s.done
				}
				s.stop()
				if c.floor != 0 && (len(s.floor) != 1 || s.floor[0] != c.floor) {
					t.Errorf("the node was told of %v, want %d", s.floor, c.floor)
				}
			})
		})
	}
}

// TestTrust checks that deliveries end when the assignment can no longer be trusted, before the run is
// cancelled.
func TestTrust(t *testing.T) {
	bubble(t, func(s *stage) {
		var until, last atomic.Int64
		trust := func(d time.Duration) { until.Store(time.Now().Add(d).UnixNano()) }
		trust(10 * time.Second)
		s.sink(func(outbox.Row) error { last.Store(time.Now().UnixNano()); return nil })
		r, err := outbox.NewRelay(s.cfg)
		if err != nil {
			t.Fatal(err)
		}
		a := daemon.NewAssignment(daemon.Fence{Unit: daemon.Unit{Daemon: outbox.ID("sub")}, Generation: 1}, 1, "n", nil)
		ctx := daemon.WithValidity(context.Background(), func() time.Duration { return time.Duration(until.Load() - time.Now().UnixNano()) })
		go func() { s.done <- r.Run(ctx, a) }()
		for i := range 60 {
			s.log.publish(m("a", 1))
			s.after(500 * time.Millisecond)
			if i < 20 {
				trust(10 * time.Second) // a heartbeat was answered
			}
		}
		if err := <-s.done; err == nil {
			t.Error("it ended as if drained")
		}
		if late := time.Duration(last.Load() - until.Load()); late > 0 || late < -2*time.Second {
			t.Errorf("the last delivery was %v after the end of trust", late)
		}
		_ = r.Close(context.Background())
	})
}

// TestUnknownUnit checks that a unit which the configuration does not have is released.
func TestUnknownUnit(t *testing.T) {
	bubble(t, func(s *stage) {
		r, err := outbox.NewRelay(s.cfg)
		if err != nil {
			t.Fatal(err)
		}
		a := daemon.NewAssignment(daemon.Fence{Unit: daemon.Unit{Daemon: outbox.ID("sub"), Index: 3}, Generation: 1}, 1, "n", nil)
		if err := r.Run(context.Background(), a); !errors.Is(err, daemon.ErrRelease) {
			t.Errorf("ended with %v", err)
		}
		if spec := r.Spec(); spec.ID != "emit:outbox/sub" || spec.Validate() != nil {
			t.Errorf("spec %+v", spec)
		}
	})
}

// TestRandomFailures uses a log and a sink that fail at random and runs that end at random. Every message
// must come, each key in order, and every repetition must be explained by an interruption.
func TestRandomFailures(t *testing.T) {
	t.Parallel()
	for seed := range uint64(40) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { bubble(t, func(s *stage) { faults(s, seed) }) })
	}
}

func faults(s *stage, seed uint64) {
	rng := rand.New(rand.NewPCG(seed, 1))
	var dice sync.Mutex
	roll := func(n int) int {
		dice.Lock()
		defer dice.Unlock()
		return rng.IntN(n)
	}
	var interruptions atomic.Int64
	s.log.fail = func(call string) error {
		if roll(60) == 0 {
			interruptions.Add(1)
			if roll(2) == 0 {
				return outbox.ErrMoved
			}
			return errors.New(call + " failed")
		}
		return nil
	}
	s.sink(func(outbox.Row) error {
		switch roll(30) {
		case 0:
			return errBad
		case 1:
			return outbox.ErrSinkDown
		}
		return nil
	})
	s.cfg.Retry = outbox.Retry{MaxAttempts: -1, Backoff: 20 * time.Millisecond, MaxBackoff: time.Second}
	s.cfg.PageRows, s.cfg.MaxPoll = 7, 20*time.Millisecond
	generation, sent := int64(1), map[string][]string{}
	s.start(generation)
	for i := range 300 {
		key := string(rune('a' + roll(12)))
		msg := m(key, i)
		sent[key] = append(sent[key], string(msg.Payload))
		s.log.publish(msg)
		if roll(10) == 0 {
			s.after(time.Duration(roll(50)) * time.Millisecond)
		}
		if roll(50) == 0 {
			interruptions.Add(1)
			if roll(2) == 0 {
				s.stop()
			} else {
				s.a.BeginDrain()
			}
			<-s.done
			s.stop()
			generation++
			s.start(generation)
		}
	}
	s.after(30 * time.Minute)
	first, seen, repeated := map[string][]string{}, map[string]bool{}, 0
	for _, g := range s.came() {
		p := g[:strings.IndexByte(g, '@')]
		if seen[p] {
			repeated++
			continue
		}
		seen[p] = true
		key := p[:1]
		first[key] = append(first[key], p)
	}
	for key, want := range sent {
		if !slices.Equal(first[key], want) {
			s.t.Errorf("seed %d, key %s:\n got %q\nwant %q", seed, key, first[key], want)
		}
	}
	if repeated > 0 && interruptions.Load() == 0 {
		s.t.Errorf("%d repeated without an interruption", repeated)
	}
	_ = s.drain()
}
