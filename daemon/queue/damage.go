package queue

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/daemon/queue/journal"
)

// damagedWait is for how long a node keeps a shard that it refuses to serve: its callers are told why,
// and not that nobody serves it. Then the run ends with the error, which the cluster's status shows, and
// the takeover is tried again.
const damagedWait = 10 * time.Second

// isDamage reports whether a takeover failed for what is stored.
func isDamage(err error) bool {
	return errors.Is(err, journal.ErrMissing) || errors.Is(err, journal.ErrCorrupt) || errors.Is(err, journal.ErrRepairing)
}

// refuse keeps a shard whose journal is damaged away from its callers, and says so.
func (b *Broker) refuse(ctx context.Context, a *daemon.Assignment, p place, err error) {
	b.mu.Lock()
	first := b.damaged[p] == nil
	b.damaged[p] = Refuse(Damaged, "shard %d of the queue %q is not served, to keep what is left of it: %w", p.index, p.queue, err).
		WithHint("the queue's other shards are served; emitd queue verify %s names everything that is damaged; when the objects are back as they were, it is served again; to go on without what is lost: emitd queue repair %s --dry-run", p.queue, p.queue)
	b.mu.Unlock()
	if first {
		b.cfg.Logger.ErrorContext(ctx, "a queue's shard is damaged and is not served", "queue", p.queue, "shard", p.index, "error", err,
			"hint", fmt.Sprintf("emitd queue verify %s", p.queue))
	}
	if b.damagedWait == 0 {
		return
	}
	a.Ready() // callers are sent here
	wait := time.NewTimer(b.damagedWait)
	defer wait.Stop()
	select {
	case <-wait.C:
	case <-a.Draining():
	case <-ctx.Done():
	}
}

// damage returns why this node does not serve a shard (-1: any of the queue) that it was assigned; nil if
// it is not for damage.
func (b *Broker) damage(name string, index int) *Error {
	b.mu.RLock()
	defer b.mu.RUnlock()
	for p, e := range b.damaged {
		if p.queue == name && (index < 0 || p.index == index) {
			return e
		}
	}
	return nil
}

// damages counts the damaged shards of this node, by queue.
func (b *Broker) damages() map[string]int {
	b.mu.RLock()
	defer b.mu.RUnlock()
	out := map[string]int{}
	for p := range b.damaged {
		out[p.queue]++
	}
	return out
}
