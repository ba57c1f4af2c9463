package coordinator

import "sync"

// queue is a first-in, first-out queue without a bound: push never blocks and drops nothing. A slow
// consumer costs memory, but delays nobody.
type queue[T any] struct {
	mu     sync.Mutex
	items  []T
	head   int
	closed bool
	ready  chan struct{} // capacity 1; filled when there is something to read
}

func newQueue[T any]() *queue[T] { return &queue[T]{ready: make(chan struct{}, 1)} }

// push appends v. After close it reports false and drops v.
func (q *queue[T]) push(v T) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed {
		return false
	}
	q.items = append(q.items, v)
	q.signal()
	return true
}

// pop takes the oldest item, if any.
func (q *queue[T]) pop() (v T, ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.head == len(q.items) {
		return v, false
	}
	var none T
	v, q.items[q.head] = q.items[q.head], none
	q.head++
	switch {
	case q.head == len(q.items):
		q.items, q.head = q.items[:0], 0
	case q.head >= 64 && q.head*2 >= len(q.items): // the front half is empty
		q.items, q.head = append(q.items[:0:0], q.items[q.head:]...), 0
	}
	return v, true
}

// close refuses further items. Those in the queue can still be popped. It signals ready once more.
func (q *queue[T]) close() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.closed = true
	q.signal()
}

// done reports whether the queue is closed and empty, so that nothing more will come.
func (q *queue[T]) done() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.closed && q.head == len(q.items)
}

// signal fills ready, if it is not filled.
func (q *queue[T]) signal() {
	select {
	case q.ready <- struct{}{}:
	default:
	}
}
