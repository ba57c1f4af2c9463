package broker

import (
	"fmt"
	"math/rand/v2"
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
		perSecond, seconds int // jobs
		gap                time.Duration
		most               float64 // writes of 1,000 jobs
		p99                time.Duration
	}{
		{1, 30, 0, 2100, 150 * time.Millisecond},
		{10, 30, 0, 1000, 150 * time.Millisecond},
		{100, 30, 0, 200, 150 * time.Millisecond},
		{100, 30, 250 * time.Millisecond, 42, 300 * time.Millisecond},
		{10_000, 1, 0, 53, 30 * time.Millisecond}, // a write every 2 ms
	} {
		t.Run(fmt.Sprintf("%d jobs a second, gap %v", c.perSecond, c.gap), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				writes, took := oneByOne(t, c.perSecond, c.seconds*c.perSecond, c.gap)
				slices.Sort(took)
				p50, p99, longest := took[len(took)/2], took[len(took)*99/100], took[len(took)-1]
				t.Logf("%.2f writes of 1,000 jobs, submit and complete p50 %v, p99 %v, max %v", writes, p50, p99, longest)
				if writes > c.most {
					t.Errorf("%.2f writes of 1,000 jobs, want at most %v", writes, c.most)
				}
				if p99 > c.p99 {
					t.Errorf("p99 %v, want at most %v", p99, c.p99)
				}
			})
		})
	}
}

// oneByOne submits, claims and completes so many jobs, so many a second, with a shortest time between two writes. It
// returns the writes of 1,000 jobs and the durations of the calls that wait for a write.
func oneByOne(t *testing.T, perSecond, jobs int, gap time.Duration) (writes float64, took []time.Duration) {
	bucket := mem.New(mem.Config{Latency: mem.Constant(20 * time.Millisecond)})
	w := newWorld(t, bucket)
	w.declare(queue.Settings{})
	n := w.node("n1")
	n.cfg.WritesPerSecond, n.cfg.MinGap = 8, gap
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
	return float64(bucket.Stats()[mem.Create].Calls-before) * 1000 / float64(jobs), took
}

// TestSlowStoreKeepsThroughput checks that clients who submit, claim and complete in turn, each when it has
// its answer, lose little beside what a store of 50 ms allows: 1/150 ms for each client, and less by the time
// that a call is on its way. With a budget of writes they lose at most a tenth. Calls that come at any moment
// lose more than calls that come together.
func TestSlowStoreKeepsThroughput(t *testing.T) {
	const latency = 50 * time.Millisecond
	for _, c := range []struct {
		clients int
		budget  float64
		way     time.Duration // a call is on its way for so long at most
		cycles  int           // of each client; with a budget so many that what it has saved up is soon used
		share   float64       // of what the store allows
	}{
		{16, 8, 0, 200, 0.9},
		{128, 8, 0, 200, 0.9},
		{16, 0, 0, 60, 0.98},
		{128, 0, 0, 60, 0.95},
		{16, 0, 10 * time.Millisecond, 60, 0.96},
		{128, 0, 10 * time.Millisecond, 60, 0.96},
	} {
		t.Run(fmt.Sprintf("%d clients, budget %g, way %s", c.clients, c.budget, c.way), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				clients := c.clients
				w := newWorld(t, mem.New(mem.Config{Latency: mem.Constant(latency)}))
				w.declare(queue.Settings{Claims: queue.DurableClaims})
				n := w.node("n1")
				n.cfg.WritesPerSecond = c.budget
				walk := func(r *rand.Rand) {
					if c.way > 0 {
						time.Sleep(time.Duration(r.Int64N(int64(c.way))))
					}
				}
				n.serve(queue.DefaultQueue, 0)
				begun := time.Now()
				var users sync.WaitGroup
				for i := range clients {
					users.Go(func() {
						r := rand.New(rand.NewPCG(uint64(i), 1))
						for j := range c.cycles {
							walk(r)
							n.enqueue(queue.Job{ID: fmt.Sprint("j", i, "-", j)})
							walk(r)
							c := n.claim(queue.ClaimRequest{Worker: "w", Wait: time.Minute})
							walk(r)
							wantOutcome(t, n.settle(queue.Complete, c[0]), queue.Completed, "")
						}
					})
				}
				users.Wait()
				got := float64(clients*c.cycles) / time.Since(begun).Seconds()
				most := float64(clients) / (3 * (latency + c.way/2)).Seconds()
				t.Logf("%.0f cycles/s, the store allows %.0f: %.3f", got, most, got/most)
				if got < c.share*most {
					t.Errorf("%.0f cycles/s, the store allows %.0f", got, most)
				}
			})
		})
	}
}
