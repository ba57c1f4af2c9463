package pgtest

import (
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/url"
	"sync"
	"sync/atomic"
	"testing"
)

// Proxy sits between clients and a server and simulates faults of the network. It does not speak
// TLS. Its methods may be called from any goroutine, even while connections are open.
type Proxy struct {
	target string
	base   *url.URL
	l      net.Listener
	wg     sync.WaitGroup

	mu      sync.Mutex
	moved   *sync.Cond // signalled when anything below changes
	lose    int        // replies that are still to be lost
	stalled bool
	full    bool
	closed  bool
	conns   map[net.Conn]struct{}

	queries atomic.Int64
}

// NewProxy starts a proxy in front of the server of a URL. It ends with the test.
func NewProxy(t testing.TB, base string) *Proxy {
	t.Helper()
	u, err := url.Parse(base)
	if err != nil || u.Host == "" {
		t.Fatal("pgtest: a proxy needs a URL with host and port")
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &Proxy{target: u.Host, base: u, l: l, conns: map[net.Conn]struct{}{}}
	p.moved = sync.NewCond(&p.mu)
	p.wg.Go(p.accept)
	t.Cleanup(p.close)
	return p
}

// URL returns the URL of the database through the proxy.
func (p *Proxy) URL() string {
	u := *p.base
	u.Host = p.l.Addr().String()
	return u.String()
}

// LoseReplies loses the next n answers. The server carries out the request and answers completely;
// then the connection breaks without the answer.
func (p *Proxy) LoseReplies(n int) { p.change(func() { p.lose = n }) }

// StopReading makes the proxy take nothing more of what the server sends, as if the client was stopped, or its host was lost.
// The server has to wait once its buffers are full.
func (p *Proxy) StopReading(on bool) { p.change(func() { p.full = on }) }

// Stall holds everything back in both directions, like a partition, until it is switched off. Then
// it delivers what it held back.
func (p *Proxy) Stall(on bool) { p.change(func() { p.stalled = on }) }

// Cut breaks all connections.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range p.conns {
		c.Close()
	}
}

// Queries counts the messages that requested something from the server: round trips.
func (p *Proxy) Queries() int64 { return p.queries.Load() }

func (p *Proxy) change(f func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f()
	p.moved.Broadcast()
}

func (p *Proxy) close() {
	p.change(func() { p.closed = true })
	p.l.Close()
	p.Cut()
	p.wg.Wait()
}

func (p *Proxy) accept() {
	for {
		client, err := p.l.Accept()
		if err != nil {
			return
		}
		p.wg.Go(func() { p.serve(client) })
	}
}

// serve connects a client to the server by a connection of its own.
func (p *Proxy) serve(client net.Conn) {
	server, err := net.Dial("tcp", p.target)
	if err != nil {
		client.Close()
		return
	}
	if !p.register(client, server) {
		return
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		p.up(client, server)
		client.Close()
		server.Close()
	}()
	p.down(client, server)
	client.Close()
	server.Close()
	<-done
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.conns, client)
	delete(p.conns, server)
}

func (p *Proxy) register(conns ...net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range conns {
		if p.closed {
			c.Close()
			continue
		}
		p.conns[c] = struct{}{}
	}
	return !p.closed
}

// takes waits while the proxy takes no answers. It returns false if the proxy is closed.
func (p *Proxy) takes() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for p.full && !p.closed {
		p.moved.Wait()
	}
	return !p.closed
}

// pass waits while the proxy stalls. It returns false if the proxy is closed.
func (p *Proxy) pass() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for p.stalled && !p.closed {
		p.moved.Wait()
	}
	return !p.closed
}

// loses takes one of the replies that are to be lost.
func (p *Proxy) loses() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.lose > 0 {
		p.lose--
		return true
	}
	return false
}

// up forwards the client's messages. The first message has no type.
func (p *Proxy) up(client, server net.Conn) {
	for first := true; ; first = false {
		kind, text, err := readMessage(client, !first)
		if err != nil || !p.pass() {
			return
		}
		switch kind {
		case 'Q', 'S': // a query, or the end of a pipeline
			p.queries.Add(1)
		}
		if _, err := server.Write(text); err != nil {
			return
		}
	}
}

// down forwards answers, each as a whole. An answer ends with ReadyForQuery, or with a message that
// asks the client for more (authentication, a COPY).
func (p *Proxy) down(client, server net.Conn) {
	var answer []byte
	authenticated := false
	for {
		if !p.takes() {
			return
		}
		kind, text, err := readMessage(server, true)
		if err != nil {
			client.Write(answer)
			return
		}
		answer = append(answer, text...)
		switch kind {
		case 'Z':
			if authenticated && p.loses() {
				return
			}
			authenticated = true
		case 'R', 'E', 'A', 'G', 'H', 'W', 'N':
		default:
			continue
		}
		if !p.pass() {
			return
		}
		if _, err := client.Write(answer); err != nil {
			return
		}
		answer = answer[:0]
	}
}

// maxMessage bounds the memory for a message of a broken peer.
const maxMessage = 64 << 20

// readMessage reads one message of the protocol, with or without its type.
func readMessage(r io.Reader, typed bool) (kind byte, text []byte, err error) {
	head := make([]byte, 4, 5)
	if typed {
		head = head[:5]
	}
	if _, err := io.ReadFull(r, head); err != nil {
		return 0, nil, err
	}
	if typed {
		kind = head[0]
	}
	n := binary.BigEndian.Uint32(head[len(head)-4:])
	if n < 4 || n > maxMessage {
		return 0, nil, errors.New("pgtest: not a message of Postgres")
	}
	text = make([]byte, len(head)+int(n)-4)
	copy(text, head)
	_, err = io.ReadFull(r, text[len(head):])
	return kind, text, err
}
