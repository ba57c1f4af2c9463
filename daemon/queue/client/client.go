// Package client is a queue broker elsewhere: a [queue.Service] over HTTP that finds the broker,
// and finds it again.
//
//	q, err := client.New(client.Config{Addresses: []string{"127.0.0.1:7070"}})
//	receipts, err := q.Enqueue(ctx, "default", []queue.Job{{Type: "email:send", Payload: payload}})
//
// # Finding
//
// Any node of the cluster forwards to the broker, so one reachable address suffices; with several
// the client moves on to the next when one fails. With a [Locator], such as package locate makes of the
// cluster store, it asks the broker's node directly. The address that answered is kept per queue until a 503, a broken connection or a
// timeout says otherwise; a 503 that names the holder is believed.
//
// # Repeating
//
// A call is repeated, with growing and jittered pauses, until the caller's context ends (or for
// [Config].RetryFor if it has no deadline), but only where a repetition does nothing twice:
//
//   - Enqueue: every job has an ID or a key; the client draws an ID for those that have none.
//   - Claim: every claim has a request ID, drawn likewise, so that a claim whose answer was lost
//     is handed out again to this caller and not left to time out.
//   - Settle: a settlement is fenced by its token. If an answer was lost, the repetition of a
//     settlement that took effect is answered like the first (Complete) or as stale.
//   - Do: Pause, Resume, and what names its jobs.
//   - Everything that only reads.
//
// What ends without an answer is [queue.UnknownOutcome] if it may have happened, otherwise
// [queue.Unavailable]. Errors of the server come back as *[queue.Error] with their tags.
package client

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/emitd/emitd/daemon/queue"
)

// Locator finds the node that serves a queue's shard, such as the cluster store's snapshot.
type Locator interface {
	// Broker returns the address (host:port) and generation of the shard's broker. An error or an
	// empty address means that none is known now, and the client asks again;
	// [queue.QueueNotFound] that there is no such queue.
	Broker(ctx context.Context, queue string, shard int) (addr string, generation int64, err error)
}

// Doubter is a Locator that answers from memory for a while, and can be told that what it says may be
// out of date: its next answer is from the cluster, as far as that costs little.
type Doubter interface{ Doubt() }

// Config of a client. One of Addresses and Locator is needed.
type Config struct {
	// Addresses of nodes: host:port, or a URL with a path if emitd is served under one.
	Addresses []string
	// Locator is asked first; the addresses are where to turn when it names a node that fails.
	Locator Locator
	// Token is sent as a bearer token. Empty: none.
	Token string
	// TLS makes the addresses without a scheme https. Nil: http.
	TLS *tls.Config
	// Transport carries the calls; nil: one of its own, with keep-alive connections.
	Transport http.RoundTripper
	// JSON sends batches as JSON rather than protobuf, which costs about twice the processor time
	// and can be read on the wire.
	JSON bool
	// Timeout of one attempt, on top of what a claim waits; default 10 s. Shorter finds a new
	// broker sooner after a machine has vanished, and gives slow storage less time.
	Timeout time.Duration
	// RetryFor bounds repetitions of calls whose context has no deadline; default 1 min, negative:
	// no bound.
	RetryFor time.Duration
	// Backoff is the first pause between attempts, MaxBackoff the longest; default 50 ms and 2 s.
	Backoff, MaxBackoff time.Duration
	// Once makes no call twice: for those who forward calls of others.
	Once bool
	// Prepare may change each request before it is sent. May be nil.
	Prepare func(r *http.Request)
}

const (
	defaultTimeout    = 10 * time.Second
	defaultRetryFor   = time.Minute
	defaultBackoff    = 50 * time.Millisecond
	defaultMaxBackoff = 2 * time.Second
	dialTimeout       = 3 * time.Second
	idleConnections   = 256
)

// Client is a queue broker elsewhere. It is safe for concurrent use.
type Client struct {
	cfg   Config
	http  *http.Client
	owned *http.Transport // to close; nil if the transport is the caller's

	mu     sync.Mutex
	places map[string]place // by queue
	next   int              // the address to turn to
}

// place is where a queue's broker was last found.
type place struct {
	base       string
	generation int64
}

var _ queue.Service = (*Client)(nil)

