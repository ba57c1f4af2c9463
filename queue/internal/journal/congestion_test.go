package journal_test

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/emitd/emitd/internal/storage/mem"
	"github.com/emitd/emitd/queue/internal/journal"
)

// requestsPerSecond is what the stores of the tests below take, of six journals that want twice as much.
const requestsPerSecond = 20

// TestAStoreThatRefusesMostRequests: what is durable stays close behind what is appended on a store that refuses what is too
// much.
func TestAStoreThatRefusesMostRequests(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		tokens, filled, refused := 0.0, time.Now(), 0
		faults := func(mem.Call) mem.Fault { // runs under the bucket's lock
			now := time.Now()
			tokens, filled = min(tokens+requestsPerSecond*now.Sub(filled).Seconds(), requestsPerSecond), now
			if tokens < 1 {
				refused++
				return mem.Fault{Kind: mem.Throttled}
			}
			tokens--
			return mem.Fault{}
		}
		overload(t, mem.Config{Latency: mem.Constant(20 * time.Millisecond), Faults: faults})
		t.Logf("%d requests were refused", refused)
	})
}

// TestAStoreThatTakesOneAtATime: the same on a store that lets requests wait for each other.
func TestAStoreThatTakesOneAtATime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		free := time.Now()
		overload(t, mem.Config{Latency: func(mem.Call) time.Duration {
			mu.Lock()
			defer mu.Unlock()
			now := time.Now()
			if free.Before(now) {
				free = now
			}
			free = free.Add(time.Second / requestsPerSecond)
			return free.Sub(now)
		}})
	})
}

// overload appends to six journals for three minutes, and bounds how long a record takes to be durable.
func overload(t *testing.T, store mem.Config) {
	bucket := mem.New(store)
	var waits []time.Duration
	var mu sync.Mutex
	var all sync.WaitGroup
	segments := int64(0)
	for i := range 6 {
		cfg := config(bucket)
		cfg.Prefix = fmt.Sprintf("root/v1/ab/orders/1/%d", i)
		cfg.WritesPerSecond = 8
		l, _ := open(t, cfg)
		all.Go(func() {
			waited := appendFor(t, l, 3*time.Minute)
			closeLog(t, l)
			mu.Lock()
			defer mu.Unlock()
			waits = append(waits, waited...)
			segments += l.Stats().Segments
		})
	}
	all.Wait()
	slices.Sort(waits)
	p50, p99 := waits[len(waits)/2], waits[len(waits)*99/100]
	t.Logf("%d records in %d segments: durable after %v (median), %v (99 %%), %v", len(waits), segments, p50, p99, waits[len(waits)-1])
	if p50 > time.Second || p99 > 10*time.Second {
		t.Errorf("half of the records were durable after %v, 99 %% after %v", p50, p99)
	}
}

// appendFor appends a record every 20 ms and returns how long each one took to be durable.
func appendFor(t *testing.T, l *journal.Log, d time.Duration) (waited []time.Duration) {
	type record struct {
		slot uint64
		at   time.Time
	}
	var open []record
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for begun, i := time.Now(), 0; len(open) > 0 || time.Since(begun) < d; {
		select {
		case <-l.Acks():
		case <-l.Done():
			t.Errorf("the log has ended: %v", l.Err())
			return waited
		case <-tick.C:
			if time.Since(begun) < d {
				slot, err := l.Append(time.Now(), fmt.Append(nil, i))
				if err != nil {
					t.Error(err)
					return waited
				}
				open = append(open, record{slot, time.Now()})
				i++
			}
		}
		for durable := l.Durable(); len(open) > 0 && open[0].slot <= durable; open = open[1:] {
			waited = append(waited, time.Since(open[0].at))
		}
	}
	return waited
}
