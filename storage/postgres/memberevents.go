package postgres

import (
	"slices"
	"sync"

	"github.com/emitd/emitd/daemon"
)

// memberEvents has the newest events about members that heartbeats of this process have read, without a gap. Nodes of one
// process share them: an event is sent to the process once or a few times, and not to each of a thousand nodes. The zero
// value is empty.
//
// Events never change, and their numbers are in the order of commits. So what one reply says about a range of numbers is
// true for every node, as long as the store has the same identity. A store that has lost its newest events has another one.
type memberEvents struct {
	mu       sync.Mutex
	store    string // the store's identity
	from, to int64  // every event about members after from and up to to is here
	events   []daemon.Event
}

// maxSharedEvents bounds the events that are kept. A node that is further behind reads its own.
const maxSharedEvents = 2 * maxMemberEvents

// sharedEvents are what a heartbeat need not read.
type sharedEvents struct {
	store  string
	events []daemon.Event // after the node's cursor and up to after; never written to
	after  int64          // the heartbeat asks for events after this number
}

// after returns what is known after a cursor. A node whose cursor is a little ahead of what is known asks for the events in
// between as well, so that there is no gap. They must be fewer than one answer has: a node whose answer has nothing behind its
// cursor goes on from the newest event of all.
func (m *memberEvents) after(cursor int64) sharedEvents {
	m.mu.Lock()
	defer m.mu.Unlock()
	if cursor < 0 || m.store == "" || cursor < m.from || cursor >= m.to+maxMemberEvents {
		return sharedEvents{after: cursor}
	}
	return sharedEvents{m.store, laterThan(cursor, m.events), m.to}
}

// add notes what a reply of a store says. The events are all about members that are kept after one number and up to another,
// and none before oldest is kept.
func (m *memberEvents) add(store string, oldest, after, through int64, events []daemon.Event) {
	m.mu.Lock()
	defer m.mu.Unlock()
	after = max(after, oldest-1)
	if store != m.store || after > m.to {
		m.store, m.from, m.events = store, min(after, through), nil
		m.to = m.from
	}
	if after < m.from || through <= m.to {
		return
	}
	for _, e := range laterThan(m.to, events) {
		if e.Seq <= through {
			m.events = append(m.events, e)
		}
	}
	m.to = through
	if more := len(m.events) - maxSharedEvents; more > 0 {
		m.from = m.events[more-1].Seq
		m.events = slices.Clone(m.events[more:])
	}
}

// laterThan returns the events with higher numbers. The slice cannot grow in place.
func laterThan(seq int64, events []daemon.Event) []daemon.Event {
	first := len(events)
	for first > 0 && events[first-1].Seq > seq {
		first--
	}
	return events[first:len(events):len(events)]
}
