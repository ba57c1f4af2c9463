// Package locate finds the brokers of queues in the cluster store, for a [client.Client] that asks them
// directly and for a node that forwards calls to them.
//
//	where := locate.New(locate.Config{Cluster: store}) // a storage.Store of the cluster
//	q, err := client.New(client.Config{Locator: where})
//
// Each shard of a queue is a unit of the daemon emit:queue/<queue>, and the node that holds the unit has
// an address in its row: a [Locator] reads both in the cluster's snapshot.
//
//   - A snapshot answers for a quarter of a second, to however many callers: a program that makes no calls
//     reads nothing, one that is busy reads four times a second.
//   - After [Locator.Doubt] it answers for 10 ms: who waits for the next broker reads the store a hundred
//     times a second at most.
//   - An answer may be out of date; the generation tells two brokers of one shard apart. Whoever is asked
//     and is no broker any more refuses, so nothing is done twice.
package locate

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/daemon/queue"
)

// fresh is how long the newest snapshot answers where a broker is: short against a takeover, long
// against a call. While a queue is between two brokers, it is doubted after doubted: what calls wait
// for is then the next snapshot.
const (
	fresh   = 250 * time.Millisecond
	doubted = 10 * time.Millisecond
)

// Cluster tells the newest state of a cluster; a storage.Store does.
type Cluster interface {
	Snapshot(ctx context.Context) (*daemon.Snapshot, error)
}

// Config of a locator. Cluster must be given.
type Config struct {
	Cluster Cluster
	// Exists reports whether a queue is declared; it is asked only where no broker is found. Nil: a queue
	// without a broker may be between two, or not be there, which the locator then does not tell apart.
	Exists func(ctx context.Context, queue string) (bool, error)
}

// Locator finds brokers. It is safe for concurrent use and starts no goroutine. The cluster store is its
// owner's, to be closed after the last call.
type Locator struct {
	cfg   Config
	doubt atomic.Bool

	mu   sync.Mutex
	snap *daemon.Snapshot
	at   time.Time
}

// New makes a locator. It reads nothing yet.
func New(c Config) *Locator { return &Locator{cfg: c} }

// Doubt makes the next answer one from the store, unless the last is not 10 ms old: call it when a broker
// was not where the locator said.
func (l *Locator) Doubt() { l.doubt.Store(true) }

// Broker returns where a shard of a queue is served: the address (host:port) of the node that holds its
// unit, and the generation.
//
// Nobody is no error, unless the store does not answer, there is no such queue ([queue.QueueNotFound]) or
// Exists cannot know.
func (l *Locator) Broker(ctx context.Context, name string, shard int) (addr string, generation int64, err error) {
	snap, err := l.snapshot(ctx)
	if err != nil {
		return "", 0, fmt.Errorf("read the cluster: %w", err)
	}
	u := daemon.Unit{Daemon: unitsOf(name), Index: shard}
	for i := range snap.Units {
		r := &snap.Units[i]
		if r.Unit != u || r.State != daemon.Active {
			continue
		}
		for j := range snap.Nodes {
			if n := &snap.Nodes[j]; n.Incarnation == r.Holder.Incarnation && n.Present() {
				return n.Address, r.Generation, nil
			}
		}
	}
	if l.cfg.Exists == nil {
		return "", 0, nil
	}
	known, err := l.cfg.Exists(ctx, name)
	switch {
	case err == nil && !known:
		return "", 0, queue.Refuse(queue.QueueNotFound, "there is no queue %q", name).WithHint("emitd queue declare %s makes it", name)
	case err != nil && shards(snap, name) == 0:
		return "", 0, err
	}
	return "", 0, nil // between two brokers
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

// Shards returns how many shards a queue has, as the cluster knows it; 1 for a queue that it does not know.
func (l *Locator) Shards(ctx context.Context, name string) (int, error) {
	snap, err := l.snapshot(ctx)
	if err != nil {
		return 0, fmt.Errorf("read the cluster: %w", err)
	}
	return max(shards(snap, name), 1), nil
}

// OfJob returns the shard of a job that has an ID or a key.
func (*Locator) OfJob(j *queue.Job, shards int) int { return (*queue.Registry)(nil).OfJob(j, shards) }

// OfSettlement returns the shard of a claim, as far as its token, or else its job's ID, says.
func (*Locator) OfSettlement(s *queue.Settlement, shards int) int {
	return (*queue.Registry)(nil).OfSettlement(s, shards)
}

// snapshot returns one that is fresh; callers that come at once wait for the same one.
func (l *Locator) snapshot(ctx context.Context) (*daemon.Snapshot, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	age := time.Since(l.at)
	if l.snap != nil && (age < doubted || age < fresh && !l.doubt.Load()) {
		return l.snap, nil
	}
	l.doubt.Store(false) // before the look: doubts that come during it are about what was before
	snap, err := l.cfg.Cluster.Snapshot(ctx)
	if err != nil {
		return nil, err
	}
	l.snap, l.at = snap, time.Now()
	return snap, nil
}
