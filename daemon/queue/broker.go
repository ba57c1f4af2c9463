package queue

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
	"github.com/emitd/emitd/daemon/queue/journal"
	"github.com/emitd/emitd/storage/blob"
)

// Config of a broker. Bucket, StoreID, Owner and Now must be given.
type Config struct {
	Bucket blob.Bucket
	// Root is the prefix of all keys; may be empty.
	Root string
	// StoreID is the identity of the cluster store, which hands out generations.
	StoreID string
	// Owner is the incarnation of this process.
	Owner string
	// Address is where clients reach this node; it stands in statistics.
	Address string
	// Now estimates the clock of the cluster store: its time in the last heartbeat's reply plus what
	// has passed since. Delays, times to live and the dedup window go by it; durability does not.
	Now func() time.Time
	// Holder returns the address of the node that serves a shard (-1: any shard), "" if it is not
	// known. May be nil.
	Holder func(queue string, shard int) string
	// MaxShards bounds the shards of all queues of the cluster together; what would be beyond cannot be
	// declared. 0: [DefaultMaxShards]. Give all nodes the same.
	MaxShards int
	// MinGap and Window are the journal's; see there.
	MinGap time.Duration
	Window int
	// Logger; default slog.Default().
	Logger *slog.Logger
}

// Broker serves the queue shards that are assigned to this node: it is their agent, and the
// Service for their callers. A call for a shard of another node is refused with QueueNotOwner.
type Broker struct {
	cfg         Config
	registry    *Registry
	instruments *instruments
	codec       *journal.Codec // of all journals
	turn        atomic.Uint32
	hands       sync.Pool                                   // of *[]handed: they are large
	due         func(l *journal.Log, stateBytes int64) bool // when a checkpoint pays

	mu       sync.RWMutex
	queues   map[string]*served
	arriving map[place]chan struct{} // shards that are being taken over; closed at the end
	damaged  map[place]*Error        // shards that were refused for what is stored

	buried      atomic.Pointer[time.Time] // when bury began last
	watching    watching
	damagedWait time.Duration
	marks       time.Duration // journal.Config.MarkAfter and MarkEvery; 0: the journal's own
}

// served is a queue of which this node has shards.
type served struct {
	settings *Settings
	shards   []*shard // by index
}

var (
	_ Service      = (*Broker)(nil)
	_ daemon.Agent = (*Broker)(nil)
)

// NewBroker makes a broker. It does nothing until it is given a run.
func NewBroker(cfg Config) (*Broker, error) {
	switch {
	case cfg.Bucket == nil:
		return nil, errors.New("queue broker: Bucket is not given")
	case cfg.StoreID == "" || cfg.Owner == "":
		return nil, fmt.Errorf("queue broker: StoreID is %q and Owner %q, both are needed", cfg.StoreID, cfg.Owner)
	case cfg.Now == nil:
		return nil, errors.New("queue broker: Now is not given")
	case cfg.MaxShards < 0:
		return nil, fmt.Errorf("queue broker: MaxShards is %d, want 1 or more, or 0 (the default)", cfg.MaxShards)
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	b := &Broker{
		cfg: cfg, codec: journal.NewCodec(), queues: map[string]*served{}, arriving: map[place]chan struct{}{}, damaged: map[place]*Error{},
		due: (*journal.Log).CheckpointDue, damagedWait: damagedWait,
	}
	b.registry = NewRegistry(cfg.Bucket, cfg.Root)
	b.registry.LimitShards(cmp.Or(cfg.MaxShards, DefaultMaxShards))
	b.registry.onChange = b.changed
	var err error
	b.instruments, err = newInstruments(b)
	return b, err
}

// Queues returns the list of queues.
func (b *Broker) Queues() *Registry { return b.registry }

// NewRegistry returns the list of queues below the root, for those who declare queues and serve
// none.
func NewRegistry(bucket blob.Bucket, root string) *Registry {
	return &Registry{
		bucket: bucket, root: root, key: join(root, "v1/queues"), copyKey: join(root, "v1/queues.copy"), most: DefaultMaxShards,
		turn: make(chan struct{}, 1),
	}
}

func join(root, key string) string {
	if root = strings.Trim(root, "/"); root != "" {
		return root + "/" + key
	}
	return key
}

// prefix is where a shard's objects are. The hash spreads shards over a store that splits its load
// by prefix; the incarnation makes a queue that is declared again another one.
func prefix(root string, set *Settings, index int) string {
	path := path(set, index)
	h := fnv.New32a()
	_, _ = h.Write([]byte(path))
	return join(root, fmt.Sprintf("v1/%02x/%s", h.Sum32()&0xff, path))
}

// path names a shard of a queue for ever.
func path(set *Settings, index int) string {
	return fmt.Sprintf("%s/%d/%d", set.Name, set.Incarnation, index)
}

// Run serves one shard: the unit's index.
func (b *Broker) Run(ctx context.Context, a *daemon.Assignment) error {
	s, err := b.enter(ctx, a)
	if err != nil {
		return err
	}
	return b.left(ctx, a, s, s.runToEnd(a.Draining()))
}

// enter takes the unit's shard over and lets callers in.
func (b *Broker) enter(ctx context.Context, a *daemon.Assignment) (*shard, error) {
	name, ok := strings.CutPrefix(string(a.Unit.Daemon), specPrefix)
	if !ok {
		return nil, fmt.Errorf("unit %s is none of a queue", a.Unit)
	}
	arrived := b.arrive(place{name, a.Index})
	defer arrived()
	s, err := b.begin(ctx, a, name)
	if isDamage(err) {
		arrived()
		b.refuse(ctx, a, place{name, a.Index}, err)
	}
	if err != nil {
		return nil, err
	}
	set := s.settings
	s.tell(&set) // the first round writes what of them the log does not know
	s.rubbish.begin(s.sweepLeft, s.sweep)
	b.add(s)
	arrived()
	a.Ready()
	return s, nil
}

// runToEnd serves a shard that was taken over until its run ends. It is where the goroutine of each shard is
// all the time, so it and what calls it keep little on the stack.
func (s *shard) runToEnd(draining <-chan struct{}) error {
	defer s.b.watch()()
	defer s.rubbish.end()
	defer func() { _ = s.log.Close(s.ctx) }() // ended already: waits for its goroutines
	return s.run(draining)
}

// left says what the end of a shard's run means for the cluster.
func (b *Broker) left(ctx context.Context, a *daemon.Assignment, s *shard, err error) error {
	if s.removed && ctx.Err() == nil {
		b.DeleteRemoved(ctx)
		return gone(a.Unit, noQueue(s.name))
	}
	if errors.Is(err, journal.ErrFenced) {
		b.instruments.conflict(s.name)
	}
	if err != nil && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return err
}

// gone is the end of a run that has no queue to serve. One that was removed is given back at once: to
// try again would not bring it back.
func gone(u daemon.Unit, err error) error {
	if TagOf(err) == QueueNotFound {
		return fmt.Errorf("serve %s: %w (%w)", u, err, daemon.ErrRelease)
	}
	return fmt.Errorf("serve %s: %w", u, err)
}

func (b *Broker) add(s *shard) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.damaged, place{s.name, s.index})
	q := b.queues[s.name]
	if q == nil {
		q = &served{}
		b.queues[s.name] = q
	}
	set := s.settings
	q.settings = &set
	q.shards = append(slices.DeleteFunc(slices.Clone(q.shards), func(o *shard) bool { return o.index == s.index }), s)
	slices.SortFunc(q.shards, func(x, y *shard) int { return cmp.Compare(x.index, y.index) })
}

