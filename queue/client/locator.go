package client

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sync/singleflight"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/node"
	"github.com/emitd/emitd/queue"
)

// snapshotAge is how long a snapshot is used: short compared with a takeover, long compared with a call.
// After Invalidate it is used for doubted only, because calls then wait for the next broker.
const (
	snapshotAge    = 250 * time.Millisecond
	invalidatedAge = 10 * time.Millisecond

	snapshotTimeout = 5 * time.Second        // of one read of the store
	snapshotWait    = 500 * time.Millisecond // how long calls that have an older snapshot wait for a read
	snapshotPause   = time.Second            // without a read for those calls, after one that was not answered
	refusedPause    = 50 * time.Millisecond  // and after one that was refused
)

// LocatorConfig configures a [ClusterLocator]. Cluster is required.
type LocatorConfig struct {
	// Cluster reads the current state of the cluster; a storage.Store does.
	Cluster interface {
		Snapshot(ctx context.Context) (*daemon.Snapshot, error)
	}
	// Exists reports whether a queue is declared. It is called only if no broker is found. Nil:
	// the locator cannot distinguish a queue between two brokers from one that does not exist.
	Exists func(ctx context.Context, queue string) (bool, error)
}

// ClusterLocator finds the brokers of queues in the cluster store. It is for a [Client] that calls
// them directly, and for a node that forwards calls to them. It is safe for concurrent use and
// starts a goroutine for each read of the store, which ends within five seconds. It does not close the cluster store; its
// owner does so after the last call.
//
// Each shard of a queue is a unit of the daemon emit:queue/<queue>. The node that holds the unit
// has its address in its row. The locator reads both in the cluster's snapshot:
//
//   - A snapshot is used for a quarter of a second, by any number of callers. A program that makes
//     no calls reads nothing; a busy one reads four times a second.
//   - After [ClusterLocator.Invalidate] it is used for 10 ms. So a program that waits for the next
//     broker reads the store at most a hundred times a second.
//   - While the store does not answer, the last snapshot is used, however old it is: brokers go on for as long as their
//     assignments hold, and need the store for no call. A call waits half a second for the store at most.
//   - A broker that hands over is named until its unit is free, because it serves until it has drained.
//   - An answer may be out of date. The generation distinguishes two brokers of one shard. A node
//     that is no longer the broker refuses the call, so no call takes effect twice.
type ClusterLocator struct {
	cfg   LocatorConfig
	doubt atomic.Bool

	reads  singleflight.Group
	newest atomic.Pointer[located]
	again  atomic.Pointer[time.Time] // after a read that failed: when calls that have a snapshot wait for the next one
}

// located is a snapshot and what it says. It is never changed.
type located struct {
	snap    *daemon.Snapshot
	at      time.Time
	brokers map[daemon.Unit]brokerAt // calls do not search a cluster with thousands of units
}

// brokerAt is where a shard is served.
type brokerAt struct {
	addr       string
	generation int64
}

// NewLocator creates a locator. It does not read the store yet.
func NewLocator(c LocatorConfig) *ClusterLocator { return &ClusterLocator{cfg: c} }

// Invalidate makes the next answer come from the store, unless the last snapshot is less than 10 ms old.
// Call it when a broker was not where the locator said.
func (l *ClusterLocator) Invalidate() { l.doubt.Store(true) }

// Broker returns where a shard of a queue is served: the address (host:port) of the node that holds
// its unit, and the generation.
//
// If no node serves it, the address is empty and there is no error. An error means that the store
// does not answer, that there is no such queue ([queue.QueueNotFound]), or that Exists failed.
func (l *ClusterLocator) Broker(ctx context.Context, name string, shard int) (addr string, generation int64, err error) {
	cluster, err := l.recent(ctx)
	if err != nil {
		return "", 0, fmt.Errorf("read the cluster: %w", err)
	}
	if at, served := cluster.brokers[daemon.Unit{Daemon: unitsOf(name), Index: shard}]; served {
		return at.addr, at.generation, nil
	}
	if l.cfg.Exists == nil {
		return "", 0, nil
	}
	known, err := l.cfg.Exists(ctx, name)
	switch {
	case err == nil && !known:
		return "", 0, queue.Refuse(queue.QueueNotFound, "there is no queue %q", name).WithHint("emitd queue declare %s creates it", name)
	case err != nil && shards(cluster.snap, name) == 0:
		return "", 0, err
	}
	return "", 0, nil // between two brokers
}

