package broker

import (
	"sync"
	"testing"
)

// TestMailboxOrder puts and gets values in waves, so that the mailbox grows, moves its values to
// the front and releases its memory. It checks the order and the limit.
func TestMailboxOrder(t *testing.T) {
	const limit = 1000
	m := &mailbox[int]{limit: limit}
	put, got := 0, 0
	for wave := range 200 {
		for range wave * 7 % 300 {
			if !m.put(put) {
				if put-got != limit {
					t.Fatalf("full with %d of %d", put-got, limit)
				}
				break
			}
			put++
		}
		for range wave * 5 % 300 {
			v, ok := m.get()
			if ok != (got < put) || ok && v != got {
				t.Fatalf("got %d, %t, want %d of %d", v, ok, got, put)
			}
			if ok {
				got++
			}
		}
	}
	for ; got < put; got++ {
		if v, ok := m.get(); !ok || v != got {
			t.Fatalf("got %d, %t, want %d", v, ok, got)
		}
	}
	if _, ok := m.get(); ok || cap(m.items) > keptRoom {
		t.Fatalf("the empty mailbox has a value (%t), or room for %d", ok, cap(m.items))
	}
}

// TestMailboxWakes lets many senders wait for room in a mailbox of two places, while the receiver
// sometimes stops early. No sender waits for ever, and each sender's values arrive in order.
func TestMailboxWakes(t *testing.T) {
	const senders, each = 16, 500
	filled := make(chan struct{}, 1)
	m := &mailbox[[2]int]{limit: 2, filled: filled}
	var all sync.WaitGroup
	for s := range senders {
		all.Go(func() {
			room := m.room()
			for i := range each {
				for !m.put([2]int{s, i}) {
					<-room
				}
			}
		})
	}
	var next [senders]int
	for n := 0; n < senders*each; {
		<-filled
		for range 1 + n%3 {
			v, ok := m.get()
			if !ok {
				break
			}
			if v[1] != next[v[0]] {
				t.Fatalf("sender %d: got %d, want %d", v[0], v[1], next[v[0]])
			}
			next[v[0]]++
			n++
		}
		m.resignal()
	}
	all.Wait()
}
