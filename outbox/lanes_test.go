package outbox_test

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/emitd/emitd/outbox"
)

// slow is a receiver with a number of slots that handles keys in parallel and refuses bad keys after a
// while.
type slow struct {
	slots chan struct{}
	bad   time.Duration // time until a bad key is refused; 0: it is taken

	mu       sync.Mutex
	under    int // calls in flight
	most     int
	took     map[string]time.Duration // latency of the other keys, by payload
	accepted int                      // bad keys that were taken
}

func (r *slow) deliver(_ context.Context, d outbox.Delivery) []error {
	errs := make([]error, len(d.Rows))
	began := time.Now()
	var wg sync.WaitGroup
	for i, row := range d.Rows {
		wg.Go(func() {
			r.slots <- struct{}{}
			defer func() { <-r.slots }()
			errs[i] = r.one(row, began)
		})
	}
	wg.Wait()
	return errs
}

func (r *slow) one(row outbox.Row, began time.Time) error {
	r.mu.Lock()
	bad := strings.HasPrefix(row.Key, "bad")
	wait := time.Millisecond
	if bad {
		wait = max(wait, r.bad)
		r.under++
		r.most = max(r.most, r.under)
	}
	r.mu.Unlock()
	time.Sleep(wait)
	r.mu.Lock()
	defer r.mu.Unlock()
	if !bad {
		r.took[string(row.Payload)] = time.Since(began)
		return nil
	}
	r.under--
	if r.bad > 0 {
		return errBad
	}
	r.accepted++
	return nil
}

// change sets how long bad keys take, and resets the highest number in flight.
func (r *slow) change(bad time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.bad, r.most = bad, 0
}

// bad publishes one message of each of a number of keys.
func (s *stage) bad(keys int) {
	for i := range keys {
		s.log.publish(m(fmt.Sprint("bad", i), 1))
	}
}

// TestLanesInVainLeaveRoom checks that keys which a receiver refuses only after a long time use few of
// its slots, however many keys there are.
func TestLanesInVainLeaveRoom(t *testing.T) {
	bubble(t, func(s *stage) {
		r := &slow{slots: make(chan struct{}, 16), bad: time.Millisecond, took: map[string]time.Duration{}}
		s.do = r.deliver
		s.bad(1000)
		s.start(1)
		s.after(500 * time.Millisecond) // they are in lanes now
		r.change(10 * time.Second)
		const others = 200
		for i := range others {
			s.log.publish(m("good", i))
			s.after(300 * time.Millisecond)
		}
		r.mu.Lock()
		if len(r.took) != others || r.most == 0 {
			t.Errorf("%d others came, %d keys were tried at once; want %d, and some", len(r.took), r.most, others)
		}
		for payload, took := range r.took {
			if took > 100*time.Millisecond {
				t.Errorf("%s took %v, with %d in vain at once", payload, took, r.most)
			}
		}
		r.mu.Unlock()
		s.stop()
		<-s.done
	})
}

// TestLanesComeInLogOrder checks that rows of several lanes come to the sink in log order, whenever they are due.
func TestLanesComeInLogOrder(t *testing.T) {
	bubble(t, func(s *stage) {
		var mu sync.Mutex
		refuse, several := true, 0
		s.do = func(_ context.Context, d outbox.Delivery) []error {
			mu.Lock()
			defer mu.Unlock()
			if !slices.IsSortedFunc(d.Rows, func(a, b outbox.Row) int { return cmp.Compare(a.Seq, b.Seq) }) {
				t.Errorf("a delivery of %d rows is not in log order", len(d.Rows))
			}
			if refuse {
				return []error{errBad}
			}
			if len(d.Rows) > 1 {
				several++
			}
			return nil
		}
		s.bad(40)
		s.start(1)
		s.after(5 * time.Second) // each key is tried several times, after pauses with jitter
		mu.Lock()
		refuse = false
		mu.Unlock()
		s.after(time.Minute)
		mu.Lock()
		if several == 0 {
			t.Error("no delivery had rows of several lanes")
		}
		mu.Unlock()
		s.stop()
		<-s.done
	})
}

