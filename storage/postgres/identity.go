package postgres

import (
	"context"
	"crypto/rand"
	"maps"
	"strings"
)

// The store identity is that of the server: its system identifier and the timeline of the log that it
// writes. Another system, or another timeline of the same one, may lack committed changes. But a
// server can also lose rows and keep its identity: they were restored from a dump, created anew, or
// lost in a crash without synchronous_commit. Therefore the first process that notices appends a mark to
// the identity and records both in the rows.
//
// A process notices by the number of the newest event, and by the row of a node: it has the number of each heartbeat that
// was answered, or a higher one. Others may have written as many events as were lost. Only the node writes its row, and
// whoever loses an event also loses each heartbeat that was answered after it.

// identity returns the store identity on a server, as the rows record it.
func (s *state) identity(server string) string {
	if strings.HasPrefix(s.knownID, server+"#") {
		return s.knownID
	}
	return server
}

// heads are the newest events that this process has seen, by store identity. A map is never written
// to again; noteHead replaces it.
type heads map[string]int64

// heads returns what this process has seen so far. A caller that compares rows with it must take it
// before it reads the rows.
func (s *Store) heads() heads {
	if seen := s.seen.Load(); seen != nil {
		return *seen
	}
	return nil
}

// noteHead records the newest event of a store.
func (s *Store) noteHead(id string, head int64) {
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

// identify determines the store identity of a reply and records a new one in the rows. That takes
// an extra round trip once for each process of the server, and once when the identity changes.
func (s *Store) identify(ctx context.Context, b *beat) error {
	server, err := s.system(ctx, &b.state)
	if err != nil {
		return err
	}
	b.id = b.state.identity(server)
	lost := b.state.head < b.before[b.id] || b.former < b.answered.seqIn(b.id)
	if b.state.knownID == b.id && !lost {
		s.noteHead(b.id, b.state.head)
		return nil
	}
	name := b.id
	if lost {
		name = server + "#" + rand.Text()
		s.cfg.Logger.Warn("the store's rows went back in time, so it counts as another store now: a backup may have been restored, or a crash may have lost commits",
			"events_now", b.state.head, "events_seen", b.before[b.id], "heartbeat_now", b.former, "heartbeat_answered", b.answered.seqIn(b.id))
	}
	var then state
	err = s.call(ctx, "identify", writing, func(m *message) {
		m.do("identify", name, b.state.knownID, lost)
		m.query(then.scanSingle, "single")
	})
	// Everything else in the reply describes the moment of the heartbeat.
	b.id, b.state.now, b.state.since = then.identity(server), then.now, then.since
	return err
}

// follows reports whether what was read later is of the same server, and not older. A later call may reach another server,
// such as a standby that lags behind.
func (s *state) follows(earlier *state) bool {
	return s.server == earlier.server && s.line == earlier.line && s.head >= earlier.head
}

// errElsewhere is the error of a reply whose parts are not of one store.
var errElsewhere = &unavailable{"the parts of the answer came from different servers", context.DeadlineExceeded}

// system returns the server's identity: system identifier and timeline. The timeline is that of the
// log which the server writes now, because a connection can outlive a promotion. The server reads
// its identifier from a file, so it is asked only once per server process, for which it cannot
// change.
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
			m.query(func(c *composite) error {
				server, id = c.text(), c.text()
				return nil
			}, "system")
		})
		if err != nil {
			return "", err
		}
		s.systems.Store(server, id)
	}
	return "", &unavailable{"the server was restarted again and again", context.DeadlineExceeded}
}
