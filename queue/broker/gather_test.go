package broker

import (
	"sync"
	"testing"

	"github.com/emitd/emitd/internal/storage/mem"
	"github.com/emitd/emitd/queue"
)

// TestReadyCallersShareASegment checks that the calls of callers who are ready to run go into one segment
// also where a write takes no time, so that a segment is not written for each. The shard lets them in before it decides, and the
// journal waits for as many as the segment before had: 64 callers make a segment for every thirtieth job or fewer; without both, for
// every third to fifteenth.
func TestReadyCallersShareASegment(t *testing.T) {
	bubble(t, func(t *testing.T) {
		bucket := mem.New(mem.Config{})
		w := newWorld(t, bucket)
		w.declare(queue.Settings{})
		n := w.node("n1")
		n.serve(queue.DefaultQueue, 0)
		const callers, each = 64, 100
		before := bucket.Stats()[mem.Create].Calls
		var all sync.WaitGroup
		for range callers {
			all.Go(func() {
				for range each {
					n.enqueue(queue.Job{})
				}
			})
		}
		all.Wait()
		writes := bucket.Stats()[mem.Create].Calls - before
		t.Logf("%d segments for %d jobs", writes, callers*each)
		if writes > callers*each/16 {
			t.Errorf("%d segments for %d jobs", writes, callers*each)
		}
	})
}
