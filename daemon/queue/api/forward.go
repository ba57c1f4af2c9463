package api

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/emitd/emitd/daemon/queue"
	"github.com/emitd/emitd/daemon/queue/client"
)

// Locator finds the broker of a queue's shard: the cluster store's newest snapshot on this node.
type Locator interface {
	// Broker returns the address (host:port) and the generation of the node that serves the shard.
	// An error or an empty address means that none is known now; [queue.QueueNotFound] that there is
	// no such queue.
	Broker(ctx context.Context, queue string, shard int) (addr string, generation int64, err error)
}

// HeaderForwarded marks a call that a node has passed on; its value is the generation of the
// broker it was meant for.
const HeaderForwarded = "Emitd-Forwarded"

// HeaderShards names the shards that a forwarded call on a queue as a whole is for, as numbers joined by
// commas; without it all are meant.
const HeaderShards = "Emitd-Shards"

// forwardRetry is what a caller is told to wait where no broker answers: a takeover is shorter
// than a second, mostly.
const forwardRetry = 500 * time.Millisecond

// ForwarderConfig says how a node reaches the brokers of queues.
type ForwarderConfig struct {
	Locator Locator
	// Self is the address of this node as the locator names it; calls for it go to Local.
	Self string
	// Local is the broker in this process; nil on a node that runs none.
	Local queue.Service
	// Sharding is asked for queues whose shards may be on several nodes; nil: every queue has one.
	Sharding Sharding
	// TLS says how other nodes are called, each time one is called for the first time: nil, or what
	// returns nil: http.
	TLS func() *tls.Config
	// Timeout bounds a call to another node, on top of what a claim waits; default 10 s.
	Timeout time.Duration
	// Patience is for how long a call waits for the next broker of a queue that is between two;
	// default 1 s, less than 0: not at all.
	Patience time.Duration
}

// Forwarder is the queue service of any node: it answers from the broker in this process, or
// passes the call on to the node that has it. It works per call, so a WebSocket or an HTTP/2
// connection survives a failover: its next call goes to the new broker. A queue whose shards are on
// several nodes is one queue to its callers: lists are split among the nodes, claims go round.
//
//   - One hop. A call that was passed on already is answered here or refused with
//     [queue.Unavailable], at most a second's Retry-After, and the holder if one is known.
//   - No call is repeated that may have happened: whether a lost answer to a write may be asked for
//     again is for the caller to decide, who knows its keys. A call that was refused because the queue
//     is being handed over waits for the next broker, see ForwarderConfig.Patience.
//   - The caller's bearer token goes along, so the broker's node judges it as its own.
type Forwarder struct {
	cfg ForwarderConfig

	mu    sync.Mutex
	peers map[string]*client.Client
}

var _ queue.Service = (*Forwarder)(nil)

// NewForwarder makes a forwarder. Close it at the end.
func NewForwarder(c ForwarderConfig) (*Forwarder, error) {
	if c.Locator == nil {
		return nil, errors.New("queue forwarder: no locator")
	}
	if c.Patience == 0 {
		c.Patience = defaultPatience
	}
	return &Forwarder{cfg: c, peers: map[string]*client.Client{}}, nil
}

// Close gives the connections to other nodes up.
func (f *Forwarder) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, p := range f.peers {
		p.Close()
	}
	clear(f.peers)
	return nil
}

// CallAnew has other nodes called with new connections, because certificates have changed. Calls under way go on.
func (f *Forwarder) CallAnew() {
	_ = f.Close() // never fails
}

// Healthy reports whether the queue "default" works, wherever it is served. It asks what needs no token:
// probes have none.
func (f *Forwarder) Healthy(ctx context.Context) error {
	places, err := f.places(ctx, queue.DefaultQueue)
	if err != nil {
		return err
	}
	_, errs := gather(f, queue.DefaultQueue, places, func(p place) (struct{}, error) {
		if peer, ok := p.svc.(*client.Client); ok {
			return struct{}{}, peer.Healthy(p.ctx)
		}
		_, err := p.svc.Stats(p.ctx, queue.DefaultQueue)
		return struct{}{}, err
	})
	return errors.Join(errs...)
}

// hop is what the HTTP layer knows of a call that concerns where it may go.
type hop struct {
	forwarded     bool
	authorization string
}

type hopKey struct{}

