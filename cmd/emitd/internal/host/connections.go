package host

import (
	"crypto/tls"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"sync"
	"sync/atomic"
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
	open   map[*connection]struct{}
	warned time.Time
}

// connection is a connection that connections counts.
type connection struct {
	net.Conn
	of   *connections
	idle atomic.Int64 // since when, as Unix time in nanoseconds; 0: busy
}

func newConnections(l net.Listener, p places, log *slog.Logger) *connections {
	return &connections{Listener: l, places: p, log: log, open: map[*connection]struct{}{}}
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
	full := len(l.open) >= l.connections
	if full {
		var longest int64
		for o := range l.open {
			if since := o.idle.Load(); since != 0 && (victim == nil || since < longest) {
				victim, longest = o, since
			}
		}
		if victim == nil {
			victim = l.heaviest(addressOf(c))
		}
		if time.Since(l.warned) > time.Minute {
			l.warned = time.Now()
			l.log.Warn("all connections are in use (api.max_connections): each new one closes an idle one, or else one of the address with the most", "connections", l.connections)
		}
	}
	var out *connection
	if !full || victim != nil {
		delete(l.open, victim)
		out = &connection{Conn: c, of: l}
		out.idle.Store(time.Now().UnixNano())
		l.open[out] = struct{}{}
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

// note records the state changes of a connection that the server reports: two for each call, so without a lock.
func (l *connections) note(c net.Conn, s http.ConnState) {
	switch outer := c.(type) {
	case *tls.Conn:
		c = outer.NetConn()
	case interface{ Unwrap() net.Conn }: // passed on by plaincall
		c = outer.Unwrap()
	}
	own, ok := c.(*connection)
	switch {
	case !ok:
	case s == http.StateIdle || s == http.StateNew:
		own.idle.Store(time.Now().UnixNano())
	default:
		own.idle.Store(0)
	}
}

// Close closes the connection and makes room for another.
func (c *connection) Close() error {
	c.of.mu.Lock()
	delete(c.of.open, c)
	c.of.mu.Unlock()
	return c.Conn.Close()
}
