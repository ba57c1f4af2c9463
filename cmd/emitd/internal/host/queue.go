package host

import (
	"cmp"
	"context"
	"errors"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"github.com/emitd/emitd/cmd/emitd/internal/backend"
	"github.com/emitd/emitd/cmd/emitd/internal/throttle"
	"github.com/emitd/emitd/internal/admin/fault"
	"github.com/emitd/emitd/queue"
	"github.com/emitd/emitd/queue/api"
	"github.com/emitd/emitd/queue/broker"
)

// queues holds the queues of a process: one broker for all shards that are assigned to its nodes, and the
// list of queues.
type queues struct {
	h      *host
	bucket *throttle.Bucket
	broker *broker.Broker

	// applying is a mutex that a context can abandon. The list of queues is read and applied under it, so that no
	// list is applied after a newer one. The list is changed without it, because a declaration may wait for seconds.
	applying chan struct{}
	known    map[string]registered // queues registered with this process's nodes, by name; guarded by applying
	damaged  string                // the last warning about the list of queues; guarded by applying
	applied  atomic.Int64          // how often a list, or a change of it, was applied to known
}

// registered is what of a queue's daemon can change.
type registered struct {
	instances int
	revision  int64
}

var _ api.Directory = (*queues)(nil)

// newQueues opens the object store and makes the broker. It also returns the declared queues.
func (f *queueAPI) newQueues(ctx context.Context) (*queues, []queue.Settings, error) {
	h := f.h
	opened, err := f.open(ctx)
	if err != nil {
		return nil, nil, err
	}
	o := h.Config.Objects
	bucket, err := throttle.New(opened, throttle.Config{
		Reads: perMinute(o.ReadsPerMinute), Writes: perMinute(o.WritesPerMinute), Lists: perMinute(o.ListsPerMinute),
		Deletes: perMinute(o.DeletesPerMinute), WritesPerDay: int64(o.WritesPerDay),
		First: []string{"v1/queues", "v1/queues.copy"}, // the list of queues: all calls are refused once it is too old
	})
	if err != nil {
		return nil, nil, err
	}
	list, err := h.declared(ctx, broker.NewRegistry(bucket, ""))
	if err != nil {
		return nil, nil, fault.New(fault.ObjectsFailed, "the list of queues: %w", err)
	}
	if err := broker.NewRegistry(bucket, "").EnsureCopy(ctx); err != nil {
		h.log.Error("cannot write the copy of the list of queues", "error", err)
	}
	snap, err := h.up.Store.Snapshot(ctx)
	if err != nil {
		return nil, nil, err
	}
	owner, err := uuid.NewV7()
	if err != nil {
		return nil, nil, err
	}
	q := &queues{h: h, bucket: bucket, applying: make(chan struct{}, 1), known: map[string]registered{}}
	q.broker, err = broker.New(broker.Config{
		Bucket: bucket, StoreID: backend.LastingID(snap.StoreID), Owner: owner.String(), Address: h.up.Advertised,
		Now: h.storeTime, MinGap: h.Config.MinGap(), WritesPerSecond: h.Config.WritesPerSecond(), MaxShards: h.Config.Queue.MaxShards, MetricQueues: h.Config.Queue.MetricQueues, Logger: h.log,
		Holder: func(name string, shard int) string {
			ctx, cancel := context.WithTimeout(context.Background(), h.Config.Timing().QueryTimeout)
			defer cancel()
			addr, _, _ := f.where.Broker(ctx, name, max(shard, 0))
			return addr
		},
	})
	return q, list, err
}

// perMinute returns a rate with a burst of one second's requests.
func perMinute(n int) throttle.Rate { return throttle.Rate{PerSecond: float64(n) / 60, Burst: n / 60} }

// declared returns the declared queues. If there is none, it declares the default queue.
func (h *host) declared(ctx context.Context, r *broker.Registry) ([]queue.Settings, error) {
	list, err := r.List(ctx)
	if err != nil || len(list) > 0 {
		return list, err
	}
	made, err := r.Declare(ctx, h.defaults(queue.DefaultQueue))
	return []queue.Settings{made}, err
}

// storeTime estimates the current time of the cluster store's clock.
func (h *host) storeTime() time.Time {
	for _, c := range h.up.Nodes {
		if t, ok := c.StoreTime(); ok {
			return t
		}
	}
	return time.Now() // nothing is assigned before the store's first reply
}

// defaults returns the settings of a queue that was declared without any.
func (h *host) defaults(name string) queue.Settings {
	c := h.Config.Queue
	return queue.Settings{
		Name: name, Claims: c.Claims, Visibility: time.Duration(c.VisibilityTimeout), DedupWindow: time.Duration(c.DedupWindow),
	}
}

// follow checks for queues that other nodes declared, once per heartbeat interval. It returns when done
// is closed.
func (q *queues) follow(ctx context.Context, done <-chan struct{}) {
	tick := time.NewTicker(q.h.Config.Timing().HeartbeatInterval)
	defer tick.Stop()
	for {
		select {
		case <-done:
			return
		case <-tick.C:
		}
		if err := q.refreshInTime(ctx); err != nil && ctx.Err() == nil {
			q.h.log.Warn("the list of queues cannot be read", "error", err)
		}
	}
}

// refreshTimeout bounds a read of the list: declarations wait for it.
const refreshTimeout = 5 * time.Second

func (q *queues) refreshInTime(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, refreshTimeout)
	defer cancel()
	return q.refresh(ctx)
}