// withHop notes whether a call was passed on, and with whose token. Most calls have neither.
func withHop(ctx context.Context, r *http.Request) context.Context {
	v := hop{forwarded: r.Header.Get(HeaderForwarded) != "", authorization: r.Header.Get("Authorization")}
	if v == (hop{}) {
		return ctx
	}
	if shards := parseShards(r.Header.Get(HeaderShards)); v.forwarded && shards != nil {
		ctx = queue.OnShards(ctx, shards)
	}
	return context.WithValue(ctx, hopKey{}, v)
}

// parseShards returns nil, all shards, for what makes no sense: a broker of only some then refuses.
func parseShards(text string) []int {
	var out []int
	for _, n := range strings.Split(text, ",") {
		shard, err := strconv.Atoi(n)
		if err != nil {
			return nil
		}
		out = append(out, shard)
	}
	return out
}

func formatShards(shards []int) string {
	out := make([]string, len(shards))
	for i, n := range shards {
		out[i] = strconv.Itoa(n)
	}
	return strings.Join(out, ",")
}

func hopOf(ctx context.Context) hop {
	v, _ := ctx.Value(hopKey{}).(hop)
	return v
}

type generationKey struct{}

// route returns who answers for a queue's shard, and the context to ask with.
func (f *Forwarder) route(ctx context.Context, name string, shard int) place {
	addr, generation, err := f.cfg.Locator.Broker(ctx, name, shard)
	p := place{first: shard, shards: []int{shard}, asked: ctx, ctx: ctx, generation: generation}
	local := f.cfg.Local
	switch {
	case local != nil && (hopOf(ctx).forwarded || err == nil && addr == f.cfg.Self && addr != ""):
		p.svc = local
	case queue.TagOf(err) == queue.QueueNotFound:
		p.err = err
	case err != nil:
		p.err = f.nobody("", "no broker of queue %q is known: %w", name, err)
	case addr == "" || addr == f.cfg.Self:
		p.err = f.nobody("", "no broker of queue %q is known: %w", name, errMoved)
	case hopOf(ctx).forwarded:
		p.err = f.nobody(addr, "this node is not the broker of queue %q, and a call is passed on once", name)
	default:
		peer, err := f.peer(addr)
		if err != nil {
			p.err = f.nobody(addr, "the broker of queue %q: %w", name, err)
			break
		}
		p.svc, p.ctx = peer, context.WithValue(ctx, generationKey{}, generation)
	}
	return p
}

func (f *Forwarder) nobody(holder, format string, args ...any) error {
	e := queue.Refuse(queue.Unavailable, format, args...)
	e.RetryAfter, e.Holder = forwardRetry, holder
	return e
}

// peer returns the client of a node; there are as many as nodes have ever been brokers.
func (f *Forwarder) peer(addr string) (*client.Client, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if p := f.peers[addr]; p != nil {
		return p, nil
	}
	var secured *tls.Config
	if f.cfg.TLS != nil {
		secured = f.cfg.TLS()
	}
	p, err := client.New(client.Config{
		Addresses: []string{addr}, TLS: secured, Timeout: f.cfg.Timeout, Once: true, Prepare: mark,
	})
	if err != nil {
		return nil, fmt.Errorf("address %q: %w", addr, err)
	}
	f.peers[addr] = p
	return p, nil
}

// mark makes a call to another node one that was passed on.
func mark(r *http.Request) {
	generation, _ := r.Context().Value(generationKey{}).(int64)
	r.Header.Set(HeaderForwarded, strconv.FormatInt(generation, 10))
	if shards := queue.ShardsOf(r.Context()); shards != nil {
		r.Header.Set(HeaderShards, formatShards(shards))
	}
	if a := hopOf(r.Context()).authorization; a != "" {
		r.Header.Set("Authorization", a)
	}
}

// settled turns the refusal of a broker that is none any more into what a forwarded call's
// sender expects.
func (f *Forwarder) settled(p place, name string, err error) error {
	if err == nil || queue.TagOf(err) != queue.QueueNotOwner {
		return err
	}
	holder := ""
	if addr, _, lost := f.cfg.Locator.Broker(p.asked, name, p.first); lost == nil && addr != f.cfg.Self {
		holder = addr
	}
	return f.nobody(holder, "the broker of queue %q: %w: %w", name, errMoved, err)
}
