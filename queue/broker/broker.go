package broker

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/queue"
	"github.com/emitd/emitd/queue/internal/journal"
	"github.com/emitd/emitd/queue/internal/ledger"
	"github.com/emitd/emitd/storage/blob"
)

// Config configures a broker. Bucket, StoreID, Owner and Now are required.
type Config struct {
	Bucket blob.Bucket
	// Root is the prefix of all keys; may be empty.
	Root string
	// StoreID is the identity of the cluster store, whose generations order the owners of a
	// shard.
	StoreID string
	// Owner is an ID that no other broker has, such as a new UUID.
	Owner string
	// Address is where clients reach this node; it appears in statistics.
	Address string
	// Now estimates the clock of the cluster store: its time in the last heartbeat's reply plus
	// what has passed since. Delays, times to live, claims and the deduplication window go by
	// it; durability does not.
	Now func() time.Time
	// Holder returns the address of the node that serves a shard (-1: any shard of the queue),
	// or "" if it is not known. May be nil.
	Holder func(queue string, shard int) string
	// MaxShards is the limit for the shards of all queues of the cluster together; a queue
	// beyond it cannot be declared. 0: [DefaultMaxShards]. Set the same value on all nodes.
	MaxShards int
	// MinGap is the least time between two commits of a shard. 0: a call is committed at once if no
	// commit is under way, or up to 2 ms later if callers who were answered with its own are expected; otherwise 2 to 5 ms
	// after the last one, as the bucket's latency asks.
	MinGap time.Duration
	// WritesPerSecond is the budget of each shard for commits with few records, for a bucket that
	// bills each write: commits wait, and become larger, for at most 1/WritesPerSecond. Each record
	// in a commit pays for 1/27 of a write, so commits of 27 records or more never wait for the budget, and
	// throughput is not limited. 0: no limit.
	WritesPerSecond float64
	// MetricQueues is how many queues have series of their own in metrics: the ones with a problem (damaged shards,
	// dead letters, or a job that waits for more than five minutes), then those with the most jobs per second.
	// The others are summed under the name "_OTHER". 0: 50. Counters and histograms
	// keep a queue's series until the process ends, for at most twice as many queues.
	MetricQueues int
	// Window is how many commits of a shard may be under way; default 32.
	Window int
	// Logger receives warnings and errors; default slog.Default().
	Logger *slog.Logger
}

// Broker serves the queue shards that are assigned to this node: it is their agent, and the Service
// for their callers. It refuses a call for a shard of another node with QueueNotOwner.
type Broker struct {
	cfg            Config
	registry       *Registry
	instruments    *instruments
	codec          *journal.Codec // shared by all journals
	nextFirstShard atomic.Uint32
	claimedPool    sync.Pool                                        // of *[]handed, which are large
	checkpointDue  func(l *journal.Log, checkpointBytes int64) bool // whether a checkpoint is worth its cost
	segments       *segmentCache                                    // shared by all shards
	recentBytes    int64                                            // of each shard; see Ledger.KeepRecent
	importBatch    int
	exportObject   int
	cleaningRule   func(l *ledger.Ledger, below uint64, limit int64) []ledger.SparseSegment

	mu         sync.RWMutex
	queues     map[string]*servedQueue
	takingOver map[shardID]chan struct{} // shards that are being taken over; closed at the takeover's end
	damaged    map[shardID]*queue.Error  // why shards of this node are not served: stored objects are damaged
	polls      polls
	steps      map[stepID]int // how many shards are known to have done what a change of the number of shards waits for

	lastDeletion atomic.Pointer[time.Time] // when deleteRemoved was last started
	watcher      registryWatcher
	damagedWait  time.Duration
	markPause    time.Duration // journal.Config.MarkAfter and MarkEvery; 0: the journal's own
}

// servedQueue is a queue of which this node serves shards.
type servedQueue struct {
	settings *queue.Settings
	shards   []*shard                // by index
	listed   atomic.Pointer[listing] // the newest list that had the queue
}

