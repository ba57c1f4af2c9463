package kafka

import (
	"context"
	"errors"
	"net"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// dialer connects the clients of a sink to brokers. One that is silent (a lost host, a stopped process:
// no connection, or one on which nothing is said) is refused for a while to all who ask next. Else each
// request that a client has for the broker would find out by itself, one after the other and without
// looking who leads its partition by now, and so would each new client that happens to ask that broker
// first.
type dialer struct {
	dial    func(ctx context.Context, network, addr string) (net.Conn, error) // TLS included
	silence time.Duration                                                     // after which a broker is taken to be gone, and for which it is

	mu    sync.Mutex
	until map[string]time.Time // by address: refused until then
}

// newDialer connects as options say, those of the configuration and our own.
func newDialer(opts []kgo.Opt) (*dialer, error) {
	c, err := kgo.NewClient(opts...) // it knows what one makes of the other
	if err != nil {
		return nil, err
	}
	defer c.Close()
	d := &dialer{silence: silent, until: map[string]time.Time{}}
	d.dial, _ = c.OptValue(kgo.Dialer).(func(context.Context, string, string) (net.Conn, error))
	if after, ok := c.OptValue(kgo.RequestTimeoutOverhead).(time.Duration); ok {
		d.silence = after
	}
	return d, nil
}

// options make a client connect by it.
func (d *dialer) options() []kgo.Opt {
	return []kgo.Opt{kgo.DialTLSConfig(nil), kgo.Dialer(d.connect)}
}

var errSilent = errors.New("the broker was silent a moment ago")

// connect is what clients are given. A silent broker is one of which they look for another: the error of
// a time that ended would make them try the same.
func (d *dialer) connect(ctx context.Context, network, addr string) (net.Conn, error) {
	if d.refused(addr) {
		return nil, gone(network)
	}
	bounded, cancel := context.WithTimeout(ctx, d.silence)
	defer cancel()
	conn, err := d.dial(bounded, network, addr)
	if err != nil {
		if ctx.Err() == nil && bounded.Err() != nil {
			d.refuse(addr)
			return nil, gone(network)
		}
		return nil, err
	}
	return &connection{Conn: conn, since: time.Now(), silence: d.silence, mute: func() { d.refuse(addr) }}, nil
}

func gone(network string) error { return &net.OpError{Op: "dial", Net: network, Err: errSilent} }

func (d *dialer) refused(addr string) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return time.Now().Before(d.until[addr])
}

func (d *dialer) refuse(addr string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.until[addr] = time.Now().Add(d.silence)
}

// connection tells if nothing at all is said on it in the time that a client gives its first request. A
// client that is no longer interested ends that time early, which says nothing about the broker.
type connection struct {
	net.Conn
	since   time.Time
	silence time.Duration
	mute    func()
	heard   bool // one goroutine reads at a time
}

// Read is that of the connection.
func (c *connection) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if c.heard = c.heard || n > 0; !c.heard && time.Since(c.since) >= c.silence {
		if late, ok := errors.AsType[net.Error](err); ok && late.Timeout() {
			c.mute()
		}
	}
	return n, err
}
