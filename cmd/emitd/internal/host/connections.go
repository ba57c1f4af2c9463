package host

import (
	"crypto/tls"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"
)

// connections is a listener that has so many connections at most. When all places are taken, a new
// connection takes that of the one which has asked nothing for longest; if all are busy, it is closed.
type connections struct {
	net.Listener
	most int
	log  *slog.Logger

	mu     sync.Mutex
	open   map[*connection]time.Time // since when nothing was asked; zero: it is busy
	warned time.Time
}

// connection is one of them.
type connection struct {
	net.Conn
	of *connections
}

func newConnections(l net.Listener, most int, log *slog.Logger) *connections {
	return &connections{Listener: l, most: most, log: log, open: map[*connection]time.Time{}}
}

// Accept waits for the next connection for which there is a place.
func (l *connections) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if out := l.admit(c); out != nil {
			return out, nil
		}
		_ = c.Close()
	}
}

// admit gives a connection a place, or returns nil.
func (l *connections) admit(c net.Conn) *connection {
	l.mu.Lock()
	var idle *connection
	full := len(l.open) >= l.most
	if full {
		for o, since := range l.open {
			if !since.IsZero() && (idle == nil || since.Before(l.open[idle])) {
				idle = o
			}
		}
		if time.Since(l.warned) > time.Minute {
			l.warned = time.Now()
			l.log.Warn("all connections are in use (api.max_connections): idle ones are closed for new ones", "connections", l.most)
		}
	}
	var out *connection
	if !full || idle != nil {
		delete(l.open, idle)
		out = &connection{c, l}
		l.open[out] = time.Now()
	}
	l.mu.Unlock()
	if idle != nil {
		_ = idle.Conn.Close()
	}
	return out
}

// note learns from the server what a connection does.
func (l *connections) note(c net.Conn, s http.ConnState) {
	if t, ok := c.(*tls.Conn); ok {
		c = t.NetConn()
	}
	own, ok := c.(*connection)
	if !ok {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, ok := l.open[own]; !ok {
		return
	}
	var since time.Time
	if s == http.StateIdle || s == http.StateNew {
		since = time.Now()
	}
	l.open[own] = since
}

// Close closes the connection and frees its place.
func (c *connection) Close() error {
	c.of.mu.Lock()
	delete(c.of.open, c)
	c.of.mu.Unlock()
	return c.Conn.Close()
}