// TestLanesAreSettledTogether checks that the outcomes of lanes tried in vain are stored once for each
// Due. When they can be delivered, many are tried at once.
func TestLanesAreSettledTogether(t *testing.T) {
	bubble(t, func(s *stage) {
		const keys = 320
		r := &slow{slots: make(chan struct{}, keys), bad: 3 * time.Millisecond, took: map[string]time.Duration{}}
		s.do = r.deliver
		var mu sync.Mutex
		calls := map[string]int{}
		s.log.takes = func(call string) time.Duration {
			mu.Lock()
			defer mu.Unlock()
			calls[call]++
			return time.Millisecond
		}
		s.bad(keys)
		s.start(1)
		s.after(500 * time.Millisecond) // they are in lanes now
		r.change(3 * time.Millisecond)
		s.after(2 * time.Second) // the first retries, a second after the failures
		mu.Lock()
		if calls["settle"] < keys/40 || calls["settle"] > keys/20 {
			t.Errorf("%d lanes were settled in %d transactions, after %d questions", keys, calls["settle"], calls["due"])
		}
		mu.Unlock()
		r.change(0)
		s.after(5 * time.Second)
		r.mu.Lock()
		if r.most <= 16 || r.accepted != keys {
			t.Errorf("%d of %d came, %d at once", r.accepted, keys, r.most)
		}
		r.mu.Unlock()
		if err := s.drain(); err != nil {
			t.Error(err)
		}
	})
}

// TestDrainAmongLanes checks that a drain while lanes are tried in vain stores the outcomes so far, and
// tries no more.
func TestDrainAmongLanes(t *testing.T) {
	bubble(t, func(s *stage) {
		const keys = 30
		var mu sync.Mutex
		again := map[string]bool{}
		s.sink(func(r outbox.Row) error {
			mu.Lock()
			defer mu.Unlock()
			if r.Attempt == 2 {
				again[r.Key] = true
			}
			return errBad
		})
		s.log.takes = func(string) time.Duration { return time.Millisecond }
		s.bad(keys)
		s.start(1)
		s.after(500 * time.Millisecond)
		for n := 0; n == 0; {
			s.after(100 * time.Microsecond)
			mu.Lock()
			n = len(again)
			mu.Unlock()
		}
		if err := s.drain(); err != nil {
			t.Error(err)
		}
		if len(again) == 0 || len(again) == keys {
			t.Fatalf("%d of %d keys were tried again before the drain, want some", len(again), keys)
		}
		for name, lane := range s.log.sub("sub").lanes {
			if tried := again[strings.TrimPrefix(name, "key ")]; tried != (lane.attempts == 2) {
				t.Errorf("%s was tried again: %v; stored are %d attempts", name, tried, lane.attempts)
			}
		}
	})
}

// TestPauseStopsLanes checks that a pause ends the work on lanes after those that are in flight, however many more are
// due.
func TestPauseStopsLanes(t *testing.T) {
	bubble(t, func(s *stage) {
		const keys = 1000
		r := &slow{slots: make(chan struct{}, keys), bad: time.Millisecond, took: map[string]time.Duration{}}
		s.do = r.deliver
		accepted := func() int {
			r.mu.Lock()
			defer r.mu.Unlock()
			return r.accepted
		}
		s.log.takes = func(string) time.Duration { return 5 * time.Millisecond }
		s.bad(keys)
		s.start(1)
		s.after(500 * time.Millisecond) // they are in lanes now
		r.change(0)
		for accepted() == 0 {
			s.after(time.Millisecond)
		}
		s.after(100 * time.Millisecond)
		s.log.pause("sub", true)
		before := accepted()
		s.after(time.Minute)
		after := accepted()
		if before > keys/2 || after > before+64 {
			t.Errorf("%d of %d messages came before the pause, and %d after it", before, keys, after-before)
		}
		s.log.pause("sub", false)
		s.after(time.Minute)
		if n := accepted(); n != keys {
			t.Errorf("%d of %d messages came in the end", n, keys)
		}
		if err := s.drain(); err != nil {
			t.Error(err)
		}
	})
}
