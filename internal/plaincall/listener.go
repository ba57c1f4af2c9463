package plaincall

import (
	"context"
	"log"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// Config configures a [Listener]. Handler and Path are required.
type Config struct {
	// Handler answers the calls. It is the handler of the server, too.
	Handler http.Handler
	// Path reports whether calls to a path may be answered here. Their answers are not streams.
	Path func(path string) bool
	// HeaderTimeout is how long a new connection may send nothing, and IdleTimeout how long a later one.
	HeaderTimeout, IdleTimeout time.Duration
	// State is told what happens to a connection, as ConnState of [http.Server]. A connection that is passed on is new
	// to the server. May be nil.
	State func(net.Conn, http.ConnState)
	// ErrorLog receives panics of the handler; nil: nobody.
	ErrorLog *log.Logger
}

// Listener accepts connections and answers their plain calls. Accept returns the connections that are passed on; their
// Unwrap method returns what the inner listener has accepted. Give it to [http.Server.Serve].
type Listener struct {
	net.Listener
	cfg     Config
	passed  chan accepted
	ended   chan struct{} // closed by Close
	closing atomic.Bool
	serving sync.WaitGroup

	mu   sync.Mutex
	open map[*conn]struct{}
}

// accepted is a result of Accept.
type accepted struct {
	conn net.Conn
	err  error
}

// Listen puts a Listener in front of a server.
func Listen(inner net.Listener, c Config) *Listener {
	l := &Listener{Listener: inner, cfg: c, passed: make(chan accepted), ended: make(chan struct{}), open: map[*conn]struct{}{}}
	go l.acceptAll()
	return l
}

// acceptAll accepts connections until Close. The server hears of an error, and waits before it accepts again; meanwhile
// the next error waits here.
func (l *Listener) acceptAll() {
	for {
		c, err := l.Listener.Accept()
		if err == nil {
			l.start(c)
			continue
		}
		select {
		case l.passed <- accepted{err: err}:
		case <-l.ended:
			return
		}
	}
}

// start serves a new connection.
func (l *Listener) start(inner net.Conn) {
	c := &conn{Conn: inner, l: l, buf: make([]byte, bufferBytes)}
	c.ctx, c.cancel = context.WithCancel(context.Background())
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closing.Load() {
		_ = inner.Close()
		c.cancel()
		return
	}
	l.open[c] = struct{}{}
	l.serving.Add(1)
	go c.serve()
}

// Accept waits for the next connection that is passed on.
func (l *Listener) Accept() (net.Conn, error) {
	select {
	case a := <-l.passed:
		return a.conn, a.err
	case <-l.ended:
		return nil, net.ErrClosed
	}
}

// pass gives a connection to the server. It returns false after Close.
func (l *Listener) pass(c net.Conn) bool {
	select {
	case l.passed <- accepted{conn: c}:
		return true
	case <-l.ended:
		return false
	}
}

// forget removes a connection that was closed or passed on.
func (l *Listener) forget(c *conn) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.open, c)
}

// Close accepts no more connections, and closes the idle ones. Calls are answered, each as the last of its connection.
func (l *Listener) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closing.Swap(true) {
		return nil
	}
	close(l.ended)
	for c := range l.open {
		if c.state.CompareAndSwap(idle, gone) {
			_ = c.Close()
		}
	}
	return l.Listener.Close()
}

// Shutdown closes the listener and waits for the answers in progress. If ctx ends before, it closes their connections.
// A nil Listener has none.
func (l *Listener) Shutdown(ctx context.Context) error {
	if l == nil {
		return nil
	}
	err := l.Close()
	answered := make(chan struct{})
	go func() {
		l.serving.Wait()
		close(answered)
	}()
	select {
	case <-answered:
		return err
	case <-ctx.Done():
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for c := range l.open {
		_ = c.Close()
	}
	return ctx.Err()
}
