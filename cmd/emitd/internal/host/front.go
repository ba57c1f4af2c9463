package host

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/emitd/emitd/cmd/emitd/internal/backend"
	"github.com/emitd/emitd/cmd/emitd/internal/throttle"
	"github.com/emitd/emitd/internal/admin/fault"
	"github.com/emitd/emitd/internal/backoff"
	"github.com/emitd/emitd/queue"
	"github.com/emitd/emitd/queue/api"
	"github.com/emitd/emitd/queue/broker"
	"github.com/emitd/emitd/queue/client"
)

// queueAPI is the queue API of a process. It answers from the start on every node and forwards calls to the
// node that serves the shard. Once the object store is open, this process serves shards as well.
//
//	forwarding ──▶ object store opened ──▶ serving
//	    ▲  │ cannot be used: again after a pause
//	    └──┤
//	       └ unfit (E3301): forwarding for good
//
// The nodes do not depend on any of this: they start, lead and run other daemons whether or not the
// object store answers.
type queueAPI struct {
	h     *host
	where *client.ClusterLocator
	open  backend.Opener // nil: this process has no queues

	answers  atomic.Pointer[handlers]
	queues   atomic.Pointer[queues]      // nil until this process serves queues
	failed   atomic.Pointer[fault.Fault] // why the object store is not open
	replaced []*handlers                 // replaced, to be closed; only run's goroutine uses it
}

// handlers is the handler of calls with its forwarder.
type handlers struct {
	forward *api.Forwarder
	handler *api.Handler
}

var _ client.Invalidator = (*client.ClusterLocator)(nil)

// clusterSharding is the sharding of a process that does not serve queues: it finds the number of shards in the
// cluster store, and knows as every registry does to which shard a job belongs.
type clusterSharding struct {
	*broker.Registry // nil
	cluster          *client.ClusterLocator
}

// Shards implements [api.Sharding].
func (s clusterSharding) Shards(ctx context.Context, name string) (int, error) {
	return s.cluster.Shards(ctx, name)
}

// Layout returns 1: the cluster store does not say how often a queue's number of shards has changed.
func (s clusterSharding) Layout(context.Context, string) (uint64, error) { return 1, nil }

// Invalidate implements [client.Invalidator].
func (s clusterSharding) Invalidate() { s.cluster.Invalidate() }

// newFront makes the API, which at first only forwards. Its errors are mistakes in the configuration.
func (h *host) newFront() (*queueAPI, error) {
	f := &queueAPI{h: h}
	f.where = client.NewLocator(client.LocatorConfig{Cluster: h.up.Store.Store, Exists: f.exists})
	var list api.Directory // nil: a node without an object store declares no queues
	if h.Config.Objects.URL != "" && h.Config.Runs(string(queue.Kind)) {
		open, err := backend.Objects(h.Config.Objects.URL)
		if err != nil {
			return nil, err
		}
		f.open, list = open, closed{f}
	}
	a, err := f.assemble(clusterSharding{cluster: f.where}, nil, list)
	if err != nil {
		return nil, err
	}
	f.answers.Store(a)
	return f, nil
}

// assemble makes the handler of calls, with the broker of this process if there is one.
func (f *queueAPI) assemble(s api.Sharding, local queue.Service, d api.Directory) (*handlers, error) {
	forward, err := api.NewForwarder(api.ForwarderConfig{
		Locator: f.where, Sharding: s, Self: f.h.up.Advertised, Local: local, TLS: f.h.guard.peers,
	})
	if err != nil {
		return nil, err
	}
	if d != nil {
		d = recordedDirectory{d, f.h}
	}
	handler, err := api.New(recorded{forward, f.h}, api.Options{
		Queues: d, Origins: f.h.Config.API.Origins, Limiter: f.h.limiter, Healthy: forward.Healthy, Authorize: authorizeQueue, ThrottleStats: f.throttle, Logger: f.h.log,
	})
	if err != nil {
		return nil, fault.New(fault.BadValue, "api.origins: %w", err)
	}
	return &handlers{forward, handler}, nil
}

// ServeHTTP answers one call.
func (f *queueAPI) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.answers.Load().handler.ServeHTTP(w, r)
}

// throttle returns how many requests this process has made to the object store.
func (f *queueAPI) throttle() api.ThrottleStats {
	q := f.queues.Load()
	if q == nil {
		return api.ThrottleStats{}
	}
	s := q.bucket.Stats()
	reads, writes := both(s[throttle.Reads], s[throttle.Lists]), both(s[throttle.Writes], s[throttle.Deletes])
	used, limit, _ := q.bucket.Budget()
	return api.ThrottleStats{
		TotalReads: reads.Sent, ThrottledReads: reads.Delayed + reads.Refused, TotalReadDelayMS: reads.Waited.Milliseconds(),
		TotalWrites: writes.Sent, ThrottledWrites: writes.Delayed + writes.Refused + writes.OverBudget, TotalWriteDelayMS: writes.Waited.Milliseconds(),
		DailyWriteCount: used, DailyBudgetExceeded: limit > 0 && used >= limit,
	}
}

func both(a, b throttle.Stats) throttle.Stats {
	return throttle.Stats{
		Sent: a.Sent + b.Sent, Delayed: a.Delayed + b.Delayed, Waited: a.Waited + b.Waited, Refused: a.Refused + b.Refused, OverBudget: a.OverBudget + b.OverBudget,
	}
}

