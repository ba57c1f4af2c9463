package broker

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/internal/backoff"
	"github.com/emitd/emitd/queue"
	"github.com/emitd/emitd/queue/internal/journal"
	"github.com/emitd/emitd/queue/internal/ledger"
)

// damagedWait is the pause before a takeover that damaged objects have prevented is tried again. It doubles with each
// further try, up to four times as long: a try may read the whole shard, and a person is to restore its objects.
const damagedWait = 10 * time.Second

// isDamage reports whether a takeover failed because stored objects or records in them are missing or damaged, or
// because a repair is not finished.
func isDamage(err error) bool {
	return errors.Is(err, journal.ErrMissing) || errors.Is(err, journal.ErrCorrupt) || errors.Is(err, ledger.ErrCorrupt) ||
		errors.Is(err, journal.ErrRepairing)
}

// takeOverWhole takes a shard over. While stored objects of it are damaged, it keeps the shard, makes callers get the
// reason, and tries again. The run does not fail meanwhile: damage is no fault of this node or of the daemon, so an embargo
// or a quarantine would only delay the shard after its objects were restored, and the queue's whole shards with it.
// The caller calls done when the shard is served, or is not served after all.
func (b *Broker) takeOverWhole(ctx context.Context, a *daemon.Assignment, id shardID) (s *shard, done func(), err error) {
	defer b.forgetDamage(id)
	pauses := backoff.Policy{First: b.damagedWait, Limit: 4 * b.damagedWait}
	for tries := 1; ; tries++ {
		done = b.beginTakeover(id)
		s, err = b.takeOverCurrent(ctx, a, id.queue)
		if !isDamage(err) || errors.Is(err, daemon.ErrRelease) { // a queue that was removed meanwhile
			return s, done, err
		}
		done()
		b.recordDamage(ctx, id, err)
		if b.damagedWait == 0 {
			return nil, done, err
		}
		a.Ready() // the cluster sends callers here
		if !pauseInRun(ctx, a, pauses.After(tries)) {
			return nil, done, err
		}
	}
}

// recordDamage makes callers of a damaged shard get the reason, and logs it, each reason once.
func (b *Broker) recordDamage(ctx context.Context, id shardID, err error) {
	why := queue.Refuse(queue.Damaged, "shard %d of the queue %q is not served, because stored objects are damaged or missing: %w", id.index, id.queue, err).
		WithHint("the queue's other shards are served; emitd queue verify %s lists what is damaged; the shard is served again once the objects are restored; to accept the loss: emitd queue repair %s --dry-run", id.queue, id.queue)
	b.mu.Lock()
	before := b.damaged[id]
	b.damaged[id] = why
	b.mu.Unlock()
	if before == nil || before.Error() != why.Error() {
		b.cfg.Logger.ErrorContext(ctx, "a shard of a queue is damaged and is not served", "queue", id.queue, "shard", id.index, "error", err,
			"hint", fmt.Sprintf("emitd queue verify %s", id.queue))
	}
}

// forgetDamage forgets that a shard is damaged: it is served, or this node does not have it any more.
func (b *Broker) forgetDamage(id shardID) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.damaged, id)
}

// pauseInRun waits, and returns false as soon as the run is to end.
func pauseInRun(ctx context.Context, a *daemon.Assignment, d time.Duration) bool {
	pause := time.NewTimer(d)
	defer pause.Stop()
	select {
	case <-pause.C:
		return true
	case <-a.Draining():
	case <-ctx.Done():
	}
	return false
}

// damage returns why this node does not serve a shard (-1: any of the queue) that it was assigned;
// nil if stored objects are not the reason.
func (b *Broker) damage(name string, index int) *queue.Error {
	b.mu.RLock()
	defer b.mu.RUnlock()
	for p, why := range b.damaged {
		if p.queue == name && (index < 0 || p.index == index) {
			return why
		}
	}
	return nil
}

// damagedCounts counts the damaged shards of this node by queue.
func (b *Broker) damagedCounts() map[string]int {
	b.mu.RLock()
	defer b.mu.RUnlock()
	out := map[string]int{}
	for p := range b.damaged {
		out[p.queue]++
	}
	return out
}
