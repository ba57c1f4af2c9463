//go:build !race

// The race detector doubles stacks.

package broker

import (
	"fmt"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/emitd/emitd/queue"
	"github.com/emitd/emitd/storage/blob/dir"
)

// The most memory that an empty shard may need, in bytes: what it allocates, and that plus the
// stack of its goroutine. It is 12 KB: 8 KB, and 4 KB for the stack, whose size is a power of two.
const (
	emptyShardHeap = 9_200
	emptyShard     = 14 << 10
)

// TestEmptyShardMemory measures the memory of shards without jobs and callers: a cluster may have
// thousands of them. The bucket is a directory, whose objects are not in memory.
//
// The runtime counts the spans from which it hands out stacks, whole, even if they hold one stack of
// another goroutine. Whether new stacks fill such spans or need new ones depends on what ran before: now
// and then one measurement has more than half as much again. So it measures several times, each time
// with new shards, and the median counts, for heap and stacks separately.
func TestEmptyShardMemory(t *testing.T) {
	const shards, times = 256, 3
	bucket, err := dir.Open(dir.Config{Path: t.TempDir(), NoSync: true})
	if err != nil {
		t.Fatal(err)
	}
	w := newWorld(t, bucket)
	n := w.node("n1")
	n.serveEmpty("first", shards) // for what the process needs once, such as threads that wait for files
	var heaps, stacks []int64
	for i := range times {
		heapBefore, stacksBefore := memoryInUse()
		before := runtime.NumGoroutine()
		n.serveEmpty(fmt.Sprint("measured-", i), shards)
		n.untilGoroutines(before + shards)
		heap, stack := memoryInUse()
		heaps, stacks = append(heaps, (heap-heapBefore)/shards), append(stacks, (stack-stacksBefore)/shards)
	}
	slices.Sort(heaps)
	slices.Sort(stacks)
	heap, stack := heaps[times/2], stacks[times/2]
	t.Logf("an empty shard costs %d bytes, %d of the heap (of %d) and %d of stacks (of %d)", heap+stack, heap, heaps, stack, stacks)
	if heap > emptyShardHeap || heap+stack > emptyShard {
		t.Errorf("want at most %d bytes, %d of the heap", emptyShard, emptyShardHeap)
	}
	runtime.KeepAlive(n)
}

// serveEmpty serves the shards of a new queue, and returns when they are idle.
func (n *node) serveEmpty(name string, shards int) {
	n.w.declare(queue.Settings{Name: name, Shards: shards})
	for i := range shards {
		n.begin(name, i)
	}
	for _, r := range n.runs {
		r.ready(n.w.t)
	}
	n.updateShards(n.w.ctx, followEvery/2) // as happens every half minute
	for _, s := range n.localShards(name) {
		s.payloads.running.Wait() // it has looked for unneeded payloads
		if err := s.inquire(n.w.ctx, func(*shard) {}); err != nil {
			n.w.t.Fatal(err)
		}
	}
}

// untilGoroutines waits until the journals' first requests have ended, and only this many goroutines
// are left.
func (n *node) untilGoroutines(want int) {
	deadline := time.After(30 * time.Second)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for runtime.NumGoroutine() > want {
		select {
		case <-tick.C:
		case <-deadline:
			n.w.t.Fatalf("there are %d goroutines, want %d", runtime.NumGoroutine(), want)
		}
	}
}

// memoryInUse returns the bytes of live objects and of the stacks of goroutines.
func memoryInUse() (heap, stacks int64) {
	// A pool is empty after two collections, and memory freed by a finalizer is gone after three. Each
	// collection halves the stacks that are mostly empty.
	for range 6 {
		runtime.GC()
	}
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc), int64(m.StackInuse)
}
