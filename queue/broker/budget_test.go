package broker

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/emitd/emitd/internal/storage/mem"
	"github.com/emitd/emitd/queue"
)

// TestWritesWithinABudget checks what jobs cost that are submitted, claimed and completed one by one, on a
// store that takes 20 ms and bills each write, and how long the callers wait.
func TestWritesWithinABudget(t *testing.T) {
	for _, c := range []struct {
		perSecond int // jobs
		most      int // writes of 1,000 jobs
	}{{1, 2100}, {10, 1000}, {100, 200}} {
		t.Run(fmt.Sprint(c.perSecond, " jobs a second"), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				writes, took := oneByOne(t, c.perSecond, 30*c.perSecond)
				slices.Sort(took)
				p50, p99, longest := took[len(took)/2], took[len(took)*99/100], took[len(took)-1]
				t.Logf("%d writes of 1,000 jobs, submit and complete p50 %v, p99 %v, max %v", writes, p50, p99, longest)
				if writes > c.most {
					t.Errorf("%d writes of 1,000 jobs, want at most %d", writes, c.most)
				}
				if p99 > 150*time.Millisecond {
					t.Errorf("p99 %v", p99)
				}
			})
		})
	}
}

// oneByOne submits, claims and completes so many jobs, so many a second. It returns the writes of 1,000 jobs
// and the durations of the calls that wait for a write.
func oneByOne(t *testing.T, perSecond, jobs int) (writes int, took []time.Duration) {
	bucket := mem.New(mem.Config{Latency: mem.Constant(20 * time.Millisecond)})
	w := newWorld(t, bucket)
	w.declare(queue.Settings{})
	n := w.node("n1")
	n.cfg.WritesPerSecond = 8
	n.serve(queue.DefaultQueue, 0)
	var mu sync.Mutex
	timed := func(call func()) {
		begun := time.Now()
		call()
		mu.Lock()
		defer mu.Unlock()
		took = append(took, time.Since(begun))
	}
	before := bucket.Stats()[mem.Create].Calls
	var users sync.WaitGroup
	for i := range jobs {
		time.Sleep(time.Second / time.Duration(perSecond))
		users.Go(func() {
			timed(func() { n.enqueue(queue.Job{ID: fmt.Sprint("j", i)}) })
			c := n.claim(queue.ClaimRequest{Worker: "w", Wait: time.Minute})
			timed(func() { wantOutcome(t, n.settle(queue.Complete, c[0]), queue.Completed, "") })
		})
	}
	users.Wait()
	return int(bucket.Stats()[mem.Create].Calls-before) * 1000 / jobs, took
}

// TestABudgetKeepsThroughput checks that clients who submit, claim and complete in turn, each when it has
// its answer, lose at most a tenth by the budget: a store of 50 ms allows 1/150 ms for each client.
func TestABudgetKeepsThroughput(t *testing.T) {
	const latency = 50 * time.Millisecond
	for _, clients := range []int{16, 128} {
		t.Run(fmt.Sprint(clients, " clients"), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				w := newWorld(t, mem.New(mem.Config{Latency: mem.Constant(latency)}))
				w.declare(queue.Settings{Claims: queue.DurableClaims})
				n := w.node("n1")
				n.cfg.WritesPerSecond = 8
				n.serve(queue.DefaultQueue, 0)
				begun := time.Now()
				const cycles = 200
				var users sync.WaitGroup
				for i := range clients {
					users.Go(func() {
						for j := range cycles {
							n.enqueue(queue.Job{ID: fmt.Sprint("j", i, "-", j)})
							c := n.claim(queue.ClaimRequest{Worker: "w", Wait: time.Minute})
							wantOutcome(t, n.settle(queue.Complete, c[0]), queue.Completed, "")
						}
					})
				}
				users.Wait()
				got := float64(clients*cycles) / time.Since(begun).Seconds()
				most := float64(clients) / (3 * latency).Seconds()
				t.Logf("%.0f cycles/s, the store allows %.0f", got, most)
				if got < 0.9*most {
					t.Errorf("%.0f cycles/s, the store allows %.0f", got, most)
				}
			})
		})
	}
}
