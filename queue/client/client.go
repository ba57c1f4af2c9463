// Package client is a [queue.Service] for a queue broker elsewhere, over HTTP. It finds the broker,
// and finds it again after a failover.
//
//	q, err := client.New(client.Config{Addresses: []string{"127.0.0.1:7070"}})
//	receipts, err := q.Enqueue(ctx, "default", []queue.Job{{Type: "email:send", Payload: payload}})
//
// # Finding the broker
//
// Any node of the cluster forwards to the broker, so one reachable address is enough. With several,
// the client tries the next one when one fails. With a [Locator], such as a [ClusterLocator],
// which reads the cluster store, it calls the broker's node directly. The address that answered is
// remembered per queue until a 503, a broken connection or a timeout. After a 503 that names the
// holder, the client calls the holder.
//
// # Repeated calls
//
// A call is repeated, with growing and jittered pauses, until the caller's context ends, or for
// [Config].RetryFor if the context has no deadline. It is repeated only if a second execution has
// no further effect:
//
//   - Enqueue: every job has an ID or a key; the client generates an ID for those that have none.
//   - Claim: every claim has a request ID, generated likewise. So a claim whose answer was lost
//     returns the same jobs to this caller, and they need not time out.
//   - Settle: a settlement is fenced by its token. If an answer was lost and the settlement took
//     effect, its repetition is answered like the first one (Complete) or as stale.
//   - Do: Pause, Resume, and commands that name their jobs.
//   - Everything that only reads.
//
// A call without an answer ends as [queue.UnknownOutcome] if it may have had an effect, otherwise
// as [queue.Unavailable]. Errors of the server are returned as *[queue.Error] with their tags.
package client

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/emitd/emitd/queue"
)

// Locator finds the node that serves a queue's shard, for example in the cluster store's snapshot.
type Locator interface {
	// Broker returns the address (host:port) and generation of the shard's broker. An error or
	// an empty address means that none is known now, and the client asks again;
	// [queue.QueueNotFound] means that there is no such queue.
	Broker(ctx context.Context, queue string, shard int) (addr string, generation int64, err error)
}

// Invalidator is a Locator that answers from a cache. Invalidate says that its last answer may be out of
// date: its next answer comes from the cluster, as far as that costs little.
type Invalidator interface{ Invalidate() }

// Config configures a client. Addresses or Locator is required.
type Config struct {
	// Addresses of nodes: host:port, or a URL with a path if emitd is served below one.
	Addresses []string
	// Locator is asked first. The addresses are used when the node that it names fails.
	Locator Locator
	// Token is sent as a bearer token. Empty: none.
	Token string
	// TLS makes addresses without a scheme use https. Nil: http; but addresses that the locator or a refusal names are
	// called with https if all Addresses have it, or the node that refused was called with it. The token never goes from
	// https to http.
	TLS *tls.Config
	// Transport is used for the calls; nil: a new one, with keep-alive connections.
	Transport http.RoundTripper
	// JSON sends batches as JSON instead of protobuf. That costs about twice the processor
	// time, and people can read it.
	JSON bool
	// Timeout is the time limit of one attempt, in addition to a claim's own wait; default 10
	// s. A shorter one finds a new broker sooner after a machine has failed, and leaves slow
	// storage less time.
	Timeout time.Duration
	// RetryFor is how long a call whose context has no deadline is repeated; default 1 min;
	// negative: without limit.
	RetryFor time.Duration
	// Backoff is the first pause between attempts, MaxBackoff the longest; default 50 ms and 2
	// s. A broker that answers may ask for a longer first pause.
	Backoff, MaxBackoff time.Duration
	// NoRetry makes the client never repeat a call. It is for programs that forward the calls of
	// others.
	NoRetry bool
	// Prepare may change each request before it is sent. May be nil.
	Prepare func(r *http.Request)
}

const (
	defaultTimeout    = 10 * time.Second
	defaultRetryFor   = time.Minute
	defaultBackoff    = 50 * time.Millisecond
	defaultMaxBackoff = 2 * time.Second
	silence           = 5 * time.Second // after which a connection of HTTP/2 is tested
	pingTimeout       = 5 * time.Second // for the answer to the test
	dialTimeout       = 3 * time.Second
	idleConnections   = 256
)

// Client calls a queue broker elsewhere. It is safe for concurrent use.
type Client struct {
	cfg    Config
	http   *http.Client
	owned  *http.Transport // the transport to close; nil if it is the caller's
	secure bool            // addresses that others name are called with https

	mu          sync.Mutex
	places      map[string]place // by queue
	nextAddress int              // index of the next address to try
}

// place is where a queue's broker was last found.
type place struct {
	base       string
	generation int64
}

var _ queue.Service = (*Client)(nil)

