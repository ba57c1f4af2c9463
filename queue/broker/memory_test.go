//go:build !race

// The race detector doubles stacks.

package broker

import (
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/emitd/emitd/queue"
	"github.com/emitd/emitd/storage/blob/dir"
)

// The most memory that an empty shard may need, in bytes: what it allocates, and that plus the
// stacks of its goroutines. Alone in a process it is 19 KB. The runtime counts free stacks among
// those in use, and other tests leave some, so the limit has room for them, and goroutines are
// counted.
const (
	emptyShardHeap = 13_000
	emptyShard     = 24 << 10
)

// TestEmptyShardMemory measures the memory of shards without jobs and callers: a cluster may have
// thousands of them. The bucket is a directory, whose objects are not in memory.
func TestEmptyShardMemory(t *testing.T) {
	const shards = 256
	bucket, err := dir.Open(dir.Config{Path: t.TempDir(), NoSync: true})
	if err != nil {
		t.Fatal(err)
	}
	w := newWorld(t, bucket)
	n := w.node("n1")
	serve := func(name string, count int) {
		w.declare(queue.Settings{Name: name, Shards: count})
		for i := range count {
			n.begin(name, i)
		}
		for _, r := range n.runs {
			r.ready(t)
		}
		n.updateShards(w.ctx) // as happens every half minute
		for _, s := range n.localShards(name) {
			s.payloads.running.Wait() // it has looked for unneeded payloads
			if err := s.do(w.ctx, newCall(statsStep)); err != nil {
				t.Fatal(err)
			}
		}
	}
	serve("first", shards) // for what the process needs once, such as threads that wait for files
	heapBefore, stacksBefore := memoryInUse()
	before := runtime.NumGoroutine()
	serve("second", shards)
	deadline := time.After(30 * time.Second)
	tick := time.NewTicker(100 * time.Millisecond)
	defer tick.Stop()
	for { // the journals' first requests end, and stacks shrink gradually
		heap, stacks := memoryInUse()
		heap, stacks = (heap-heapBefore)/shards, (stacks-stacksBefore)/shards
		goroutines := (runtime.NumGoroutine() - before + shards/2) / shards
		text := fmt.Sprintf("an empty shard costs %d bytes, %d of the heap and %d of the stacks of %d goroutines", heap+stacks, heap, stacks, goroutines)
		if heap <= emptyShardHeap && heap+stacks <= emptyShard && goroutines == 2 {
			t.Log(text)
			break
		}
		select {
		case <-tick.C:
			continue
		case <-deadline:
			t.Errorf("%s, want at most %d bytes, %d of the heap, and 2 goroutines", text, emptyShard, emptyShardHeap)
		}
		break
	}
	runtime.KeepAlive(n)
}

// memoryInUse returns the bytes of live objects and of the stacks of goroutines.
func memoryInUse() (heap, stacks int64) {
	for range 3 { // a pool is empty after two collections, and memory freed by a finalizer is gone after three
		runtime.GC()
	}
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc), int64(m.StackInuse)
}
