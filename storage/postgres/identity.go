package postgres

import (
	"context"
	"crypto/rand"
	"maps"
	"strings"
)

// The identity of a store is that of its server, the system identifier and the timeline of the log
// that it writes. Another system, or another timeline of the same one, has lost what it has lost. A
// server whose rows have gone back in time (restored from a dump, made anew, or lost in a crash
// without synchronous_commit) is the same one; so the first process that finds fewer events than it
// was told of puts a mark behind the identity, in the rows.

// identity returns the store's identity on a server, as the rows have it.
func (s *state) identity(server string) string {
	if strings.HasPrefix(s.knownID, server+"#") {
		return s.knownID
	}
	return server
}

// heads are the newest events that this process was told of, by identity of the store. A map is never
// written to again.
type heads map[string]int64

// heads returns what was seen until now. Whoever compares rows with it takes it before reading them.
func (s *Store) heads() heads {
	if seen := s.seen.Load(); seen != nil {
		return *seen
	}
	return nil
}

// saw notes the newest event of a store.
func (s *Store) saw(id string, head int64) {
	for {
		old := s.seen.Load()
		var seen heads
		if old != nil {
			seen = *old
		}
		if seen[id] >= head {
			return
		}
		next := make(heads, len(seen)+1)
		maps.Copy(next, seen)
		next[id] = head
		if s.seen.CompareAndSwap(old, &next) {
			return
		}
	}
}

// identify names the store, and makes the rows know it. That takes a second round trip once for each
// process of the server, and once in the life of the rows on it.
func (s *Store) identify(ctx context.Context, b *beat) error {
	server, err := s.system(ctx, &b.state)
	if err != nil {
		return err
	}
	b.id = b.state.identity(server)
	lost := b.state.head < b.before[b.id]
	if b.state.knownID == b.id && !lost {
		s.saw(b.id, b.state.head)
		return nil
	}
	name := b.id
	if lost {
		name = server + "#" + rand.Text()
		s.cfg.Logger.Warn("the store's rows went back in time, it is another store now: was a backup restored, or lost a crash what was committed?",
			"events_now", b.state.head, "events_seen", b.before[b.id])
	}
	var then state
	err = s.call(ctx, "identify", writing, func(m *message) {
		m.do("identify", name, b.state.knownID, lost)
		m.ask(columns(then.row), "single")
	})
	// Everything else in the reply is of the moment of the heartbeat.
	b.id, b.state.now, b.state.since = then.identity(server), then.now, then.since
	return err
}

// system returns the server's identity. The timeline is that of the log which is written now, because
// a connection outlives a promotion. The identifier is read from a file by the server, so it is asked
// for once for each server process, which has one for life.
func (s *Store) system(ctx context.Context, st *state) (string, error) {
	if st.server == "" {
		return "", errNoCounter
	}
	for range 3 {
		if id, ok := s.systems.Load(st.server); ok {
			return id.(string) + "/" + st.line, nil
		}
		var server, id string
		err := s.call(ctx, "identify", reading, func(m *message) {
			m.ask(columns(func(c *composite) error {
				server, id = c.text(), c.text()
				return nil
			}), "system")
		})
		if err != nil {
			return "", err
		}
		s.systems.Store(server, id)
	}
	return "", &unavailable{"the server was restarted again and again", context.DeadlineExceeded}
}
