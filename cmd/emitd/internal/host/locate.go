package host

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/daemon/queue"
	"github.com/emitd/emitd/storage"
)

// fresh is how long the newest snapshot answers where a broker is: short against a takeover, long
// against a call.
const fresh = 250 * time.Millisecond

// locator finds brokers in the cluster store.
type locator struct {
	store storage.Store
	// exists says whether a queue is declared; it is asked only where no broker is found.
	exists func(ctx context.Context, queue string) (bool, error)

	mu   sync.Mutex
	snap *daemon.Snapshot
	at   time.Time
}

// Broker returns where a shard of a queue is served: the address of the node that holds its unit,
// and the generation.
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
	if known, err := l.exists(ctx, name); err == nil && !known {
		return "", 0, queue.Refuse(queue.QueueNotFound, "there is no queue %q", name).WithHint("emitd queue declare %s makes it", name)
	}
	return "", 0, nil
}

// snapshot returns one that is fresh; callers that come at once wait for the same one.
func (l *locator) snapshot(ctx context.Context) (*daemon.Snapshot, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.snap != nil && time.Since(l.at) < fresh {
		return l.snap, nil
	}
	snap, err := l.store.Snapshot(ctx)
	if err != nil {
		return nil, err
	}
	l.snap, l.at = snap, time.Now()
	return snap, nil
}
