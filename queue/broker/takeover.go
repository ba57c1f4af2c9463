package broker

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"sync"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/queue"
	"github.com/emitd/emitd/queue/internal/journal"
	"github.com/emitd/emitd/queue/internal/ledger"
)

// ledgerBuilder rebuilds a ledger from a journal. It begins with the ledger's own defaults and not with
// today's settings, because the log contains the settings that each record was decided under.
type ledgerBuilder struct {
	restore  *ledger.CheckpointReader
	l        *ledger.Ledger
	records  int
	rejected int // records that the ledger rejected (ErrVoid)
}

var _ journal.StateBuilder = (*ledgerBuilder)(nil)

// Reset discards everything and begins with an empty state.
func (f *ledgerBuilder) Reset() { *f = ledgerBuilder{} }

// Restore reads one chunk of the checkpoint.
func (f *ledgerBuilder) Restore(chunk []byte) error {
	if f.restore == nil {
		f.restore = ledger.NewCheckpointReader()
	}
	return f.restore.Add(chunk)
}

// Replay applies records of the log. It skips a record that does not apply: it changed nothing for
// the owner that wrote it either.
func (f *ledgerBuilder) Replay(slot uint64, at time.Time, records iter.Seq[[]byte]) error {
	l, err := f.ledger()
	if err != nil {
		return err
	}
	for b := range records {
		f.records++
		switch err := l.Replay(b, at.UnixMilli(), slot); {
		case errors.Is(err, ledger.ErrVoid):
			f.rejected++
		case err != nil:
			return fmt.Errorf("slot %d: %w", slot, err)
		}
	}
	return nil
}

// ledger returns the state so far.
func (f *ledgerBuilder) ledger() (*ledger.Ledger, error) {
	if f.l == nil && f.restore == nil {
		f.l = ledger.New(ledger.Config{})
	}
	if f.l != nil {
		return f.l, nil
	}
	l, err := f.restore.Ledger()
	f.l, f.restore = l, nil
	return l, err
}

func ledgerConfig(set *queue.Settings) ledger.Config {
	return ledger.Config{DedupWindow: millis(set.DedupWindow), DedupIDs: set.DedupIDs}
}

func (b *Broker) journalConfig(set *queue.Settings, index int, generation int64, budget *storeBudget) journal.Config {
	name := set.Name // the journal's hooks need no more of the settings
	var retries retryLog
	return journal.Config{
		Bucket: b.cfg.Bucket, Prefix: shardPrefix(b.cfg.Root, set, index), StoreID: b.cfg.StoreID, Generation: generation, Owner: b.cfg.Owner,
		MinGap: b.cfg.MinGap, WritesPerSecond: b.cfg.WritesPerSecond, Window: b.cfg.Window, Name: shardPath(set, index), MarkAfter: b.markPause, MarkEvery: b.markPause, Codec: b.codec,
		Hooks: journal.Hooks{
			OnRetry: func(op string, attempt int, err error) {
				budget.failed(err)
				if more, due := retries.add(time.Now()); due {
					b.cfg.Logger.Warn("a request of a queue's journal failed and is retried", "queue", name, "shard", index, "op", op, "attempt", attempt, "error", err, "others_before", more)
				}
			},
			OnCollected: func(_ int, err error) {
				if err != nil {
					b.cfg.Logger.Warn("cannot delete unused objects of a queue's journal", "queue", name, "shard", index, "error", err)
				}
			},
		},
	}
}

// retryLog says which retries are logged: a store that takes fewer requests than it gets refuses some of them all the time.
type retryLog struct {
	last   time.Time
	others int // since then
}

// retryLogEvery is the least time between two messages.
const retryLogEvery = 10 * time.Second

// add counts a retry. If it is to be logged, due is set, and others is how many were not logged before it.
func (l *retryLog) add(now time.Time) (others int, due bool) {
	if now.Sub(l.last) < retryLogEvery {
		l.others++
		return 0, false
	}
	others = l.others
	*l = retryLog{last: now}
	return others, true
}

// takeOver makes this process the owner of a shard: it opens the journal, which fences the former
// owner and replays the log, gives every known claim a fresh visibility timeout, and builds the
// shard.
func (b *Broker) takeOver(ctx context.Context, a *daemon.Assignment, set *queue.Settings) (*shard, error) {
	if a.Index >= set.Shards {
		return nil, fmt.Errorf("serve %s: the queue has %d shards", a.Unit, set.Shards)
	}
	begun := time.Now()
	f := &ledgerBuilder{}
	wake := make(chan struct{}, 1)
	budget := &storeBudget{wake: wake}
	log, err := journal.Open(ctx, b.journalConfig(set, a.Index, a.Generation, budget), f)
	if err != nil {
		return nil, b.takeoverError(a, set, err)
	}
	l, err := f.ledger()
	if err != nil {
		return nil, errors.Join(fmt.Errorf("take over %s: %w", a.Unit, err), log.Close(ctx))
	}
	keys, err := b.importFormer(ctx, set, a.Index, log, l)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("take over %s: %w", a.Unit, err), log.Close(ctx))
	}
	at := log.Now(b.cfg.Now())
	now := at.UnixMilli()
	l.TakeOver(now)
	l.KeepRecent(b.recentBytes)
	s := &shard{
		b: b, unit: a.Unit, name: set.Name, index: a.Index, incarnation: set.Incarnation, prefix: shardPrefix(b.cfg.Root, set, a.Index),
		settings: shardSettings{Settings: set}, ctx: ctx, log: log, ledger: l, epoch: log.Epoch(),
		tokenCodecs: newTokenCodecs(log.Secret()), formerKeys: keys, wake: wake, calls: mailbox[*call]{limit: inboxSize, filled: wake}, runEnded: make(chan struct{}),
		claims: claims{withdrawn: mailbox[*claimCall]{limit: inboxSize}},
		counts: counts{begun: time.Now(), rejected: f.rejected},
		clock:  queueClock{estimate: b.cfg.Now, log: log, now: now, at: at, local: time.Now()},
	}
	s.commits = commits{log: log, ledger: l, clock: &s.clock, host: s, budget: budget, changes: 1}
	s.checkpoints = checkpoints{ledger: l, host: s}
	s.cleaning.rule = b.cleaningRule
	s.payloads.bucket, s.payloads.prefix, s.payloads.epoch = b.cfg.Bucket, blobPrefix(s.prefix), s.epoch
	s.payloads.ctx, s.payloads.logger = ctx, b.cfg.Logger
	b.cfg.Logger.InfoContext(ctx, "took over a shard of a queue", "unit", a.Unit.String(), "epoch", s.epoch, "jobs", l.Jobs(),
		"records", f.records, "void", f.rejected, "took", time.Since(begun))
	return s, nil
}

