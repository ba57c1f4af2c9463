package broker

import "sync"

// mailbox is a queue of values from many goroutines to one, in order. It works like a channel with
// a large buffer, but takes memory only as needed and returns it when empty: a process has
// thousands of shards, and most of them are idle.
type mailbox[T any] struct {
	limit  int
	filled chan<- struct{} // gets a token when there may be a value; nil: the receiver looks without being told

	mu    sync.Mutex
	items []T
	first int           // index of the oldest value in items; the ones before it were taken
	freed chan struct{} // see room; nil until somebody waits
}

// keptRoom is the capacity, in values, that an empty mailbox keeps.
const keptRoom = 32

// room returns a channel that has a token when there may be room again. A caller that wants to wait gets it first. Then
// it calls put, and receives from the channel whenever that fails.
func (m *mailbox[T]) room() <-chan struct{} {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.freed == nil {
		m.freed = make(chan struct{}, 1)
	}
	return m.freed
}

// put adds a value and reports whether there was room. Each successful put wakes the next caller that waits for
// room, if some is left.
func (m *mailbox[T]) put(v T) bool {
	m.mu.Lock()
	n, freed := len(m.items)-m.first, m.freed
	if n < m.limit {
		if len(m.items) == cap(m.items) && m.first > n { // move the values to the front instead of growing
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
		signal(freed)
	}
	return true
}

// get removes and returns the oldest value, if there is one.
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
		signal(m.freed)
	}
	return v, true
}

// resignal signals filled if values are left: the receiver stopped before the end.
func (m *mailbox[T]) resignal() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.items) > m.first {
		signal(m.filled)
	}
}

// signal puts a token into a channel with a buffer of one, unless it has one. A nil channel gets none.
func signal(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