// jobs returns the queues as this process reaches them now.
func (f *queueAPI) jobs() queue.Service { return f.answers.Load().forward }

// declare creates a queue.
func (f *queueAPI) declare(ctx context.Context, s queue.Settings) error {
	q := f.queues.Load()
	if q == nil {
		return f.why()
	}
	_, err := q.Amend(ctx, s.Name, func(queue.Settings) (queue.Settings, error) { return s, nil })
	return err
}

// close closes the connections to other nodes. run must have returned.
func (f *queueAPI) close() error {
	var errs []error
	for _, a := range append(f.replaced, f.answers.Load()) {
		errs = append(errs, a.forward.Close())
	}
	return errors.Join(errs...)
}

// reloadTLS makes calls to other nodes use the current certificates.
func (f *queueAPI) reloadTLS() { f.answers.Load().forward.ResetConnections() }

// run opens the object store and follows the list of queues, until done is closed.
func (f *queueAPI) run(ctx context.Context, done <-chan struct{}) {
	if f.open == nil {
		return
	}
	if q := f.begin(ctx); q != nil {
		q.follow(ctx, done)
	}
}

// firstAttempt bounds the first attempt to open the object store. The bound doubles with each attempt, up
// to lastAttempt. The pause after an attempt is a fifth of its bound.
const (
	firstAttempt = 5 * time.Second
	lastAttempt  = time.Minute
)

// begin tries to open the object store until the queues are served. It returns nil if they never will be:
// the object store is unfit, or ctx has ended.
func (f *queueAPI) begin(ctx context.Context) *queues {
	limits := backoff.Policy{First: firstAttempt, Limit: lastAttempt}
	for attempts := 1; ; attempts++ {
		limit := limits.After(attempts)
		begun := time.Now()
		q, err := f.attempt(ctx, limit)
		if err == nil {
			f.h.log.Info("the queue broker runs", "took", time.Since(begun).Round(time.Millisecond))
			return q
		}
		if ctx.Err() != nil || !f.recordFailure(err, limit/5) {
			return nil
		}
		select {
		case <-time.After(limit / 5):
		case <-ctx.Done():
			return nil
		}
	}
}

// recordFailure stores and logs why the queues are not served, and reports whether another attempt makes sense.
func (f *queueAPI) recordFailure(err error, pause time.Duration) bool {
	why := backend.Fault(err)
	f.failed.Store(why)
	args := []any{"code", why.Code, "error", why.What, "do", why.Advice()}
	if why.Code == fault.ObjectsUnfit {
		f.h.log.Error("cannot start the queue broker; other daemons run", args...)
		return false
	}
	f.h.log.Warn("the queue broker has not started yet; other daemons run", append(args, "again_in", pause)...)
	return true
}

// attempt opens the object store and starts to serve the queues in it.
func (f *queueAPI) attempt(ctx context.Context, limit time.Duration) (*queues, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	q, list, err := f.newQueues(ctx)
	if err != nil {
		return nil, err
	}
	a, err := f.assemble(q.broker.Registry(), q.broker, q)
	if err != nil {
		return nil, err
	}
	f.queues.Store(q)
	old := f.answers.Swap(a)
	f.replaced = append(f.replaced, old)
	if err := withShutdownTimeout(ctx, old.handler.Shutdown); err != nil { // otherwise its WebSockets would continue to be forwarded
		f.h.log.Debug("WebSockets from before the queue broker", "error", err)
	}
	if err := q.apply(ctx, 0, list...); err != nil {
		f.h.log.Error("cannot register all queues with the cluster", "error", err)
	}
	return q, nil
}

// exists reports whether a queue is declared. The process knows that once it has read the list of queues;
// until then the error says why it has not.
func (f *queueAPI) exists(ctx context.Context, name string) (bool, error) {
	if q := f.queues.Load(); q != nil {
		return q.exists(ctx, name)
	}
	if f.open == nil {
		return false, queue.Refuse(queue.QueueNotFound, "no known node serves the queue %q, and this one serves no queues", name).
			WithHint("nodes with an object store (objects.url) serve queues, unless daemons.disabled has %s", queue.Kind)
	}
	return false, f.why()
}

// why returns the reason why the object store is not open.
func (f *queueAPI) why() error {
	if failed := f.failed.Load(); failed != nil {
		return fmt.Errorf("the object store of this node is not open: %w", failed)
	}
	return errors.New("this node is opening its object store")
}

// closed is the list of queues while it cannot be read.
type closed struct{ f *queueAPI }

var _ api.Directory = closed{}

func (c closed) refuse() error {
	e := queue.Refuse(queue.Unavailable, "%w", c.f.why()).WithHint("ask another node; emitd doctor shows details")
	e.RetryAfter = time.Second
	return e
}

// List implements [api.Directory].
func (c closed) List(context.Context) ([]queue.Settings, error) { return nil, c.refuse() }

// Amend implements [api.Directory].
func (c closed) Amend(context.Context, string, func(queue.Settings) (queue.Settings, error)) (queue.Settings, error) {
	return queue.Settings{}, c.refuse()
}

// Reshard implements [api.Directory].
func (c closed) Reshard(context.Context, string, int) (queue.Settings, error) {
	return queue.Settings{}, c.refuse()
}

// Remove implements [api.Directory].
func (c closed) Remove(context.Context, string) error { return c.refuse() }