// takeOverCurrent takes a shard over. If the queue's settings were read a moment ago, it uses these and reads
// the current ones concurrently: that saves callers the time of one request. If the queue turns out
// to have been replaced, the journal that was opened is closed and left to whoever deletes the
// removed queue. It returns nil if the queue has no shard with the unit's index.
func (b *Broker) takeOverCurrent(ctx context.Context, a *daemon.Assignment, name string) (*shard, error) {
	known := b.registry.recentSettings(ctx, name)
	if known == nil || known.Resharding.Stage != "" || a.Index >= known.Shards {
		set, err := b.registry.get(ctx, name, 0)
		if err != nil {
			b.DeleteRemoved(ctx)
			return nil, noQueueError(a.Unit, err)
		}
		return b.takeOverIfAny(ctx, a, set)
	}
	var set *queue.Settings
	var unread error
	var reading sync.WaitGroup
	reading.Go(func() { set, unread = b.registry.get(ctx, name, 0) })
	s, err := b.takeOver(ctx, a, known)
	reading.Wait()
	switch {
	case queue.TagOf(unread) == queue.QueueNotFound || unread == nil && set.Incarnation != known.Incarnation:
		if err == nil {
			err = s.log.Close(ctx)
		}
		b.DeleteRemoved(ctx)
		if unread != nil {
			return nil, noQueueError(a.Unit, errors.Join(unread, err))
		}
		return b.takeOverIfAny(ctx, a, set)
	case err != nil:
		return nil, err
	case unread != nil && s.ledger.Fresh():
		// Nothing was ever in it: it may be a shard of a removed queue, or of a former number of shards, whose objects are
		// deleted already.
		return nil, errors.Join(fmt.Errorf("take over %s: %w", a.Unit, unread), s.log.Close(ctx))
	case unread != nil: // follow reads the settings later
		b.cfg.Logger.WarnContext(ctx, "cannot read the list of queues; the shard is served with its former settings", "unit", a.Unit.String(), "error", unread)
	default:
		s.settings.Settings = set
	}
	return s, nil
}

// takeOverIfAny takes the unit's shard over. It returns nil if the queue has no shard with its index, but may have
// had one or get one.
func (b *Broker) takeOverIfAny(ctx context.Context, a *daemon.Assignment, set *queue.Settings) (*shard, error) {
	if a.Index >= set.Shards && (set.Layout > 0 || set.Resharding.Stage != "") {
		return nil, nil
	}
	return b.takeOver(ctx, a, set)
}

// takeoverError adds to the error of a failed takeover what the operator can do. It reports a generation
// that is too old to the cluster, so that the next one is above the journal's. Such a takeover is no failure: nothing
// is wrong with this node, and further attempts with this generation are in vain. After a repair it is the normal case.
func (b *Broker) takeoverError(a *daemon.Assignment, set *queue.Settings, err error) error {
	if g, ok := errors.AsType[*journal.GenerationError](err); ok {
		a.ReportRefused(g.Held)
		return fmt.Errorf("take over %s: %w (%w)", a.Unit, err, &daemon.StaleError{Fence: a.Fence(), HeldGeneration: g.Held})
	}
	if errors.Is(err, journal.ErrOtherStore) {
		return fmt.Errorf("take over %s: %w; to move the queue to this cluster, stop the other one and run: emitd queue adopt %s", a.Unit, err, set.Name)
	}
	if isDamage(err) {
		return fmt.Errorf("take over %s: %w; see emitd queue verify %s", a.Unit, err, set.Name)
	}
	return fmt.Errorf("take over %s: %w", a.Unit, err)
}

// Adopt takes over a queue that belonged to another cluster store. That store's brokers must not
// run any more: they would lose the queue for good. It returns how many shards it took. It skips
// shards that belong to this cluster already, so an interrupted adoption can be repeated.
func (b *Broker) Adopt(ctx context.Context, name string) (taken int, err error) {
	set, err := b.registry.get(ctx, name, 0)
	if err != nil {
		return 0, err
	}
	for index := range set.Shards {
		cfg := b.journalConfig(set, index, 1, &storeBudget{}) // the lowest generation, so that it never replaces a run of this cluster
		cfg.Adopt = true
		log, err := journal.Open(ctx, cfg, &ledgerBuilder{})
		if errors.Is(err, journal.ErrGeneration) {
			continue
		}
		if err == nil {
			err = log.Close(ctx)
		}
		if err != nil {
			return taken, fmt.Errorf("adopt shard %d of queue %s: %w", index, name, err)
		}
		taken++
	}
	return taken, nil
}
