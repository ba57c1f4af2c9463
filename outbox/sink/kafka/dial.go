package kafka

import (
	"context"
	"errors"
	"net"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// dialer connects the clients of a sink to brokers. A broker is silent if it accepts no connection, or
// sends nothing on one (a lost host, a stopped process). For a while, dialer then refuses every
// connection to it. Otherwise each request of a client to that broker would wait for its own timeout, one
// after the other, without checking which broker leads the partition by now. So would each new client
// that happens to ask this broker first.
type dialer struct {
	dial    func(ctx context.Context, network, addr string) (net.Conn, error) // TLS included
	silence time.Duration                                                     // gone after, and for, this time

	mu    sync.Mutex
	until map[string]time.Time // by address: connections are refused until then
}

// newDialer returns a dialer that connects as opts say: those of the configuration and the sink's own.
func newDialer(opts []kgo.Opt) (*dialer, error) {
	c, err := kgo.NewClient(opts...) // the client resolves how the options combine
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

// options returns the options that make a client use the dialer.
func (d *dialer) options() []kgo.Opt {
	return []kgo.Opt{kgo.DialTLSConfig(nil), kgo.Dialer(d.connect)}
}

var errSilent = errors.New("the broker did not answer a moment ago")

// connect is the dial function of the clients. Its error for a silent broker makes a client look for
// another broker; a timeout error would make it try the same one again.
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

// connection detects a silent broker: nothing was read when the client's first request timed out. A
// client that loses interest sets an earlier deadline, which says nothing about the broker.
type connection struct {
	net.Conn
	since   time.Time
	silence time.Duration
	mute    func()
	heard   bool // one goroutine reads at a time
}

// Read reads from the connection and reports a silent broker.
func (c *connection) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if c.heard = c.heard || n > 0; !c.heard && time.Since(c.since) >= c.silence {
		if late, ok := errors.AsType[net.Error](err); ok && late.Timeout() {
			c.mute()
		}
	}
	return n, err
}