// brokersIn returns where the shards of all queues are served. A broker whose unit is being revoked serves until it has
// drained. After that it refuses calls, and who has called it waits for the next broker.
func brokersIn(snap *daemon.Snapshot) map[daemon.Unit]brokerAt {
	addresses := map[node.Incarnation]string{}
	for i := range snap.Nodes {
		if n := &snap.Nodes[i]; n.Present() {
			addresses[n.Incarnation] = n.Address
		}
	}
	brokers, queues := map[daemon.Unit]brokerAt{}, string(unitsOf(""))
	for i := range snap.Units {
		r := &snap.Units[i]
		if r.State != daemon.Active && r.State != daemon.Revoking || !strings.HasPrefix(string(r.Unit.Daemon), queues) {
			continue
		}
		if addr, ok := addresses[r.Holder.Incarnation]; ok {
			brokers[r.Unit] = brokerAt{addr, r.Generation}
		}
	}
	return brokers
}

// unitsOf returns the daemon whose units are a queue's shards.
func unitsOf(name string) daemon.ID { return queue.Settings{Name: name}.Spec().ID }

// shards counts the units of a queue.
func shards(s *daemon.Snapshot, name string) int {
	id, n := unitsOf(name), 0
	for i := range s.Units {
		if u := &s.Units[i]; u.Unit.Daemon == id && !u.Retired {
			n++
		}
	}
	return n
}

// Shards returns how many shards a queue has in the cluster's snapshot; 1 for a queue that is not
// in it.
func (l *ClusterLocator) Shards(ctx context.Context, name string) (int, error) {
	cluster, err := l.recent(ctx)
	if err != nil {
		return 0, fmt.Errorf("read the cluster: %w", err)
	}
	return max(shards(cluster.snap, name), 1), nil
}

// recent returns a snapshot that is recent, or the newest one if the store does not answer. Concurrent callers wait for the
// same read.
func (l *ClusterLocator) recent(ctx context.Context) (*located, error) {
	newest := l.newest.Load()
	if newest == nil {
		select {
		case read := <-l.reads.DoChan("", l.read):
			return l.newest.Load(), read.Err
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
	age := time.Since(newest.at)
	if age < invalidatedAge || age < snapshotAge && !l.doubt.Load() {
		return newest, nil
	}
	if again := l.again.Load(); again != nil && time.Now().Before(*again) {
		return newest, nil
	}
	late := time.NewTimer(snapshotWait)
	defer late.Stop()
	select {
	case <-l.reads.DoChan("", l.read):
		newest = l.newest.Load()
	case <-late.C:
		l.pause(snapshotPause)
	case <-ctx.Done():
	}
	return newest, nil
}

// read reads the store for all who wait.
func (l *ClusterLocator) read() (any, error) {
	ctx, cancel := context.WithTimeout(context.Background(), snapshotTimeout)
	defer cancel()
	l.doubt.Store(false) // before the read: a doubt that comes during the read concerns the old snapshot
	snap, err := l.cfg.Cluster.Snapshot(ctx)
	if err != nil {
		l.pause(refusedPause)
		return nil, err
	}
	l.newest.Store(&located{snap, time.Now(), brokersIn(snap)})
	l.again.Store(nil)
	return nil, nil
}

// pause lets calls that have a snapshot use it for some time.
func (l *ClusterLocator) pause(d time.Duration) {
	again := time.Now().Add(d)
	l.again.Store(&again)
}