// shardID identifies a shard: its queue's name and its index.
type shardID struct {
	queue string
	index int
}

var (
	_ queue.Service = (*Broker)(nil)
	_ daemon.Agent  = (*Broker)(nil)
)

// New makes a broker. It does nothing until Run is called.
func New(cfg Config) (*Broker, error) {
	switch {
	case cfg.Bucket == nil:
		return nil, errors.New("queue broker: Bucket is not given")
	case cfg.StoreID == "" || cfg.Owner == "":
		return nil, fmt.Errorf("queue broker: StoreID is %q and Owner %q, both are needed", cfg.StoreID, cfg.Owner)
	case cfg.Now == nil:
		return nil, errors.New("queue broker: Now is not given")
	case cfg.MaxShards < 0:
		return nil, fmt.Errorf("queue broker: MaxShards is %d, want 1 or more, or 0 (the default)", cfg.MaxShards)
	case cfg.MetricQueues < 0:
		return nil, fmt.Errorf("queue broker: MetricQueues is %d, want 1 or more, or 0 (the default)", cfg.MetricQueues)
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	b := &Broker{
		cfg: cfg, codec: journal.NewCodec(), queues: map[string]*servedQueue{}, takingOver: map[shardID]chan struct{}{}, damaged: map[shardID]*queue.Error{}, steps: map[stepID]int{},
		checkpointDue: (*journal.Log).CheckpointDue, damagedWait: damagedWait,
		segments: newSegmentCache(segmentCacheBytes), recentBytes: ledger.RecentBytes, importBatch: importBatch, exportObject: exportObject, cleaningRule: (*ledger.Ledger).Sparse,
	}
	b.registry = NewRegistry(cfg.Bucket, cfg.Root)
	b.registry.SetMaxShards(cmp.Or(cfg.MaxShards, DefaultMaxShards))
	b.registry.onChange = b.settingsChanged
	b.watcher.wake, b.watcher.listAges = make(chan struct{}, 1), make(chan struct{}, 1)
	b.registry.onRead = b.watcher.signal
	var err error
	b.instruments, err = newInstruments(b)
	return b, err
}

// Registry returns the registry: the list of queues.
func (b *Broker) Registry() *Registry { return b.registry }

// NewRegistry returns the registry below a root. It is for programs that declare queues and serve
// none.
func NewRegistry(bucket blob.Bucket, root string) *Registry {
	return &Registry{
		bucket: bucket, root: root, key: joinKey(root, "v1/queues"), copyKey: joinKey(root, "v1/queues.copy"), maxShards: DefaultMaxShards,
		mu: make(chan struct{}, 1),
	}
}

func joinKey(root, key string) string {
	if root = strings.Trim(root, "/"); root != "" {
		return root + "/" + key
	}
	return key
}

// shardPrefix returns the prefix of a shard's objects. Its hash spreads shards over a store that splits
// load by prefix. Its incarnation gives a queue that is declared again objects of its own.
func shardPrefix(root string, set *queue.Settings, index int) string {
	path := shardPath(set, index)
	h := fnv.New32a()
	_, _ = h.Write([]byte(path))
	return joinKey(root, fmt.Sprintf("v1/%02x/%s", h.Sum32()&0xff, path))
}

// shardPath returns the name of a shard; it is never used for another one.
func shardPath(set *queue.Settings, index int) string {
	return fmt.Sprintf("%s/%d/%d", set.Name, set.Incarnation, index)
}

// Run serves one shard, the one with the unit's index, until ctx ends, the assignment drains, or
// the shard is lost. When the number of the queue's shards changes, the run goes on with the new shard of
// this index.
func (b *Broker) Run(ctx context.Context, a *daemon.Assignment) error {
	for {
		s, err := b.startShard(ctx, a)
		if err != nil {
			return err
		}
		if s != nil && !s.ledger.Sealed() {
			if err = s.runToEnd(a.Draining()); !s.movesOn(a, err) {
				return b.runError(ctx, a, s, err)
			}
		}
		if s != nil && !s.ledger.Sealed() {
			continue // its seal did not become durable
		}
		if again, err := b.move(ctx, a, s); !again {
			return err
		}
	}
}

// startShard takes over the unit's shard and opens it to callers. It returns nil if the queue has no shard
// with this index now. A shard that is sealed is not opened, and its journal is closed.
func (b *Broker) startShard(ctx context.Context, a *daemon.Assignment) (*shard, error) {
	name, ok := strings.CutPrefix(string(a.Unit.Daemon), daemonPrefix)
	if !ok {
		return nil, fmt.Errorf("unit %s is not a shard of a queue", a.Unit)
	}
	s, done, err := b.takeOverWhole(ctx, a, shardID{name, a.Index})
	defer done()
	if err != nil || s == nil {
		return nil, err
	}
	if s.ledger.Sealed() {
		return s, s.log.Close(ctx)
	}
	set := s.settings.Settings
	s.replaceSettings(set) // the first round writes a Configure record if the log has other settings, or the seal
	s.payloads.begin(s.unreferenced)
	if set.Resharding.Stage != queue.Moving {
		b.addShard(s)
	}
	done()
	a.Ready()
	return s, nil
}

// runToEnd serves a shard that was taken over until its run ends. Each shard's goroutine
// stays in it for as long as it serves. So this function and its callers use little stack: a broker with
// thousands of shards keeps thousands of such stacks in memory.
func (s *shard) runToEnd(draining <-chan struct{}) error {
	defer s.b.watch()()
	defer s.payloads.end()
	defer func() { _ = s.log.Close(s.ctx) }() // the log has ended already: this waits for its goroutines
	return s.run(draining)
}

// runError translates the end of a shard's run into the error that the supervisor acts on.
func (b *Broker) runError(ctx context.Context, a *daemon.Assignment, s *shard, err error) error {
	if s.settings.removed && ctx.Err() == nil {
		b.DeleteRemoved(ctx)
		return noQueueError(a.Unit, noQueue(s.name))
	}
	if errors.Is(err, journal.ErrFenced) {
		b.instruments.conflict(s.name)
	}
	if err != nil && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// noQueueError returns the error of a run that has no queue to serve. If the queue was removed, the unit is
// released at once (daemon.ErrRelease), because trying again would not bring it back.
func noQueueError(u daemon.Unit, err error) error {
	if queue.TagOf(err) == queue.QueueNotFound {
		return fmt.Errorf("serve %s: %w (%w)", u, err, daemon.ErrRelease)
	}
	return fmt.Errorf("serve %s: %w", u, err)
}

// addShard puts a shard on the list that callers use, or replaces the one with the same index.
func (b *Broker) addShard(s *shard) {
	b.mu.Lock()
	defer b.mu.Unlock()
	q := b.queues[s.name]
	if q == nil {
		q = &servedQueue{}
		b.queues[s.name] = q
	}
	if set := s.settings.Settings; q.settings == nil || q.settings.Incarnation <= set.Incarnation {
		q.settings = set
	}
	q.shards = append(slices.DeleteFunc(slices.Clone(q.shards), func(o *shard) bool { return o.index == s.index }), s)
	slices.SortFunc(q.shards, func(x, y *shard) int { return cmp.Compare(x.index, y.index) })
}

// removeShard takes a shard off the list that callers use.
func (b *Broker) removeShard(s *shard) {
	b.mu.Lock()
	defer b.mu.Unlock()
	q := b.queues[s.name]
	if q == nil {
		return
	}
	q.shards = slices.DeleteFunc(slices.Clone(q.shards), func(o *shard) bool { return o == s })
	if len(q.shards) == 0 {
		delete(b.queues, s.name)
	}
}

// localShards returns the queue's shards that this node serves.
func (b *Broker) localShards(name string) []*shard {
	b.mu.RLock()
	defer b.mu.RUnlock()
	if q := b.queues[name]; q != nil {
		return slices.Clone(q.shards)
	}
	return nil
}

// shard returns a shard that this node serves; nil if it does not.
func (b *Broker) shard(name string, index int) *shard {
	b.mu.RLock()
	defer b.mu.RUnlock()
	if q := b.queues[name]; q != nil {
		for _, s := range q.shards {
			if s.index == index {
				return s
			}
		}
	}
	return nil
}

// notFoundAge is how old the list of queues may be when it decides between a queue that no node here
// serves (QueueNotOwner) and one that does not exist (QueueNotFound).
const notFoundAge = 2 * time.Second

// beginCall begins a call: it returns the queue's settings as the shards on this node have them. It
// waits for a shard that is being taken over.
func (b *Broker) beginCall(ctx context.Context, name string) (*queue.Settings, error) {
	if err := contextError(ctx); err != nil {
		return nil, err
	}
	_, set := b.served(name)
	if set == nil {
		if err := checkName(name); err != nil {
			return nil, err
		}
		if b.awaitTakeover(ctx, name, -1) {
			_, set = b.served(name)
		}
	}
	if set != nil {
		return set, b.checkShardCount(ctx, set)
	}
	if _, err := b.registry.get(ctx, name, notFoundAge); err != nil {
		return nil, err
	}
	return nil, b.notOwner(name, -1)
}

// beginListed is beginCall for calls that submit jobs, give them out or command them: these must not reach a queue that was
// removed. Settlements may. They lose nothing there, and are answered while the list cannot be read, so that workers
// keep their claims.
func (b *Broker) beginListed(ctx context.Context, name string) (*queue.Settings, error) {
	set, err := b.beginCall(ctx, name)
	if err != nil {
		return nil, err
	}
	return set, b.checkListed(ctx, set)
}

// checkShardCount refuses a call that was made for another number of shards.
func (b *Broker) checkShardCount(ctx context.Context, set *queue.Settings) error {
	_, count := queue.ShardsOf(ctx)
	if count == 0 || count == set.Shards {
		return nil
	}
	e := queue.Refuse(queue.QueueNotOwner, "the queue %q has %d shards, and the call was made for %d", set.Name, set.Shards, count)
	e.Hint, e.RetryAfter = "repeat the call", 100*time.Millisecond
	return e
}

// served returns a queue and its settings; nil if this node serves no shard of it.
func (b *Broker) served(name string) (*servedQueue, *queue.Settings) {
	b.mu.RLock()
	defer b.mu.RUnlock()
	if q := b.queues[name]; q != nil {
		return q, q.settings
	}
	return nil, nil
}

// notOwner refuses a call for a shard (-1: any) that this node does not serve. It names the holder
// if known, or the damage if this node was assigned the shard and cannot serve it.
func (b *Broker) notOwner(name string, index int) *queue.Error {
	e := queue.Refuse(queue.QueueNotOwner, "this node does not serve shard %d of the queue %q", index, name)
	if index < 0 {
		e = queue.Refuse(queue.QueueNotOwner, "this node serves no shard of the queue %q", name)
	}
	e.Hint, e.RetryAfter = "repeat the call, or send it to the holder", 100*time.Millisecond
	if b.cfg.Holder != nil {
		e.Holder = b.cfg.Holder(name, index)
	}
	if damage := b.damage(name, index); damage != nil && (e.Holder == "" || e.Holder == b.cfg.Address) {
		return damage
	}
	return e
}

// snapshots returns the latest counts of this node's shards, added up by queue.
func (b *Broker) snapshots() map[string]queue.Stats {
	b.mu.RLock()
	defer b.mu.RUnlock()
	out := map[string]queue.Stats{}
	for name, q := range b.queues {
		total := queue.Stats{Queue: name}
		for _, s := range q.shards {
			if st := s.counts.published.Load(); st != nil {
				total.Add(st)
			}
		}
		out[name] = total
	}
	return out
}
