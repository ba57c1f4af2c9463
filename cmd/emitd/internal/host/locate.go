package host

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/daemon/queue"
	"github.com/emitd/emitd/daemon/queue/api"
	"github.com/emitd/emitd/storage"
)

// fresh is how long the newest snapshot answers where a broker is: short against a takeover, long
// against a call. While a queue is between two brokers, it is doubted after doubted: what calls wait
// for is then the next snapshot.
const (
	fresh   = 250 * time.Millisecond
	doubted = 10 * time.Millisecond
)

// locator finds brokers in the cluster store, and the shards of queues, which are units there.
type locator struct {
	store storage.Store
	// exists says whether a queue is declared; it is asked only where no broker is found.
	exists func(ctx context.Context, queue string) (bool, error)

	doubt atomic.Bool

	mu   sync.Mutex
	snap *daemon.Snapshot
	at   time.Time
}

var (
	_ api.Locator  = (*locator)(nil)
	_ api.Doubter  = (*locator)(nil)
	_ api.Sharding = (*locator)(nil)
)

// Doubt implements [api.Doubter].
func (l *locator) Doubt() { l.doubt.Store(true) }

// Broker returns where a shard of a queue is served: the address of the node that holds its unit,
// and the generation.
//
// Nobody is no error, unless there is no such queue or this process cannot know.
func (l *locator) Broker(ctx context.Context, name string, shard int) (addr string, generation int64, err error) {
	snap, err := l.snapshot(ctx)
	if err != nil {
		return "", 0, fmt.Errorf("read the cluster: %w", err)
	}
	u := daemon.Unit{Daemon: daemon.ID("emit:queue/" + name), Index: shard}
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
	known, err := l.exists(ctx, name)
	switch {
	case err == nil && !known:
		return "", 0, queue.Refuse(queue.QueueNotFound, "there is no queue %q", name).WithHint("emitd queue declare %s makes it", name)
	case err != nil && shards(snap, name) == 0:
		return "", 0, err
	}
	return "", 0, nil // between two brokers
}

// shards counts the units of a queue.
func shards(s *daemon.Snapshot, name string) int {
	id, n := daemon.ID("emit:queue/"+name), 0
	for i := range s.Units {
		if u := &s.Units[i]; u.Unit.Daemon == id && !u.Retired {
			n++
		}
	}
	return n
}

// Shards implements [api.Sharding] for a process that cannot read the list of queues.
func (l *locator) Shards(ctx context.Context, name string) (int, error) {
	snap, err := l.snapshot(ctx)
	if err != nil {
		return 0, fmt.Errorf("read the cluster: %w", err)
	}
	return max(shards(snap, name), 1), nil // without a unit, route says what is the matter
}

// OfJob implements [api.Sharding].
func (*locator) OfJob(j *queue.Job, shards int) int { return (*queue.Registry)(nil).OfJob(j, shards) }

// OfSettlement implements [api.Sharding].
func (*locator) OfSettlement(x *queue.Settlement, shards int) int {
	return (*queue.Registry)(nil).OfSettlement(x, shards)
}

// snapshot returns one that is fresh; callers that come at once wait for the same one.
func (l *locator) snapshot(ctx context.Context) (*daemon.Snapshot, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	age := time.Since(l.at)
	if l.snap != nil && (age < doubted || age < fresh && !l.doubt.Load()) {
		return l.snap, nil
	}
	l.doubt.Store(false) // before the look: doubts that come during it are about what was before
	snap, err := l.store.Snapshot(ctx)
	if err != nil {
		return nil, err
	}
	l.snap, l.at = snap, time.Now()
	return snap, nil
}