// New creates a client. It does not connect yet.
func New(c Config) (*Client, error) {
	if len(c.Addresses) == 0 && c.Locator == nil {
		return nil, errors.New("queue client: neither addresses nor a locator")
	}
	c.Timeout = orDefault(c.Timeout, defaultTimeout)
	c.RetryFor = orDefault(c.RetryFor, defaultRetryFor)
	c.Backoff = orDefault(c.Backoff, defaultBackoff)
	c.MaxBackoff = max(orDefault(c.MaxBackoff, defaultMaxBackoff), c.Backoff)
	out := &Client{cfg: c, places: map[string]place{}}
	out.cfg.Addresses = nil
	for _, a := range c.Addresses {
		base, err := baseURL(a, c.TLS != nil)
		if err != nil {
			return nil, fmt.Errorf("queue client: %w", err)
		}
		out.cfg.Addresses = append(out.cfg.Addresses, base)
	}
	plain := slices.ContainsFunc(out.cfg.Addresses, func(base string) bool { return !isSecure(base) })
	out.secure = c.TLS != nil || len(c.Addresses) > 0 && !plain
	transport := c.Transport
	if transport == nil {
		out.owned = newTransport(c.TLS)
		transport = out.owned
	}
	// A redirect would send the token to the host that it names; emitd sends no redirects.
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
		// All calls to a node share a connection of HTTP/2. If the network loses it without a word, each would wait on it, for up to 15 minutes.
		HTTP2: &http.HTTP2Config{SendPingTimeout: silence, PingTimeout: pingTimeout},
	}
}

// Close closes idle connections. Calls in flight continue to their end.
func (c *Client) Close() {
	if c.owned != nil {
		c.owned.CloseIdleConnections()
	}
}

func orDefault(d, standard time.Duration) time.Duration {
	if d == 0 {
		return standard
	}
	return d
}

const https = "https://"

func isSecure(base string) bool { return strings.HasPrefix(base, https) }

// namedURL is baseURL for an address that the locator or a refusal has named. If secure is set, it refuses http: everybody
// on the way could read the token.
func namedURL(address string, secure bool) (string, error) {
	base, err := baseURL(address, secure)
	if err == nil && secure && !isSecure(base) {
		return "", errors.New("address: it begins with http, and the client's own with https")
	}
	return base, err
}

// baseURL returns the URL for an address, without a slash at its end. An address without a scheme gets https if secure
// is set.
func baseURL(address string, secure bool) (string, error) {
	if !strings.Contains(address, "://") {
		scheme := "http://"
		if secure {
			scheme = https
		}
		address = scheme + address
	}
	u, err := url.Parse(address)
	switch {
	case err != nil: // the address may contain a password, so the error shows no part of it
		return "", errors.New("address: does not parse, host:port or an http URL is expected")
	case u.Hostname() == "" && u.Port() == "" || u.Scheme != "http" && u.Scheme != "https":
		return "", errors.New("address: host:port or an http URL is expected")
	case u.User != nil || u.RawQuery != "" || u.Fragment != "":
		return "", errors.New("address: only host, port and path are allowed, no login and no parameters")
	}
	return strings.TrimRight(u.String(), "/"), nil
}

// find returns the place to call. avoid is the place that has just failed, if any.
func (c *Client) find(ctx context.Context, name string, avoid place) (place, error) {
	if p, ok := c.cached(name); ok {
		return p, nil
	}
	if c.cfg.Locator != nil {
		p, err := c.locate(ctx, name)
		if err == nil && (p != avoid || len(c.cfg.Addresses) == 0) {
			c.setPlace(name, p)
			return p, nil
		}
		if len(c.cfg.Addresses) == 0 {
			return place{}, err
		}
	}
	c.mu.Lock()
	p := place{base: c.cfg.Addresses[c.nextAddress%len(c.cfg.Addresses)]}
	c.mu.Unlock()
	c.setPlace(name, p)
	return p, nil
}

func (c *Client) locate(ctx context.Context, name string) (place, error) {
	addr, generation, err := c.cfg.Locator.Broker(ctx, name, 0)
	if queue.TagOf(err) == queue.QueueNotFound {
		return place{}, err // asking again would not help
	}
	if err == nil && addr == "" {
		err = errors.New("it is assigned to no node")
	}
	if err != nil {
		return place{}, queue.Refuse(queue.Unavailable, "no broker of queue %q is known: %w", name, err)
	}
	base, err := namedURL(addr, c.secure)
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

func (c *Client) setPlace(name string, p place) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.places[name] = p
}

// forgetPlace forgets the queue's place, so that the next call looks for it again.
func (c *Client) forgetPlace(name string, p place) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.places[name] == p {
		delete(c.places, name)
	}
}

// placeFailed forgets a place that failed, unless another call has found a better one meanwhile, and
// stores the holder that the refusal named. A client that forwards for others stores none: its caller
// decides which node to call, and the holder may be the caller itself.
func (c *Client) placeFailed(name string, failed place, holder string) {
	if d, ok := c.cfg.Locator.(Invalidator); ok {
		d.Invalidate()
	}
	base, err := namedURL(holder, c.secure || isSecure(failed.base))
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.places[name] == failed {
		delete(c.places, name)
		if holder != "" && err == nil && base != failed.base && !c.cfg.NoRetry {
			c.places[name] = place{base: base}
		}
	}
	if n := len(c.cfg.Addresses); n > 0 && c.cfg.Addresses[c.nextAddress%n] == failed.base {
		c.nextAddress = (c.nextAddress + 1) % n
	}
}
