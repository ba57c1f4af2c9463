package host

import (
	"cmp"
	"context"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"

	"github.com/emitd/emitd/cmd/emitd/internal/backend"
	"github.com/emitd/emitd/cmd/emitd/internal/fault"
	"github.com/emitd/emitd/daemon/queue"
	"github.com/emitd/emitd/daemon/queue/api"
)

// queues are the queues of a process: one broker for all shards that are assigned to its nodes,
// the list of queues, and the API, which forwards to whichever process has the shard.
type queues struct {
	h       *host
	broker  *queue.Broker
	forward *api.Forwarder
	handler *api.Handler

	mu    sync.Mutex
	known map[string]bool // registered with this process's nodes
}

var _ api.Directory = (*queues)(nil)

// openQueues opens the object store and makes the broker. It returns nil when there is no object
// store, or when the queues are disabled here.
func (h *host) openQueues(ctx context.Context) (*queues, error) {
	if h.Config.Objects.URL == "" || !h.Config.Runs("emit:queue") {
		return nil, nil
	}
	bucket, err := backend.Bucket(ctx, h.Config.Objects.URL)
	if err != nil {
		return nil, err
	}
	snap, err := h.up.Store.Snapshot(ctx)
	if err != nil {
		return nil, err
	}
	owner, err := uuid.NewV7()
	if err != nil {
		return nil, err
	}
	q := &queues{h: h, known: map[string]bool{}}
	where := &locator{store: h.up.Store.Store, exists: q.exists}
	q.broker, err = queue.NewBroker(queue.Config{
		Bucket: bucket, StoreID: backend.LastingID(snap.StoreID), Owner: owner.String(), Address: h.up.Address,
		Now: h.storeTime, MinGap: h.Config.MinGap(), Logger: h.log,
		Holder: func(name string, shard int) string {
			ctx, cancel := context.WithTimeout(ctx, h.Config.Timing().QueryTimeout)
			defer cancel()
			addr, _, _ := where.Broker(ctx, name, max(shard, 0))
			return addr
		},
	})
	if err != nil {
		return nil, err
	}
	q.forward, err = api.NewForwarder(api.ForwarderConfig{
		Locator: where, Sharding: q.broker.Queues(), Self: h.up.Address, Local: q.broker, TLS: h.guard.peers(),
	})
	if err != nil {
		return nil, err
	}
	q.handler, err = api.New(q.forward, api.Options{Queues: q, Origins: h.Config.API.Origins, Logger: h.log})
	if err != nil {
		return nil, fault.New(fault.BadValue, "api.origins: %w", err)
	}
	return q, nil
}

// storeTime estimates the clock of the cluster store.
func (h *host) storeTime() time.Time {
	for _, c := range h.up.Nodes {
		if t, ok := c.StoreTime(); ok {
			return t
		}
	}
	return time.Now() // nothing is assigned before the first answer
}

// begin declares the default queue and offers every queue to the cluster, and goes on looking for
// new ones until done is closed.
func (q *queues) begin(ctx context.Context) error {
	list, err := q.broker.Queues().List(ctx)
	if err != nil {
		return bucketFailed(err)
	}
	if len(list) == 0 {
		if _, err := q.broker.Queues().Declare(ctx, q.defaults(queue.DefaultQueue)); err != nil {
			return bucketFailed(err)
		}
	}
	return q.look(ctx)
}

func bucketFailed(err error) error {
	return fault.New(fault.ObjectsFailed, "the list of queues: %w", err)
}

// defaults are the settings of a queue that was declared without any.
func (q *queues) defaults(name string) queue.Settings {
	c := q.h.Config.Queue
	return queue.Settings{
		Name: name, Claims: c.Claims, Visibility: time.Duration(c.VisibilityTimeout), DedupWindow: time.Duration(c.DedupWindow),
	}
}

// follow looks for queues that other nodes declared, as often as nodes heartbeat. It returns when
// done is closed.
func (q *queues) follow(ctx context.Context, done <-chan struct{}) {
	tick := time.NewTicker(q.h.Config.Timing().HeartbeatInterval)
	defer tick.Stop()
	for {
		select {
		case <-done:
			return
		case <-tick.C:
		}
		if err := q.look(ctx); err != nil && ctx.Err() == nil {
			q.h.log.Warn("the list of queues cannot be read", "error", err)
		}
	}
}

// look registers queues that are new.
func (q *queues) look(ctx context.Context) error {
	list, err := q.broker.Queues().List(ctx)
	if err != nil {
		return bucketFailed(err)
	}
	for _, set := range list {
		if err := q.offer(set); err != nil {
			return err
		}
	}
	return nil
}

// offer makes a queue a daemon of this process's nodes.
func (q *queues) offer(set queue.Settings) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.known[set.Name] {
		return nil
	}
	spec := set.Spec()
	for _, c := range q.h.up.Nodes {
		if err := c.RegisterBuiltin(spec, q.broker); err != nil {
			return fault.New(fault.BadDaemon, "%w", err)
		}
	}
	q.known[set.Name] = true
	return nil
}

// List implements [api.Directory].
func (q *queues) List(ctx context.Context) ([]queue.Settings, error) {
	return q.broker.Queues().List(ctx)
}

// exists reports whether a queue is declared.
func (q *queues) exists(ctx context.Context, name string) (bool, error) {
	list, err := q.broker.Queues().List(ctx)
	return slices.ContainsFunc(list, func(s queue.Settings) bool { return s.Name == name }), err
}

// Declare implements [api.Directory]. What is left out is this node's default.
func (q *queues) Declare(ctx context.Context, set queue.Settings) (queue.Settings, error) {
	d := q.defaults(set.Name)
	set.Claims = cmp.Or(set.Claims, d.Claims)
	set.Visibility, set.DedupWindow = cmp.Or(set.Visibility, d.Visibility), cmp.Or(set.DedupWindow, d.DedupWindow)
	made, err := q.broker.Queues().Declare(ctx, set)
	if err != nil {
		return made, err
	}
	return made, q.offer(made)
}

// Remove implements [api.Directory].
func (q *queues) Remove(ctx context.Context, name string) error {
	return q.broker.Queues().Remove(ctx, name)
}

// queuePaths are where the queue's API is, its own and osqueue's.
var queuePaths = []string{
	"/v1/", "/state", "/healthz", "/osqueue.v1.QueueService/", "/emitd.queue.v1.QueueService/",
}

// noQueues answers the queue's paths on a node that has no object store.
func noQueues(w http.ResponseWriter, _ *http.Request) {
	http.Error(w, "this node serves no queues: objects.url names no object store", http.StatusNotFound)
}
