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

	"github.com/emitd/emitd/queue"
	"github.com/emitd/emitd/queue/client"
)

// Locator finds the broker of a queue's shard, for example in the cluster store's newest snapshot
// on this node.
type Locator interface {
	// Broker returns the address (host:port) and the generation of the node that serves the
	// shard. An error or an empty address means that none is known now; [queue.QueueNotFound]
	// means that there is no such queue.
	Broker(ctx context.Context, queue string, shard int) (addr string, generation int64, err error)
}

// HeaderForwarded marks a call that another node has forwarded. Its value is the generation of the
// broker for which the call is meant.
const HeaderForwarded = "Emitd-Forwarded"

// HeaderShards names the shards that a forwarded call on a whole queue is for, as numbers joined by
// commas. Without it all shards are meant.
const HeaderShards = "Emitd-Shards"

// headerShardCount says for how many shards a forwarded call was split. A broker refuses the call if the queue
// has another number of shards by now.
const headerShardCount = "Emitd-Shard-Count"

// forwardRetry is the Retry-After when no broker answers: a takeover usually takes less than a
// second.
const forwardRetry = 500 * time.Millisecond

// ForwarderConfig configures how a node reaches the brokers of queues.
type ForwarderConfig struct {
	Locator Locator
	// Self is this node's address as the locator returns it; calls for it go to Local.
	Self string
	// Local is the broker in this process; nil on a node without one.
	Local queue.Service
	// Sharding is for queues whose shards may be on several nodes; nil: every queue has one
	// shard.
	Sharding Sharding
	// TLS is called when another node is called for the first time. If it is nil or returns
	// nil, http is used.
	TLS func() *tls.Config
	// Timeout is the time limit of a call to another node, in addition to a claim's own wait;
	// default 10 s.
	Timeout time.Duration
	// HandoverWait is how long a call waits for the next broker of a queue that is between two
	// brokers; default 1 s; negative: it does not wait.
	HandoverWait time.Duration
}

// Forwarder is the queue service of any node. It answers from the broker in this process, or
// forwards the call to the node that serves the queue. It decides per call, so a WebSocket or
// HTTP/2 connection survives a failover: its next call goes to the new broker. A queue with shards
// on several nodes is one queue to its callers: lists of jobs are split by node, and claims ask one
// node after the other.
//
//   - A call is forwarded once. A call that was forwarded already is answered here or refused with
//     [queue.Unavailable], with a Retry-After of a second at most, and with the holder if one is
//     known.
//   - A call that may have had an effect is not repeated: the caller decides, because it knows the
//     call's keys. A call that was refused because the queue is between two brokers waits for the
//     next one; see ForwarderConfig.HandoverWait.
//   - The caller's bearer token is forwarded, so the broker's node authorizes the call itself.
type Forwarder struct {
	cfg ForwarderConfig

	mu    sync.Mutex
	peers map[string]*client.Client
}

var _ queue.Service = (*Forwarder)(nil)

// NewForwarder creates a forwarder. Close it after use.
func NewForwarder(c ForwarderConfig) (*Forwarder, error) {
	if c.Locator == nil {
		return nil, errors.New("queue forwarder: no locator")
	}
	if c.HandoverWait == 0 {
		c.HandoverWait = defaultHandoverWait
	}
	return &Forwarder{cfg: c, peers: map[string]*client.Client{}}, nil
}

// Close closes the idle connections to other nodes.
func (f *Forwarder) Close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, p := range f.peers {
		p.Close()
	}
	clear(f.peers)
	return nil
}

// ResetConnections makes later calls to other nodes use new connections, because certificates have changed.
// Calls in flight continue.
func (f *Forwarder) ResetConnections() {
	_ = f.Close() // never fails
}

// Healthy reports whether the queue "default" works, wherever it is served. It makes only calls
// that need no token, because probes have none.
func (f *Forwarder) Healthy(ctx context.Context) error {
	places, err := f.places(ctx, queue.DefaultQueue)
	if err != nil {
		return err
	}
	_, errs := callAll(f, queue.DefaultQueue, places, func(p shardHolder) (struct{}, error) {
		if peer, ok := p.svc.(*client.Client); ok {
			return struct{}{}, peer.Healthy(p.ctx)
		}
		_, err := p.svc.Stats(p.ctx, queue.DefaultQueue)
		return struct{}{}, err
	})
	return errors.Join(errs...)
}

// forwardInfo is what the HTTP layer knows about a call that decides where it may go.
type forwardInfo struct {
	forwarded     bool
	authorization string
}

