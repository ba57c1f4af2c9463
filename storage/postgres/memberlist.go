package postgres

import (
	"context"
	"encoding/json"
	"maps"
	"sync"
	"time"

	"github.com/emitd/emitd/node"
)

// memberLists shares member lists among nodes of this process that want one at the same time, as all do that register. If
// each read its own, a thousand nodes would read half a million rows, which takes longer than everything else that they do.
type memberLists struct {
	mu      sync.Mutex
	wanted  int       // heartbeats under way that want a list
	next    *listRead // has not begun; whoever comes now shares it
	reading bool
	reads   int // readings that have begun
}

// listRead is one reading of the member list, for all that wait for it.
type listRead struct {
	done chan struct{} // closed when the rest is set
	rows []node.Member
	at   state // of the store when the list was read
	err  error
}

// enter counts a heartbeat that wants a list, and reports whether another one is under way.
func (l *memberLists) enter() (others bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.wanted++
	return l.wanted > 1
}

// leave counts a heartbeat that has ended.
func (l *memberLists) leave() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.wanted--
}

// sharedMembers returns the member list and the state of that moment. The reading begins after the call, so the list
// has everything that its caller has written. It is shared with all that call before it begins.
func (s *Store) sharedMembers(ctx context.Context) (*listRead, error) {
	r, err := s.joinRead()
	if err != nil {
		return nil, err
	}
	select {
	case <-r.done:
		return r, r.err
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// joinRead returns the next reading. It starts the goroutine that reads, if there is none.
func (s *Store) joinRead() (*listRead, error) {
	l := &s.lists
	l.mu.Lock()
	defer l.mu.Unlock()
	if s.calls.Err() != nil {
		return nil, errClosed
	}
	r := l.join()
	if !l.reading {
		l.reading = true
		s.own.Go(s.readLists)
	}
	return r, nil
}

// join returns the reading that begins next. Several that join before it begins share it.
func (l *memberLists) join() *listRead {
	if l.next == nil {
		l.next = &listRead{done: make(chan struct{})}
	}
	return l.next
}

// begin takes the next reading; nil if nobody waits.
func (l *memberLists) begin() *listRead {
	l.mu.Lock()
	defer l.mu.Unlock()
	r := l.next
	l.next, l.reading = nil, r != nil
	if r != nil {
		l.reads++
	}
	return r
}

// end waits for a joinRead that is under way. The store's calls have ended before, so every later one refuses.
func (l *memberLists) end() {
	l.mu.Lock()
	defer l.mu.Unlock()
}

// readLists reads one list after the other until nobody waits.
func (s *Store) readLists() {
	s.lists.read(s.calls.Done(), func(r *listRead) {
		r.err = s.call(s.calls, "members", reading, func(m *message) {
			m.query(r.at.scanSingle, "single")
			m.query(s.members(&r.rows, &r.at.head), "members")
		})
	})
}

// read reads lists until nobody waits. Between two it pauses, for twice as long as the reading took: those who come meanwhile
// share the next one. Otherwise a crowd, of which a few at a time have registered, would keep reading ever longer lists.
func (l *memberLists) read(over <-chan struct{}, read func(*listRead)) {
	for r := l.begin(); r != nil; r = l.begin() {
		began := time.Now()
		read(r)
		close(r.done)
		select {
		case <-over:
		case <-time.After(min(2*time.Since(began), maxListPause)):
		}
	}
}

// maxListPause bounds the pause between two readings: a heartbeat must be answered within its query timeout.
const maxListPause = 50 * time.Millisecond

// traitsCache has the traits of each process as they were parsed last. A process seldom changes them, and parsing them is
// most of the work with a member list. The zero value is empty.
type traitsCache struct {
	mu   sync.Mutex
	last map[node.Incarnation]parsedTraits
}

type parsedTraits struct {
	text   string
	traits node.Traits
}

// maxTraits bounds the cache. It is emptied then, because the rows of most of its processes are gone.
const maxTraits = 10_000

// parse returns the traits that a text stands for.
func (c *traitsCache) parse(process node.Incarnation, text []byte) (node.Traits, error) {
	c.mu.Lock()
	known, ok := c.last[process]
	c.mu.Unlock()
	if ok && known.text == string(text) {
		known.traits.Labels = maps.Clone(known.traits.Labels) // the caller may write to its own
		return known.traits, nil
	}
	parsed := parsedTraits{text: string(text)}
	if err := json.Unmarshal(text, &parsed.traits); err != nil {
		return parsed.traits, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.last == nil || len(c.last) >= maxTraits {
		c.last = map[node.Incarnation]parsedTraits{}
	}
	c.last[process] = parsed
	parsed.traits.Labels = maps.Clone(parsed.traits.Labels)
	return parsed.traits, nil
}
