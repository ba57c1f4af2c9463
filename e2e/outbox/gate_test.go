package outbox

import (
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
)

// holdback can delay what some connections send, as a network with late packets does.
type holdback struct {
	held atomic.Int64 // bytes that were delayed

	mu   sync.Mutex
	taps []*tap
	open chan struct{} // of the held taps
}

// tap is the valve's part in one connection.
type tap struct{ open chan struct{} } // closed while bytes pass

// passing is a channel that is closed from the start.
var passing = func() chan struct{} { c := make(chan struct{}); close(c); return c }()

// tap returns a function that each write of a connection must call; it blocks while the valve holds.
func (v *holdback) tap() (pass func(n int)) {
	v.mu.Lock()
	defer v.mu.Unlock()
	t := &tap{passing}
	v.taps = append(v.taps, t)
	return func(n int) {
		v.mu.Lock()
		open := t.open
		v.mu.Unlock()
		select {
		case <-open:
		default:
			v.held.Add(int64(n))
			<-open
		}
	}
}

// hold delays what the existing connections send. New connections are not affected.
func (v *holdback) hold() {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.open = make(chan struct{})
	for _, t := range v.taps {
		t.open = v.open
	}
}

// release lets the delayed bytes pass.
func (v *holdback) release() {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.open != nil {
		close(v.open)
		v.open = nil
		v.held.Store(0)
	}
}

// tapped is a receiver's own listener with a valve.
type tapped struct {
	net.Listener
	valve *holdback
}

func (l tapped) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return tappedConn{c, l.valve.tap()}, nil
}

type tappedConn struct {
	net.Conn
	pass func(n int)
}

func (c tappedConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.pass(n)
	return n, err
}

// gate is a proxy between a node and the receiver, with a valve.
type gate struct {
	holdback
	l net.Listener

	mu    sync.Mutex
	conns []net.Conn
	ended bool
	all   sync.WaitGroup
}

func newGate(t *testing.T, target string) *gate {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	g := &gate{l: l}
	g.all.Go(func() { g.accept(target) })
	t.Cleanup(g.close)
	return g
}

func (g *gate) address() string { return g.l.Addr().String() }

func (g *gate) accept(target string) {
	for {
		near, err := g.l.Accept()
		if err != nil {
			return
		}
		far, err := net.Dial("tcp", target)
		if err != nil {
			near.Close()
			continue
		}
		g.mu.Lock()
		if g.ended {
			near.Close()
			far.Close()
		}
		g.conns = append(g.conns, near, far)
		g.mu.Unlock()
		pass := g.tap()
		g.all.Go(func() {
			defer far.Close()
			_, _ = io.Copy(far, tappedConn{near, pass})
		})
		g.all.Go(func() {
			defer near.Close()
			_, _ = io.Copy(near, far)
		})
	}
}

func (g *gate) close() {
	g.l.Close()
	g.release()
	g.mu.Lock()
	g.ended = true
	for _, c := range g.conns {
		c.Close()
	}
	g.mu.Unlock()
	g.all.Wait()
}
