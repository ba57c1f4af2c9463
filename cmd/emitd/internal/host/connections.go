package host

import (
	"crypto/tls"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"time"
)

// connections is a listener with a limit on open connections. When the limit is reached, a new connection
// replaces the one that has been idle longest. If all are busy, it replaces one from the address with the
// most connections, so that no client can keep others out for ever with long calls such as WebSockets. If
// its own address has as many, the new connection is closed.
type connections struct {
	net.Listener
	places
	log *slog.Logger

	mu     sync.Mutex
	open   map[*connection]time.Time // idle since then; zero: busy
	warned time.Time
}

// connection is a connection that connections counts.
type connection struct {
	net.Conn
	of *connections
}

func newConnections(l net.Listener, p places, log *slog.Logger) *connections {
	return &connections{Listener: l, places: p, log: log, open: map[*connection]time.Time{}}
}

// Accept waits for the next connection that is admitted.
func (l *connections) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			return nil, err
		}
		if out := l.admit(c); out != nil {
			if t, ok := c.(*net.TCPConn); ok && l.sendBuffer > 0 {
				_ = t.SetWriteBuffer(l.sendBuffer) // an error means that the client has gone
			}
			return out, nil
		}
		_ = c.Close()
	}
}

// admit adds a connection, or returns nil if it was closed.
func (l *connections) admit(c net.Conn) *connection {
	l.mu.Lock()
	var victim *connection
	full := len(l.open) >= l.places.connections
	if full {
		for o, since := range l.open {
			if !since.IsZero() && (victim == nil || since.Before(l.open[victim])) {
				victim = o
			}
		}
		if victim == nil {
			victim = l.heaviest(addressOf(c))
		}
		if time.Since(l.warned) > time.Minute {
			l.warned = time.Now()
			l.log.Warn("all connections are in use (api.max_connections): each new one closes an idle one, or else one of the address with the most", "connections", l.places.connections)
		}
	}
	var out *connection
	if !full || victim != nil {
		delete(l.open, victim)
		out = &connection{c, l}
		l.open[out] = time.Now()
	}
	l.mu.Unlock()
	if victim != nil {
		_ = victim.Conn.Close()
	}
	return out
}

// heaviest returns a connection of the address that has most, or nil if the newcomer's address would then
// have as many.
func (l *connections) heaviest(newcomer netip.Addr) *connection {
	count := map[netip.Addr]int{}
	var victim *connection
	var most int
	for o := range l.open {
		from := addressOf(o.Conn)
		if count[from]++; count[from] > most {
			most, victim = count[from], o
		}
	}
	if victim == nil || most < count[newcomer]+2 {
		return nil
	}
	return victim
}

// addressOf returns the remote address of a connection. For IPv6 it is the network, because a host can
// use any number of addresses in it.
func addressOf(c net.Conn) netip.Addr {
	at, err := netip.ParseAddrPort(c.RemoteAddr().String())
	if err != nil {
		return netip.Addr{}
	}
	ip := at.Addr().Unmap().WithZone("")
	if ip.Is6() {
		if p, err := ip.Prefix(64); err == nil {
			return p.Addr()
		}
	}
	return ip
}

// note records the state changes of a connection that the server reports.
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

// Close closes the connection and makes room for another.
func (c *connection) Close() error {
	c.of.mu.Lock()
	delete(c.of.open, c)
	c.of.mu.Unlock()
	return c.Conn.Close()
}