// New makes a client. It connects to nothing yet.
func New(c Config) (*Client, error) {
	if len(c.Addresses) == 0 && c.Locator == nil {
		return nil, errors.New("queue client: neither addresses nor a locator")
	}
	c.Timeout = or(c.Timeout, defaultTimeout)
	c.RetryFor = or(c.RetryFor, defaultRetryFor)
	c.Backoff = or(c.Backoff, defaultBackoff)
	c.MaxBackoff = max(or(c.MaxBackoff, defaultMaxBackoff), c.Backoff)
	out := &Client{cfg: c, places: map[string]place{}}
	out.cfg.Addresses = nil
	for _, a := range c.Addresses {
		base, err := out.base(a)
		if err != nil {
			return nil, fmt.Errorf("queue client: %w", err)
		}
		out.cfg.Addresses = append(out.cfg.Addresses, base)
	}
	transport := c.Transport
	if transport == nil {
		out.owned = newTransport(c.TLS)
		transport = out.owned
	}
	// A redirect would carry the token to whoever is named in it; emitd sends none.
	out.http = &http.Client{Transport: transport, CheckRedirect: func(*http.Request, []*http.Request) error {
		return http.ErrUseLastResponse
	}}
	return out, nil
}

func newTransport(c *tls.Config) *http.Transport {
	dialer := &net.Dialer{Timeout: dialTimeout, KeepAlive: 15 * time.Second}
	return &http.Transport{
		Proxy: http.ProxyFromEnvironment, DialContext: dialer.DialContext, TLSClientConfig: c, TLSHandshakeTimeout: dialTimeout,
		MaxIdleConns: idleConnections, MaxIdleConnsPerHost: idleConnections, IdleConnTimeout: 90 * time.Second,
		ForceAttemptHTTP2: c != nil, DisableCompression: true,
	}
}

// Close gives idle connections up. Calls under way end by themselves.
func (c *Client) Close() {
	if c.owned != nil {
		c.owned.CloseIdleConnections()
	}
}

func or(d, standard time.Duration) time.Duration {
	if d == 0 {
		return standard
	}
	return d
}

// base returns the URL an address stands for, without a slash at its end.
func (c *Client) base(address string) (string, error) {
	if !strings.Contains(address, "://") {
		scheme := "http://"
		if c.cfg.TLS != nil {
			scheme = "https://"
		}
		address = scheme + address
	}
	u, err := url.Parse(address)
	switch {
	case err != nil: // which may hold a password: no part of it is shown
		return "", errors.New("address: does not parse, host:port or an http URL is expected")
	case u.Hostname() == "" && u.Port() == "" || u.Scheme != "http" && u.Scheme != "https":
		return "", errors.New("address: host:port or an http URL is expected")
	case u.User != nil || u.RawQuery != "" || u.Fragment != "":
		return "", errors.New("address: only host, port and path are taken, no login and no parameters")
	}
	return strings.TrimRight(u.String(), "/"), nil
}

// find returns where to ask. avoid is a place that has just failed, if any.
func (c *Client) find(ctx context.Context, name string, avoid place) (place, error) {
	if p, ok := c.cached(name); ok {
		return p, nil
	}
	if c.cfg.Locator != nil {
		p, err := c.locate(ctx, name)
		if err == nil && (p != avoid || len(c.cfg.Addresses) == 0) {
			c.keep(name, p)
			return p, nil
		}
		if len(c.cfg.Addresses) == 0 {
			return place{}, err
		}
	}
	c.mu.Lock()
	p := place{base: c.cfg.Addresses[c.next%len(c.cfg.Addresses)]}
	c.mu.Unlock()
	c.keep(name, p)
	return p, nil
}

func (c *Client) locate(ctx context.Context, name string) (place, error) {
	addr, generation, err := c.cfg.Locator.Broker(ctx, name, 0)
	if queue.TagOf(err) == queue.QueueNotFound {
		return place{}, err // asking again would not make it
	}
	if err == nil && addr == "" {
		err = errors.New("it is assigned to no node")
	}
	if err != nil {
		return place{}, queue.Refuse(queue.Unavailable, "no broker of queue %q is known: %w", name, err)
	}
	base, err := c.base(addr)
	if err != nil {
		return place{}, queue.Refuse(queue.Unavailable, "the broker of queue %q: %w", name, err)
	}
	return place{base: base, generation: generation}, nil
}

func (c *Client) cached(name string) (place, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	p, ok := c.places[name]
	return p, ok
}

func (c *Client) keep(name string, p place) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.places[name] = p
}

// drop lets the next call look for the queue's place again.
func (c *Client) drop(name string, p place) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.places[name] == p {
		delete(c.places, name)
	}
}

// forget drops a place that failed, unless another call has found a better one meanwhile, and
// remembers the holder that was named in its stead.
func (c *Client) forget(name string, failed place, holder string) {
	if d, ok := c.cfg.Locator.(Doubter); ok {
		d.Doubt()
	}
	base, err := c.base(holder)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.places[name] == failed {
		delete(c.places, name)
		if holder != "" && err == nil && base != failed.base {
			c.places[name] = place{base: base}
		}
	}
	if n := len(c.cfg.Addresses); n > 0 && c.cfg.Addresses[c.next%n] == failed.base {
		c.next = (c.next + 1) % n
	}
}
