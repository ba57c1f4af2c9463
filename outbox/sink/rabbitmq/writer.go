package rabbitmq

import (
	"net"
	"sync"
	"time"
)

// gathering is a connection that sends what was written meanwhile in one piece. The library flushes after each
// message, which costs the sender a system call, and the broker a packet to receive, for each.
type gathering struct {
	net.Conn
	done chan struct{} // closed when nothing is sent any more

	mu      sync.Mutex
	changed sync.Cond
	buffer  []byte // written, and not yet sent
	err     error  // why nothing more can be sent
}

// Bounds of what waits to be sent. A writer waits while there is mostGathered, beside what is being sent; lastWrite is how long Close waits for
// a peer that does not read.
const (
	mostGathered = 256 << 10
	lastWrite    = 100 * time.Millisecond
)

func newGathering(c net.Conn) *gathering {
	g := &gathering{Conn: c, done: make(chan struct{})}
	g.changed.L = &g.mu
	go g.send()
	return g
}

// Write hands bytes over to be sent. A failure is the error of the next call.
func (g *gathering) Write(b []byte) (int, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for len(g.buffer) >= mostGathered && g.err == nil {
		g.changed.Wait()
	}
	if g.err != nil {
		return 0, g.err
	}
	g.buffer = append(g.buffer, b...)
	g.changed.Broadcast()
	return len(b), nil
}

// send sends until it fails, or the connection is closed and everything was sent.
func (g *gathering) send() {
	defer close(g.done)
	var sending []byte
	g.mu.Lock()
	defer g.mu.Unlock()
	for {
		for len(g.buffer) == 0 && g.err == nil {
			g.changed.Wait()
		}
		if len(g.buffer) == 0 {
			return
		}
		sending, g.buffer = g.buffer, sending[:0]
		g.changed.Broadcast()
		g.mu.Unlock()
		_, err := g.Conn.Write(sending)
		g.mu.Lock()
		if err != nil {
			g.err, g.buffer = err, nil
			g.changed.Broadcast()
			_ = g.Conn.Close() // so that the reader notices, too
			return
		}
	}
}

// Close sends what was written, if the peer reads it soon, and closes the connection.
func (g *gathering) Close() error {
	g.mu.Lock()
	if g.err == nil {
		g.err = net.ErrClosed
	}
	g.changed.Broadcast()
	g.mu.Unlock()
	_ = g.SetWriteDeadline(time.Now().Add(lastWrite))
	<-g.done
	return g.Conn.Close()
}