// lock begins to read or apply a list of queues.
func (q *queues) lock(ctx context.Context) error {
	select {
	case q.applying <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (q *queues) unlock() { <-q.applying }

// refresh registers queues that are new, and withdraws those that were removed.
func (q *queues) refresh(ctx context.Context) error {
	if err := q.lock(ctx); err != nil {
		return err
	}
	err := q.applyList(ctx)
	none := len(q.known) == 0
	q.unlock()
	if err == nil && none {
		q.broker.DeleteRemoved(ctx)
	}
	return err
}

// apply registers queues as they were found after q.applied was before. If anything was applied since, they may be out
// of date: others may have changed them, or removed them. Then the list is read again.
func (q *queues) apply(ctx context.Context, before int64, found ...queue.Settings) error {
	if err := q.lock(ctx); err != nil {
		return err
	}
	defer q.unlock()
	if q.applied.Load() != before {
		return q.applyList(ctx)
	}
	q.applied.Add(1)
	var errs []error
	for _, set := range found {
		errs = append(errs, q.register(set))
	}
	return errors.Join(errs...)
}

// applyList is refresh for a caller that holds the lock.
func (q *queues) applyList(ctx context.Context) error {
	list, err := q.broker.Registry().List(ctx)
	if err != nil {
		return fault.New(fault.ObjectsFailed, "the list of queues: %w", err)
	}
	q.applied.Add(1)
	q.warn(ctx)
	q.withdraw(list)
	for _, set := range list {
		if err := q.register(set); err != nil {
			return err
		}
	}
	return nil
}

// warn logs damage of the list of queues, once for each text.
func (q *queues) warn(ctx context.Context) {
	damage := q.broker.Registry().Damage(ctx)
	text := ""
	if damage != nil {
		text = damage.Error()
	}
	if text != q.damaged && text != "" {
		q.h.log.Error("the list of queues is damaged; the queues that are known are served", "error", damage, "hint", damage.Hint)
	}
	q.damaged = text
}

// register makes a queue a daemon of this process's nodes. If the number of its shards changes, the nodes declare
// it anew.
func (q *queues) register(set queue.Settings) error {
	spec := set.Spec()
	before, known := q.known[set.Name]
	now := registered{spec.Instances, spec.Revision}
	if known && before == now {
		return nil
	}
	for _, c := range q.h.up.Nodes {
		if known && now.revision <= before.revision { // another queue of this name
			c.Unregister(spec.ID)
		}
		if err := c.RegisterBuiltin(spec, q.broker); err != nil {
			return fault.New(fault.BadDaemon, "%w", err)
		}
	}
	q.known[set.Name] = now
	return nil
}

// withdraw removes the daemons of queues that are no longer on the list.
func (q *queues) withdraw(list []queue.Settings) {
	listed := make(map[string]bool, len(list))
	for i := range list {
		listed[list[i].Name] = true
	}
	for name := range q.known {
		if listed[name] {
			continue
		}
		delete(q.known, name)
		for _, c := range q.h.up.Nodes {
			c.Unregister(queue.Settings{Name: name}.Spec().ID)
		}
	}
}

// List implements [api.Directory].
func (q *queues) List(ctx context.Context) ([]queue.Settings, error) {
	return q.broker.Registry().List(ctx)
}

// exists reports whether a queue is declared.
func (q *queues) exists(ctx context.Context, name string) (bool, error) {
	list, err := q.broker.Registry().List(ctx)
	return slices.ContainsFunc(list, func(s queue.Settings) bool { return s.Name == name }), err
}

// Amend implements [api.Directory]. Settings that are left out get this node's defaults.
func (q *queues) Amend(ctx context.Context, name string, revise func(queue.Settings) (queue.Settings, error)) (queue.Settings, error) {
	d, before := q.h.defaults(name), q.applied.Load()
	made, err := q.broker.Registry().Amend(ctx, name, func(inForce queue.Settings) (queue.Settings, error) {
		set, err := revise(inForce)
		set.Claims = cmp.Or(set.Claims, d.Claims)
		set.Visibility, set.DedupWindow = cmp.Or(set.Visibility, d.Visibility), cmp.Or(set.DedupWindow, d.DedupWindow)
		return set, err
	})
	if err != nil {
		return made, err
	}
	q.applyMade(ctx, before, made)
	return made, nil
}

// applyMade applies a change that this node has made. The change is stored: if it cannot be applied now, this node follows at
// its next heartbeat, as others do.
func (q *queues) applyMade(ctx context.Context, before int64, made queue.Settings) {
	if err := q.apply(ctx, before, made); err != nil {
		q.h.log.Warn("a change of the list of queues is stored, and this node cannot apply it yet", "queue", made.Name, "error", err)
	}
}

// Reshard implements [api.Directory].
func (q *queues) Reshard(ctx context.Context, name string, shards int) (queue.Settings, error) {
	before := q.applied.Load()
	set, err := q.broker.Registry().Reshard(ctx, name, shards)
	if err != nil {
		return set, err
	}
	q.applyMade(ctx, before, set)
	return set, nil
}

// Remove implements [api.Directory].
func (q *queues) Remove(ctx context.Context, name string) error {
	if err := q.broker.Registry().Remove(ctx, name); err != nil {
		return err
	}
	if err := q.refreshInTime(ctx); err != nil {
		q.h.log.Warn("a queue is removed, and this node cannot apply it yet", "queue", name, "error", err)
	}
	return nil
}

// queuePaths are the paths of the queue API, emitd's own and osqueue's.
var queuePaths = []string{
	"/v1/", "/state", "/healthz", "/osqueue.v1.QueueService/", "/emitd.queue.v1.QueueService/",
}

// ofQueues reports whether a path belongs to the queue API.
func ofQueues(path string) bool {
	return slices.ContainsFunc(queuePaths, func(p string) bool {
		return path == p || strings.HasSuffix(p, "/") && strings.HasPrefix(path, p)
	})
}
