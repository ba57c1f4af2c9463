package queue

import (
	"runtime"
	"testing"
)

// What an empty shard may cost, in bytes. The heap is what a shard allocates; the rest is the stacks of
// its goroutines.
const (
	emptyShardHeap  = 20_000
	emptyShardTotal = 48_000
)

// TestEmptyShardMemory measures what shards cost that hold no job and have no caller: a cluster may
// have thousands of them.
func TestEmptyShardMemory(t *testing.T) {
	const first, shards = 8, 200
	w := newWorld(t, nil)
	n := w.node("n1")
	serve := func(name string, count int) {
		w.declare(Settings{Name: name, Shards: count})
		for i := range count {
			n.begin(name, i)
		}
		for _, r := range n.runs {
			r.ready(t)
		}
	}
	serve("first", first) // for what the process has once, whatever the number of shards
	heapBefore, stacksBefore := memoryInUse()
	goroutines := runtime.NumGoroutine()
	serve("many", shards)
	heap, stacks := memoryInUse()
	heap, stacks = (heap-heapBefore)/shards, (stacks-stacksBefore)/shards
	t.Logf("an empty shard costs %d bytes of heap, %d of stacks, and %d goroutines", heap, stacks, (runtime.NumGoroutine()-goroutines)/shards)
	if heap > emptyShardHeap {
		t.Errorf("an empty shard costs %d bytes of heap, want at most %d", heap, emptyShardHeap)
	}
	if heap+stacks > emptyShardTotal {
		t.Errorf("an empty shard costs %d bytes with its stacks, want at most %d", heap+stacks, emptyShardTotal)
	}
	runtime.KeepAlive(n)
}

// memoryInUse returns the bytes of live objects and of the stacks of goroutines.
func memoryInUse() (heap, stacks int64) {
	for range 3 { // a pool is empty after two collections, and what a finalizer lets go is gone after three
		runtime.GC()
	}
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc), int64(m.StackInuse)
}
