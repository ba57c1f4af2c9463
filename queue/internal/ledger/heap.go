package ledger

import (
	"slices"
	"unsafe"
)

// readyQueue holds the waiting jobs of one type. Jobs that came in order are in a FIFO. The others, which
// are retried or have a higher priority than jobs before them, are in a heap. The heap has four
// children per node, for fewer cache misses than with two.
type readyQueue struct {
	fifo fifo
	heap []uint32
	most int // highest length of the heap since the last tidy
}

func (n *readyQueue) len() int { return n.fifo.live + len(n.heap) }

const (
	arity          = 4
	readyQueueSize = int64(unsafe.Sizeof(readyQueue{}))
)

// less reports whether job a is claimed before job b.
func (l *Ledger) less(a, b uint32) bool {
	x, y := l.jobs.at(a), l.jobs.at(b)
	if x.priority != y.priority {
		return x.priority > y.priority
	}
	return x.place() < y.place()
}

// addReady puts a job into the ready queue of its type.
func (l *Ledger) addReady(i uint32) {
	j := l.jobs.at(i)
	for int(j.typ) >= len(l.readyByType) {
		l.readyByType = append(l.readyByType, readyQueue{})
	}
	if j.number < l.oldest {
		l.oldest = j.number
	}
	n := &l.readyByType[j.typ]
	if n.len() == 0 {
		l.nonEmptyTypes = append(l.nonEmptyTypes, j.typ)
	}
	if n.fifo.live == 0 || l.less(n.fifo.last(), i) {
		j.flags |= inFIFO
		j.pos = n.fifo.push(i)
		return
	}
	n.heap = append(n.heap, i)
	n.most = max(n.most, len(n.heap))
	l.up(n, len(n.heap)-1)
}

// removeReady takes a job out of the ready queue of its type.
func (l *Ledger) removeReady(i uint32) {
	j := l.jobs.at(i)
	n := &l.readyByType[j.typ]
	if j.flags&inFIFO != 0 {
		j.flags &^= inFIFO
		n.fifo.remove(j.pos)
		if n.fifo.mostlyGaps() {
			n.fifo.compact(func(i, pos uint32) { l.jobs.at(i).pos = pos })
		}
	} else {
		l.unheap(n, int(j.pos))
	}
	if n.len() == 0 {
		at := slices.Index(l.nonEmptyTypes, j.typ)
		l.nonEmptyTypes[at] = l.nonEmptyTypes[len(l.nonEmptyTypes)-1]
		l.nonEmptyTypes = l.nonEmptyTypes[:len(l.nonEmptyTypes)-1]
	}
}

func (l *Ledger) unheap(n *readyQueue, at int) {
	last := len(n.heap) - 1
	n.heap[at] = n.heap[last]
	n.heap = n.heap[:last]
	if at < last {
		l.jobs.at(n.heap[at]).pos = uint32(at)
		l.down(n, at)
		l.up(n, at)
	}
}

// best returns the job of a ready queue that is claimed first. The queue must not be empty.
func (l *Ledger) best(n *readyQueue) uint32 {
	switch {
	case n.fifo.live == 0:
		return n.heap[0]
	case len(n.heap) > 0 && l.less(n.heap[0], n.fifo.jobs[n.fifo.front]):
		return n.heap[0]
	}
	return n.fifo.jobs[n.fifo.front]
}

func (l *Ledger) up(n *readyQueue, at int) {
	i := n.heap[at]
	for at > 0 {
		parent := (at - 1) / arity
		if !l.less(i, n.heap[parent]) {
			break
		}
		n.heap[at] = n.heap[parent]
		l.jobs.at(n.heap[at]).pos = uint32(at)
		at = parent
	}
	n.heap[at] = i
	l.jobs.at(i).pos = uint32(at)
}

func (l *Ledger) down(n *readyQueue, at int) {
	i := n.heap[at]
	for {
		first := arity*at + 1
		if first >= len(n.heap) {
			break
		}
		best := first
		for c := first + 1; c < min(first+arity, len(n.heap)); c++ {
			if l.less(n.heap[c], n.heap[best]) {
				best = c
			}
		}
		if !l.less(n.heap[best], i) {
			break
		}
		n.heap[at] = n.heap[best]
		l.jobs.at(n.heap[at]).pos = uint32(at)
		at = best
	}
	n.heap[at] = i
	l.jobs.at(i).pos = uint32(at)
}

// timers is a heap of the times at which something happens to jobs.
type timers struct {
	heap []timer
	most int // highest length since the last tidy
	jobs *arena
	ttl  bool // the heap of times to live: jobs store their position in ttl, not in pos
}

type timer struct {
	at    int64
	job   uint32
	order uint32 // the lower half of the job's number: copied here, because reading the job costs a cache miss
}

const timerSize = 16

func (t *timers) init(jobs *arena, ttl bool) { t.jobs, t.ttl = jobs, ttl }

func (t *timers) place(at int, e timer) {
	t.heap[at] = e
	if t.ttl {
		t.jobs.at(e.job).ttl = uint32(at) + 1
	} else {
		t.jobs.at(e.job).pos = uint32(at)
	}
}

// before orders by time, then by number, so that equal states behave equally.
func before(a, b timer) bool { return a.at < b.at || a.at == b.at && a.order < b.order }

func (t *timers) add(at int64, job uint32) {
	t.heap = append(t.heap, timer{})
	t.most = max(t.most, len(t.heap))
	t.up(len(t.heap)-1, timer{at, job, uint32(t.jobs.at(job).number)})
}

// move changes the time of an entry.
func (t *timers) move(pos uint32, at int64) {
	e := t.heap[pos]
	e.at = at
	t.down(int(pos), e)
	t.up(int(t.posOf(e.job)), e)
}

func (t *timers) posOf(job uint32) uint32 {
	if t.ttl {
		return t.jobs.at(job).ttl - 1
	}
	return t.jobs.at(job).pos
}

func (t *timers) remove(pos uint32) {
	last := len(t.heap) - 1
	e := t.heap[last]
	gone := t.heap[pos].job
	t.heap = t.heap[:last]
	if int(pos) < last {
		t.down(int(pos), e)
		t.up(int(t.posOf(e.job)), e)
	}
	if t.ttl {
		t.jobs.at(gone).ttl = 0
	}
}

// shrink releases a heap's unused memory. most is its highest length since the last call.
func shrink[T any](heap []T, most *int) []T {
	if cap(heap) > 1024 && cap(heap) > 4**most {
		heap = append(make([]T, 0, 2*len(heap)), heap...)
	}
	*most = len(heap)
	return heap
}

func (t *timers) up(at int, e timer) {
	for at > 0 {
		parent := (at - 1) / arity
		if !before(e, t.heap[parent]) {
			break
		}
		t.place(at, t.heap[parent])
		at = parent
	}
	t.place(at, e)
}

func (t *timers) down(at int, e timer) {
	for {
		first := arity*at + 1
		if first >= len(t.heap) {
			break
		}
		best := first
		for c := first + 1; c < min(first+arity, len(t.heap)); c++ {
			if before(t.heap[c], t.heap[best]) {
				best = c
			}
		}
		if !before(t.heap[best], e) {
			break
		}
		t.place(at, t.heap[best])
		at = best
	}
	t.place(at, e)
}

func (t *timers) bytes() int64 { return int64(cap(t.heap)) * timerSize }
