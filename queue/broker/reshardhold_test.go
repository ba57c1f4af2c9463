package broker

import (
	"fmt"
	"testing"
	"time"

	"github.com/emitd/emitd/internal/storage/mem"
	"github.com/emitd/emitd/queue"
)

// TestReshardHoldsCallersBriefly: while a small backlog moves, a submit takes a number of store latencies that does not
// grow with the number of shards.
func TestReshardHoldsCallersBriefly(t *testing.T) {
	t.Parallel()
	const latency = 20 * time.Millisecond
	for _, shards := range []int{8, 64} {
		t.Run(fmt.Sprint(shards), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				w := newWorld(t, mem.New(mem.Config{Latency: mem.Constant(latency)}))
				w.declare(queue.Settings{Shards: 2})
				n := w.node("n1")
				n.serve(queue.DefaultQueue, 0)
				n.serve(queue.DefaultQueue, 1)
				for i := range 50 {
					n.enqueue(queue.Job{ID: fmt.Sprint("before-", i)})
				}
				stop, longest := make(chan struct{}), make(chan time.Duration)
				go func() { longest <- n.longestSubmit(stop) }()
				n.reshard(shards)
				n.reshard(3)
				close(stop)
				got := <-longest
				t.Logf("2 to %d to 3 shards, %v for each request: the longest submit took %v", shards, latency, got)
				if most := 40 * latency; got > most {
					t.Errorf("a submit took %v, want %v at most", got, most)
				}
			})
		})
	}
}

// longestSubmit submits jobs one after the other until it is stopped, and returns how long the longest took. A submit that is
// refused is repeated, as clients do.
func (n *node) longestSubmit(stop chan struct{}) (longest time.Duration) {
	for i := 0; ; i++ {
		select {
		case <-stop:
			return longest
		default:
		}
		began := time.Now()
		for {
			_, err := n.Enqueue(n.w.ctx, queue.DefaultQueue, []queue.Job{{ID: fmt.Sprint("job-", i)}})
			if err == nil {
				break
			}
			time.Sleep(10 * time.Millisecond) // in a bubble
		}
		longest = max(longest, time.Since(began))
	}
}
