package broker

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/queue"
	"github.com/emitd/emitd/queue/internal/journal"
	"github.com/emitd/emitd/queue/internal/ledger"
)

// damagedWait is how long a run holds on to a shard that it refuses to serve. Callers are told the
// reason during that time, instead of being told that no node serves the shard. Then the run ends
// with the error, which the cluster's status shows, and the takeover is tried again.
const damagedWait = 10 * time.Second

// damagedKept is how long a shard counts as damaged after its latest takeover has failed. The cluster tries again earlier,
// unless another node has the shard by then.
const damagedKept = 5 * time.Minute

// damagedShard is a shard that is not served because stored objects are damaged.
type damagedShard struct {
	at  time.Time // of the latest takeover that failed
	err *queue.Error
}

// counts reports whether this node may still have the shard.
func (d *damagedShard) counts() bool { return time.Since(d.at) < damagedKept }

// isDamage reports whether a takeover failed because stored objects or records in them are missing or damaged, or
// because a repair is not finished.
func isDamage(err error) bool {
	return errors.Is(err, journal.ErrMissing) || errors.Is(err, journal.ErrCorrupt) || errors.Is(err, ledger.ErrCorrupt) ||
		errors.Is(err, journal.ErrRepairing)
}

// holdDamaged makes callers of a damaged shard get the reason, and holds the run for damagedWait.
func (b *Broker) holdDamaged(ctx context.Context, a *daemon.Assignment, p shardID, err error) {
	b.mu.Lock()
	before, known := b.damaged[p]
	b.damaged[p] = damagedShard{at: time.Now(), err: queue.Refuse(queue.Damaged, "shard %d of the queue %q is not served, because stored objects are damaged or missing: %w", p.index, p.queue, err).
		WithHint("the queue's other shards are served; emitd queue verify %s lists what is damaged; the shard is served again once the objects are restored; to accept the loss: emitd queue repair %s --dry-run", p.queue, p.queue)}
	b.mu.Unlock()
	if !known || !before.counts() {
		b.cfg.Logger.ErrorContext(ctx, "a shard of a queue is damaged and is not served", "queue", p.queue, "shard", p.index, "error", err,
			"hint", fmt.Sprintf("emitd queue verify %s", p.queue))
	}
	if b.damagedWait == 0 {
		return
	}
	a.Ready() // the cluster sends callers here
	wait := time.NewTimer(b.damagedWait)
	defer wait.Stop()
	select {
	case <-wait.C:
	case <-a.Draining():
	case <-ctx.Done():
	}
}

// forgetDamage forgets that a shard is damaged, unless this node is to try again: the damage of a shard that another node
// has, or of a queue that is gone, is not this node's.
func (b *Broker) forgetDamage(ctx context.Context, a *daemon.Assignment, p shardID, err error) {
	select {
	case <-a.Draining():
	default:
		if err != nil && !errors.Is(err, daemon.ErrRelease) && ctx.Err() == nil {
			return
		}
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.damaged, p)
}

// damage returns why this node does not serve a shard (-1: any of the queue) that it was assigned;
// nil if stored objects are not the reason.
func (b *Broker) damage(name string, index int) *queue.Error {
	b.mu.RLock()
	defer b.mu.RUnlock()
	for p, d := range b.damaged {
		if p.queue == name && (index < 0 || p.index == index) && d.counts() {
			return d.err
		}
	}
	return nil
}

// damagedCounts counts the damaged shards of this node by queue.
func (b *Broker) damagedCounts() map[string]int {
	b.mu.RLock()
	defer b.mu.RUnlock()
	out := map[string]int{}
	for p, d := range b.damaged {
		if d.counts() {
			out[p.queue]++
		}
	}
	return out
}
