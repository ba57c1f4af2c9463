package drill

import (
	"io"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

// Proxy stands between nodes and a server. It can drop the server's answers, so that requests take effect
// without confirmation, it can close all connections, and it can hold clients to a rate of calls.
type Proxy struct {
	l      net.Listener
	target atomic.Pointer[string]
	// swallow makes the proxy drop every byte from the server.
	swallow atomic.Bool
	// Swallowed counts the dropped bytes.
	Swallowed atomic.Int64
	// Answered counts the bytes that the server has sent.
	Answered atomic.Int64
	// Trips counts round trips: how often a client sent after the server had sent.
	Trips atomic.Int64

	mu     sync.Mutex
	conns  map[net.Conn]bool
	closed bool          // connections that come now are closed at once
	pause  time.Duration // between the beginnings of two round trips
	next   time.Time     // when the next one may begin
	wg     sync.WaitGroup
}

// NewProxy listens on a loopback port until the test ends.
func NewProxy(t testing.TB, target string) *Proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &Proxy{l: l, conns: map[net.Conn]bool{}}
	p.Switch(target)
	p.wg.Add(1)
	go p.accept()
	t.Cleanup(func() {
		l.Close()
		p.close()
		p.wg.Wait()
	})
	return p
}

// Address returns where the proxy listens.
func (p *Proxy) Address() string { return p.l.Addr().String() }

// Switch sends new connections to another server.
func (p *Proxy) Switch(target string) { p.target.Store(&target) }

// DropAnswers starts or stops dropping answers.
func (p *Proxy) DropAnswers(on bool) { p.swallow.Store(on) }

// HoldTo makes at most so many round trips a second begin, on all connections together. Further ones wait.
func (p *Proxy) HoldTo(perSecond int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.pause = time.Second / time.Duration(perSecond)
}

// begin counts a round trip, and waits until it may begin.
func (p *Proxy) begin() {
	p.Trips.Add(1)
	p.mu.Lock()
	now := time.Now()
	if p.next.Before(now) {
		p.next = now
	}
	wait := p.next.Sub(now)
	p.next = p.next.Add(p.pause)
	p.mu.Unlock()
	if wait > 0 {
		<-time.After(wait)
	}
}

// Cut closes every connection.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		c.Close()
	}
}

// close closes every connection, also those that are still being made.
func (p *Proxy) close() {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	p.Cut()
}

func (p *Proxy) accept() {
	defer p.wg.Done()
	for {
		c, err := p.l.Accept()
		if err != nil {
			return
		}
		p.wg.Add(1)
		go p.serve(c)
	}
}

func (p *Proxy) serve(client net.Conn) {
	defer p.wg.Done()
	server, err := net.Dial("tcp", *p.target.Load())
	if err != nil {
		client.Close()
		return
	}
	p.track(client, server)
	done := make(chan struct{})
	var answered atomic.Bool
	answered.Store(true)
	go func() {
		defer close(done)
		_, _ = io.Copy(server, watchedReader{client, func() {
			if answered.Swap(false) {
				p.begin()
			}
		}})
		server.Close()
	}()
	buf := make([]byte, 64<<10)
	for {
		n, err := server.Read(buf)
		answered.Store(true)
		p.Answered.Add(int64(n))
		if p.swallow.Load() {
			p.Swallowed.Add(int64(n))
		} else if n > 0 {
			if _, err := client.Write(buf[:n]); err != nil {
				break
			}
		}
		if err != nil {
			break
		}
	}
	client.Close()
	server.Close()
	<-done
	p.mu.Lock()
	delete(p.conns, client)
	delete(p.conns, server)
	p.mu.Unlock()
}

func (p *Proxy) track(conns ...net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range conns {
		p.conns[c] = true
		if p.closed {
			c.Close()
		}
	}
}

// watchedReader is a reader that calls onRead when something was read.
type watchedReader struct {
	io.Reader
	onRead func()
}

// Read implements io.Reader.
func (s watchedReader) Read(b []byte) (int, error) {
	n, err := s.Reader.Read(b)
	if n > 0 {
		s.onRead()
	}
	return n, err
}