// forget takes a shard off the list that callers look at.
func (b *Broker) forget(s *shard) {
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

// local returns the queue's shards that this node serves.
func (b *Broker) local(name string) []*shard {
	b.mu.RLock()
	defer b.mu.RUnlock()
	if q := b.queues[name]; q != nil {
		return slices.Clone(q.shards)
	}
	return nil
}

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

// missAge is how old the list of queues may be that tells a queue nobody serves from one that does
// not exist.
const missAge = 2 * time.Second

// open begins a call: the queue's settings, as the shards that this node serves have them.
func (b *Broker) open(ctx context.Context, name string) (*Settings, error) {
	if err := over(ctx); err != nil {
		return nil, err
	}
	if set := b.settings(name); set != nil {
		return set, nil
	}
	if err := checkName(name); err != nil {
		return nil, err
	}
	if b.await(ctx, name, -1) {
		if set := b.settings(name); set != nil {
			return set, nil
		}
	}
	if _, err := b.registry.get(ctx, name, missAge); err != nil {
		return nil, err
	}
	return nil, b.notOwner(name, -1)
}

// settings returns a queue's settings; nil if this node serves no shard of it.
func (b *Broker) settings(name string) *Settings {
	b.mu.RLock()
	defer b.mu.RUnlock()
	if q := b.queues[name]; q != nil {
		return q.settings
	}
	return nil
}

func (b *Broker) notOwner(name string, index int) *Error {
	e := Refuse(QueueNotOwner, "this node does not serve shard %d of the queue %q", index, name)
	if index < 0 {
		e = Refuse(QueueNotOwner, "this node serves no shard of the queue %q", name)
	}
	e.Hint, e.RetryAfter = "ask again, or ask the holder", 100*time.Millisecond
	if b.cfg.Holder != nil {
		e.Holder = b.cfg.Holder(name, index)
	}
	if damage := b.damage(name, index); damage != nil && (e.Holder == "" || e.Holder == b.cfg.Address) {
		return damage
	}
	return e
}

// snapshots returns what the shards of this node counted last, by queue.
func (b *Broker) snapshots() map[string]Stats {
	b.mu.RLock()
	defer b.mu.RUnlock()
	out := map[string]Stats{}
	for name, q := range b.queues {
		total := Stats{Queue: name}
		for _, s := range q.shards {
			if st := s.snapshot.Load(); st != nil {
				total.Add(st)
			}
		}
		out[name] = total
	}
	return out
}
