package queue

import "sync"

// mailbox hands values from many goroutines to one, in order. It is a channel with a large buffer,
// except that its memory is taken when it is needed and given back when it is empty: a process has
// thousands of shards, and most of them are idle.
type mailbox[T any] struct {
	filled chan struct{} // signalled when there may be something to get
	room   chan struct{} // signalled when there may be room again

	mu    sync.Mutex
	items []T
	first int // of items that is still there; those before it were taken
	limit int
}

// keptRoom is for how many values an empty mailbox keeps memory.
const keptRoom = 32

func newMailbox[T any](limit int) *mailbox[T] {
	return &mailbox[T]{filled: make(chan struct{}, 1), room: make(chan struct{}, 1), limit: limit}
}

// put adds a value and reports whether there was room. Whoever does not give up then waits for room
// and puts again: each one who succeeds wakes the next if there is room left.
func (m *mailbox[T]) put(v T) bool {
	m.mu.Lock()
	n := len(m.items) - m.first
	if n < m.limit {
		if len(m.items) == cap(m.items) && m.first > n { // rather than grow
			copy(m.items, m.items[m.first:])
			clear(m.items[n:])
			m.items, m.first = m.items[:n], 0
		}
		m.items = append(m.items, v)
	}
	m.mu.Unlock()
	if n >= m.limit {
		return false
	}
	signal(m.filled)
	if n+1 < m.limit {
		signal(m.room)
	}
	return true
}

// get takes the oldest value, if there is any.
func (m *mailbox[T]) get() (v T, ok bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	n := len(m.items) - m.first
	if n == 0 {
		return v, false
	}
	var none T
	v, m.items[m.first] = m.items[m.first], none
	m.first++
	if n == 1 {
		m.items, m.first = m.items[:0], 0
		if cap(m.items) > keptRoom {
			m.items = nil
		}
	}
	if n == m.limit {
		signal(m.room)
	}
	return v, true
}

// again has filled signalled if there is something left: the receiver stopped before the end.
func (m *mailbox[T]) again() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.items) > m.first {
		signal(m.filled)
	}
}

// signal leaves a token in a channel of one.
func signal(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
