package broker

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/internal/backoff"
	"github.com/emitd/emitd/queue"
	"github.com/emitd/emitd/storage/blob"
)

// reshardPoll is how often a node looks how far a change of the number of shards is.
const reshardPoll = 100 * time.Millisecond

// movingPolls are the pauses between two looks while callers wait for the new shards: short at first, because small
// backlogs move in tens of milliseconds.
var movingPolls = backoff.Policy{First: reshardPoll / 5, Limit: reshardPoll}

// reshardReads is how many objects are read at the same time.
const reshardReads = 16

// inParallel calls do with 0 to n-1, several at the same time, and returns an error of one of the calls.
func inParallel(n int, do func(n int) error) error {
	var all errgroup.Group
	all.SetLimit(reshardReads)
	for i := range n {
		all.Go(func() error { return do(i) })
	}
	return all.Wait()
}

// stepID identifies what a stage waits for.
type stepID struct {
	queue       string
	stage       queue.Stage
	incarnation uint64
}

// reshardPrefix returns the prefix of what a former shard writes down for the shards of an incarnation. It is
// deleted with the former shard.
func reshardPrefix(root string, former *queue.Settings, index int, incarnation uint64) string {
	return fmt.Sprintf("%s/reshard/%d/", shardPrefix(root, former, index), incarnation)
}

// movesOn reports whether a run goes on with another shard: the former one is sealed, or should have been.
func (s *shard) movesOn(a *daemon.Assignment, err error) bool {
	if err != nil || s.ctx.Err() != nil {
		return false
	}
	if s.ledger.Sealed() {
		return true
	}
	select {
	case <-a.Draining():
		return false
	default:
		return s.handOver.sealing && !s.settings.removed
	}
}

// move takes a unit from its former shard, which is sealed, to its next one: it exports the former one's
// jobs, and waits until all former shards have done so. Without a former shard it only waits. again reports
// that there is a next shard; otherwise the run ends, with err.
func (b *Broker) move(ctx context.Context, a *daemon.Assignment, former *shard) (again bool, err error) {
	name := strings.TrimPrefix(string(a.Unit.Daemon), daemonPrefix)
	a.Ready()
	done := func() {}
	defer func() { done() }()
	left := uint64(0)
	if former != nil {
		left, done = former.settings.Incarnation, b.beginTakeover(shardID{name, a.Index}) // callers wait for the next shard
		if err := b.export(ctx, former); err != nil {
			return false, fmt.Errorf("reshard %s: %w", a.Unit, err)
		}
	}
	return b.awaitLayout(ctx, a, name, left, done)
}

// awaitLayout waits until the queue has a shard with the unit's index and of another incarnation than the
// one that was left. It ends when the assignment drains. If the queue has no shard with this index any more, it calls
// gone: nobody needs to wait for the unit.
func (b *Broker) awaitLayout(ctx context.Context, a *daemon.Assignment, name string, left uint64, gone func()) (again bool, err error) {
	for reads := 1; ; reads++ {
		wait := movingPolls.After(reads)
		set, err := b.registry.get(ctx, name, wait/2)
		switch {
		case queue.TagOf(err) == queue.QueueNotFound:
			return false, noQueueError(a.Unit, err)
		case err != nil:
			b.cfg.Logger.WarnContext(ctx, "cannot read the list of queues", "unit", a.Unit.String(), "error", err)
		case set.Incarnation != left && a.Index < set.Shards:
			return true, nil
		case set.Incarnation != left:
			gone()
		case a.Index == 0 && set.Resharding.Stage == queue.Moving:
			b.reshardStep(ctx, set)
		}
		pause := time.NewTimer(wait)
		select {
		case <-a.Draining():
			pause.Stop()
			return false, nil
		case <-ctx.Done():
			pause.Stop()
			return false, context.Cause(ctx)
		case <-pause.C:
		}
	}
}

// reshardStep does this node's part in a change of the number of shards: in the first stage, each former shard
// declares that its broker follows the change. The node that has shard 0 begins the next stage when the present one is complete.
func (b *Broker) reshardStep(ctx context.Context, set *queue.Settings) {
	if set.Resharding.Stage == queue.Preparing {
		for _, s := range b.localShards(set.Name) {
			key := reshardPrefix(b.cfg.Root, set, s.index, set.Resharding.Incarnation) + "ready"
			if s.readyFor == set.Resharding.Incarnation {
				continue
			}
			if _, err := b.cfg.Bucket.Create(ctx, key, []byte(nonceText())); err != nil && !errors.Is(err, blob.ErrExists) {
				b.stepFailed(ctx, set, err)
				return
			}
			s.readyFor = set.Resharding.Incarnation
		}
	}
	if set.Resharding.Stage != queue.Moving && b.shard(set.Name, 0) == nil {
		return
	}
	complete, err := b.stageComplete(ctx, set)
	if err == nil && complete {
		err = b.registry.advance(ctx, set)
	}
	if err != nil {
		b.stepFailed(ctx, set, err)
	}
}

func (b *Broker) stepFailed(ctx context.Context, set *queue.Settings, err error) {
	if ctx.Err() == nil {
		b.cfg.Logger.WarnContext(ctx, "the change of a queue's number of shards does not go on; it is tried again",
			"queue", set.Name, "stage", set.Resharding.Stage, "shards", set.Resharding.Shards, "error", err)
		_ = backoff.Sleep(ctx, reshardPoll)
	}
}

// stageComplete reports whether all shards have done what the stage waits for. It reads one object for each
// shard, and remembers how many it has found.
func (b *Broker) stageComplete(ctx context.Context, set *queue.Settings) (bool, error) {
	x := set.Resharding
	shards, key := set.Shards, func(index int) string {
		return reshardPrefix(b.cfg.Root, set, index, x.Incarnation) + map[queue.Stage]string{queue.Preparing: "ready", queue.Moving: "done"}[x.Stage]
	}
	if x.Stage == queue.Importing {
		key = func(index int) string { return importedKey(b.cfg.Root, set, index) }
	}
	id := stepID{set.Name, x.Stage, x.Incarnation}
	b.mu.RLock()
	n := b.steps[id]
	b.mu.RUnlock()
	n, err := b.countSteps(ctx, n, shards, key)
	if err != nil {
		return false, err
	}
	complete := n == shards && (x.Stage != queue.Preparing || b.allHeld(set))
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.steps[id] = n; complete {
		delete(b.steps, id)
	}
	return complete, nil
}

// countSteps returns how many shards have done their step, counted from the first one on, if those below n have. While
// the next shard's object is missing, it reads no other.
func (b *Broker) countSteps(ctx context.Context, n, shards int, key func(index int) string) (int, error) {
	done := make([]bool, shards)
	find := func(index int) error {
		_, err := b.cfg.Bucket.Read(ctx, key(index))
		if done[index] = err == nil; errors.Is(err, blob.ErrNotFound) {
			return nil
		}
		return err
	}
	if n == shards {
		return n, nil
	}
	if err := find(n); err != nil || !done[n] {
		return n, err
	}
	first := n + 1
	if err := inParallel(shards-first, func(i int) error { return find(first + i) }); err != nil {
		return n, err
	}
	for n < shards && done[n] {
		n++
	}
	return n, nil
}

// allHeld reports whether each unit of the new shards has a node, so that none waits for one while the queue is
// not served.
func (b *Broker) allHeld(set *queue.Settings) bool {
	if b.cfg.Holder == nil {
		return true
	}
	for index := range max(set.Shards, set.Resharding.Shards) {
		if b.cfg.Holder(set.Name, index) == "" {
			return false
		}
	}
	return true
}
