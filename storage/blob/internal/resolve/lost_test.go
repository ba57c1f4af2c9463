package resolve

import (
	"context"
	"io"
	"net"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/emitd/emitd/storage/blob"
)

// cable is a network in memory. Its connections can be lost without a word.
type cable struct {
	dialed chan net.Conn
	closed chan struct{}
	mu     sync.Mutex
	conns  []*lossy
}

func (c *cable) dial(ctx context.Context, _, _ string) (net.Conn, error) {
	near, far := net.Pipe()
	select {
	case c.dialed <- far:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	conn := &lossy{Conn: near, lost: make(chan struct{})}
	c.conns = append(c.conns, conn)
	return conn, nil
}

// lose loses all connections that were made.
func (c *cable) lose() (n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, conn := range c.conns {
		close(conn.lost)
	}
	n, c.conns = len(c.conns), nil
	return n
}

func (c *cable) Accept() (net.Conn, error) {
	select {
	case conn := <-c.dialed:
		return conn, nil
	case <-c.closed:
		return nil, net.ErrClosed
	}
}

func (c *cable) Close() error   { close(c.closed); return nil }
func (c *cable) Addr() net.Addr { return &net.UnixAddr{} }

// lossy is a connection that swallows what is written once it is lost.
type lossy struct {
	net.Conn
	lost chan struct{}
}

func (l *lossy) Write(b []byte) (int, error) {
	select {
	case <-l.lost:
		return len(b), nil
	default:
		return l.Conn.Write(b)
	}
}

// TestALostConnection: a store that is reached by HTTP/2 is used again soon after the network has lost the connection.
func TestALostConnection(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		network := &cable{dialed: make(chan net.Conn), closed: make(chan struct{})}
		var plain http.Protocols
		plain.SetUnencryptedHTTP2(true)
		server := &http.Server{Protocols: &plain, Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "here") })}
		go func() { _ = server.Serve(network) }()
		defer server.Close()
		transport := &http.Transport{Protocols: &plain, DialContext: network.dial}
		CheckConnections(transport)
		defer transport.CloseIdleConnections()
		client := &http.Client{Transport: transport}
		read := func() error {
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
			defer cancel()
			_, err := Over(client, blob.RetryPolicy{}).Repeat(ctx, Call{Op: "read", Key: "a", Send: func(ctx context.Context) Answer {
				r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://store/a", http.NoBody)
				if err != nil {
					return Answer{Effect: Failed}
				}
				response, err := client.Do(r)
				if err != nil {
					return Transport(ctx, err)
				}
				defer response.Body.Close()
				if _, err = io.ReadAll(response.Body); err != nil {
					return Transport(ctx, err)
				}
				return Answer{}
			}}, false)
			return err
		}
		if err := read(); err != nil {
			t.Fatal(err)
		}
		if n := network.lose(); n != 1 {
			t.Fatalf("%d connections, want 1", n)
		}
		begun := time.Now()
		if err := read(); err != nil {
			t.Errorf("after the connection was lost: %v", err)
		}
		took := time.Since(begun)
		t.Logf("used again after %v", took)
		if took > 30*time.Second {
			t.Errorf("the store was used again after %v, want 30 s at most", took)
		}
	})
}