type hopKey struct{}

// withHop stores in the context whether a call was forwarded, and its token. Most calls have
// neither.
func withHop(ctx context.Context, r *http.Request) context.Context {
	v := forwardInfo{forwarded: r.Header.Get(HeaderForwarded) != "", authorization: r.Header.Get("Authorization")}
	if v == (forwardInfo{}) {
		return ctx
	}
	if shards := parseShards(r.Header.Get(HeaderShards)); v.forwarded && shards != nil {
		of, _ := strconv.Atoi(r.Header.Get(headerShardCount)) // an older node does not say it
		ctx = queue.OnShards(ctx, shards, of)
	}
	return context.WithValue(ctx, hopKey{}, v)
}

// WithAuthorization returns a context for calls of a [Forwarder] that do not come from a [Handler]. A call that is
// passed on to another node carries this Authorization header, so that the node knows the caller.
func WithAuthorization(ctx context.Context, header string) context.Context {
	return context.WithValue(ctx, hopKey{}, forwardInfo{authorization: header})
}

// parseShards parses HeaderShards. It returns nil, which means all shards, for an invalid value: a
// broker that serves only some then refuses.
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

func hopOf(ctx context.Context) forwardInfo {
	v, _ := ctx.Value(hopKey{}).(forwardInfo)
	return v
}

type generationKey struct{}

// route returns the node that answers for a queue's shard, and the context for the call.
func (f *Forwarder) route(ctx context.Context, name string, shard int) shardHolder {
	addr, generation, err := f.cfg.Locator.Broker(ctx, name, shard)
	p := shardHolder{first: shard, shards: []int{shard}, callerCtx: ctx, ctx: ctx, generation: generation}
	local := f.cfg.Local
	switch {
	case local != nil && (hopOf(ctx).forwarded || err == nil && addr == f.cfg.Self && addr != ""):
		p.svc = local
	case queue.TagOf(err) == queue.QueueNotFound:
		p.err = err
	case err != nil:
		p.err = f.noBroker("", "no broker of queue %q is known: %w", name, err)
	case addr == "" || addr == f.cfg.Self:
		p.err = f.noBroker("", "no broker of queue %q is known: %w", name, errNotServedHere)
	case hopOf(ctx).forwarded:
		p.err = f.noBroker(addr, "this node is not the broker of queue %q, and a call is forwarded only once", name)
	default:
		peer, err := f.peer(addr)
		if err != nil {
			p.err = f.noBroker(addr, "the broker of queue %q: %w", name, err)
			break
		}
		p.svc, p.ctx = peer, context.WithValue(ctx, generationKey{}, generation)
	}
	return p
}

func (f *Forwarder) noBroker(holder, format string, args ...any) error {
	e := queue.Refuse(queue.Unavailable, format, args...)
	e.RetryAfter, e.Holder = forwardRetry, holder
	return e
}

// peer returns the client for a node. There is one for each node that was ever a broker.
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
		Addresses: []string{addr}, TLS: secured, Timeout: f.cfg.Timeout, NoRetry: true, Prepare: setForwardHeaders,
	})
	if err != nil {
		return nil, fmt.Errorf("address %q: %w", addr, err)
	}
	f.peers[addr] = p
	return p, nil
}

// setForwardHeaders adds the headers of a forwarded call.
func setForwardHeaders(r *http.Request) {
	generation, _ := r.Context().Value(generationKey{}).(int64)
	r.Header.Set(HeaderForwarded, strconv.FormatInt(generation, 10))
	if shards, of := queue.ShardsOf(r.Context()); shards != nil {
		r.Header.Set(HeaderShards, formatShards(shards))
		r.Header.Set(headerShardCount, strconv.Itoa(of))
	}
	if a := hopOf(r.Context()).authorization; a != "" {
		r.Header.Set("Authorization", a)
	}
}

// mapNotOwner converts the refusal of a broker that no longer serves the queue into Unavailable, with
// the new holder if it is known.
func (f *Forwarder) mapNotOwner(p shardHolder, name string, err error) error {
	if err == nil || queue.TagOf(err) != queue.QueueNotOwner {
		return err
	}
	holder := ""
	if addr, _, lost := f.cfg.Locator.Broker(p.callerCtx, name, p.first); lost == nil && addr != f.cfg.Self {
		holder = addr
	}
	return f.noBroker(holder, "the broker of queue %q: %w: %w", name, errNotServedHere, err)
}
