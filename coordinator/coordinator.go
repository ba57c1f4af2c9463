package coordinator

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/internal/coordinator/lease"
	"github.com/emitd/emitd/internal/coordinator/member"
	"github.com/emitd/emitd/internal/schedule"
	"github.com/emitd/emitd/node"
	"github.com/emitd/emitd/storage"
)

// Coordinator is one node of a cluster. Create it with New. Its methods may be called from any goroutine.
type Coordinator struct {
	cfg      Config
	timing   lease.Timing
	clock    func() lease.Instant
	store    storage.Store
	log      *slog.Logger // writing may block: used only by the goroutine of logQueue
	asyncLog *slog.Logger // the same, but never blocks: for all other goroutines
	m        *instruments

	lead      *leadership
	observers *observers
	inbox     *queue[member.Input]
	wakeUps   broadcast // woken whenever the store reports a change
	// logQueue queues what goes to the log. The log may block (a full pipe that nobody reads), and that must not end
	// a leadership.
	logQueue *queue[func()]

	// published is the member's newest published view.
	published atomic.Pointer[member.View]
	// storeClock is the newest reading of the store's clock.
	storeClock atomic.Pointer[reading]
	lastRound  atomic.Int64 // lease.Instant of the loop's newest round
	lastAnswer atomic.Int64 // lease.Instant of the store's newest answer
	phase      atomic.Int32

	mu       sync.Mutex
	declared declared
	// advertQueued is set while an Advertise is in the inbox; the loop fills it in.
	advertQueued bool
	ping         *ping // readiness: one question to the store at a time, shared by all callers
}

// The phases of a coordinator's life.
const (
	phaseNew int32 = iota
	phaseRunning
	phaseStopping
	phaseOver
)

// New returns a coordinator over the store. It does nothing before Run. The caller closes the store, after Run
// has returned. The error names everything that is wrong with the configuration.
func New(store storage.Store, cfg Config) (*Coordinator, error) {
	if store == nil {
		return nil, errors.New("new coordinator: the store is nil")
	}
	cfg, err := cfg.withDefaults()
	if err == nil {
		err = cfg.validate()
	}
	if err != nil {
		return nil, fmt.Errorf("new coordinator: %w", err)
	}
	c := &Coordinator{
		cfg: cfg, timing: cfg.timing(), clock: func() lease.Instant { return lease.Instant(cfg.Clock()) }, store: store,
		log:   cfg.Logger.With("cluster", cfg.Cluster, "node", cfg.Node.Name),
		inbox: newQueue[member.Input](), logQueue: newQueue[func()](),
	}
	c.asyncLog = slog.New(asyncHandler{c.log.Handler(), c.logQueue})
	if c.m, err = newInstruments(c); err != nil {
		return nil, fmt.Errorf("new coordinator: %w", err)
	}
	c.published.Store(&member.View{})
	c.observers = newObservers(cfg.Hooks, c.asyncLog, c.m)
	c.lead = newLeadership(c.clock, c.timing.ClockCheckInterval/2)
	c.lead.post = func(in member.Input) { c.inbox.push(in) }
	c.lead.notify, c.lead.newEntered = c.notifyTransition, c.observers.newEntered
	for _, d := range c.observers.tasks() {
		c.lead.assign(d)
	}
	return c, nil
}

// Node returns this node's identity, including the parts that were drawn.
func (c *Coordinator) Node() node.Identity { return c.cfg.Node }

// Register declares a daemon and the agent that runs its units on this node. It may be called before Run and
// while Run is running. It returns an error once Run has begun to stop, for an ID that is registered already, and
// for IDs that begin with "emit:". On a node of a group (Config.Group), the daemon's ID in the cluster is spec.ID.In(group).
func (c *Coordinator) Register(spec daemon.Spec, agent daemon.Agent) error {
	if strings.HasPrefix(string(spec.ID), daemon.Reserved) {
		return fmt.Errorf("register %s: the prefix %s is reserved for built-in daemons", spec.ID, daemon.Reserved)
	}
	return c.register(spec, agent)
}

// RegisterBuiltin is Register for the daemons of this module. Their IDs must begin with "emit:". A daemon that is
// registered already gets the new spec if that has a higher Revision; its agent stays.
func (c *Coordinator) RegisterBuiltin(spec daemon.Spec, agent daemon.Agent) error {
	if !strings.HasPrefix(string(spec.ID), daemon.Reserved) {
		return fmt.Errorf("register %s: ids of built-in daemons begin with %s", spec.ID, daemon.Reserved)
	}
	return c.register(spec, agent)
}

// register declares a daemon, and advertises it at once while Run is running.
func (c *Coordinator) register(spec daemon.Spec, agent daemon.Agent) error {
	if err := spec.Validate(); err != nil {
		return fmt.Errorf("register: %w", err)
	}
	if agent == nil {
		return fmt.Errorf("register %s: the agent is nil", spec.ID)
	}
	if err := c.timing.Of(spec.AcknowledgeTimeout, spec.DrainTimeout).Validate(); err != nil {
		return fmt.Errorf("register %s: %w", spec.ID, err)
	}
	if err := c.checkPeriodic(spec, agent); err != nil {
		return fmt.Errorf("register %s: %w", spec.ID, err)
	}
	spec = c.inGroup(spec)
	c.mu.Lock()
	defer c.mu.Unlock()
	if at, ok := c.declared.find(spec.ID); ok {
		if !strings.HasPrefix(string(spec.ID), daemon.Reserved) || spec.Revision <= c.declared.specs[at].Revision {
			return fmt.Errorf("register %s: it is registered on this node already", spec.ID)
		}
		agent = c.declared.agents[at]
	}
	if c.phase.Load() >= phaseStopping {
		return fmt.Errorf("register %s: the coordinator has stopped", spec.ID)
	}
	c.declared.put(spec, agent)
	c.advertise()
	return nil
}

// inGroup returns the spec as the cluster gets it. The group's name is a part of the daemon's ID and of its kind, so only
// nodes of the group run the kind. Daemons of a built-in kind stay as they are: these are queues, which every node that
// has opened the object store serves.
func (c *Coordinator) inGroup(s daemon.Spec) daemon.Spec {
	if strings.HasPrefix(string(s.Kind), daemon.Reserved) {
		return s
	}
	s.ID = s.ID.In(c.cfg.Group)
	if s.Kind != "" {
		s.Kind = daemon.Kind(daemon.ID(s.Kind).In(c.cfg.Group))
	}
	return s
}

// checkPeriodic reports why a periodic daemon cannot run on this store, or nil.
func (c *Coordinator) checkPeriodic(spec daemon.Spec, agent daemon.Agent) error {
	p, ok := agent.(*daemon.Periodic)
	if !ok {
		return nil
	}
	if _, ok := c.store.(daemon.StateStore); !ok {
		return fmt.Errorf("periodic daemon: the store (%T) is no daemon.StateStore", c.store)
	}
	if err := schedule.CheckStall(spec.StallTimeout); err != nil {
		return err
	}
	return p.Validate()
}

// Unregister removes a daemon that this node has declared, and its source of keys; it does nothing if there is none. The ID
// is the one given to Register or RegisterKeyed. The daemon's units are revoked once no node declares it any more.
func (c *Coordinator) Unregister(id daemon.ID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.declared.remove(id) || c.declared.remove(id.In(c.cfg.Group)) { // the first one is a queue
		if keys := (id + sourceSuffix).In(c.cfg.Group); c.declared.isSource(keys) {
			c.declared.remove(keys)
		}
		c.advertise()
	}
}

// advertise makes the node advertise its daemons, if Run is running. Many changes that come together are one
// advert: it is made when the loop comes to it. The caller holds mu.
func (c *Coordinator) advertise() {
	if c.advertQueued || c.phase.Load() != phaseRunning {
		return
	}
	c.advertQueued = true
	c.inbox.push(member.Advertise{})
}

// queuedAdvert returns the advert that advertise has queued.
func (c *Coordinator) queuedAdvert() member.Advertise {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.advertQueued = false
	return member.Advertise{Advert: c.advert()}
}

// advert returns what this node advertises now. The caller holds c.mu.
func (c *Coordinator) advert() daemon.Advert {
	a := daemon.Advert{Traits: c.cfg.traits(), Specs: c.declared.share()}
	for i := range a.Specs {
		kind := a.Specs[i].WithDefaults().Kind
		if n := len(a.Kinds); n == 0 || a.Kinds[n-1] != kind {
			a.Kinds = append(a.Kinds, kind)
		}
	}
	slices.Sort(a.Kinds)
	a.Kinds = slices.Compact(a.Kinds)
	return a
}

// agent returns the agent that runs the daemon on this node. A node that advertises a built-in kind runs every
// daemon of that kind ("emit:queue/…"). That includes a daemon that another node declared a moment ago and that
// this one does not know yet: the leader relies on it.
func (c *Coordinator) agent(id daemon.ID) (daemon.Agent, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.declared.agent(id)
}

// runValidity returns how long the unit's run may go on without another answered heartbeat.
func (c *Coordinator) runValidity(u daemon.Unit) time.Duration {
	runs := c.published.Load().Runs
	i, ok := slices.BinarySearchFunc(runs, u, func(r member.RunView, u daemon.Unit) int { return r.Fence.Unit.Compare(u) })
	if !ok || runs[i].ValidUntil == lease.Never {
		return 0
	}
	return max(runs[i].ValidUntil.Sub(c.clock()), 0)
}

// Run makes this process a node and blocks. When ctx ends, it stops cleanly: it gives up leadership, drains its
// daemons, deregisters, and returns nil. It returns at the latest
//
//	LeaderStopTimeout + DrainTimeout + StopTimeout + 2·QueryTimeout
//
// after ctx ended, whatever agents, hooks and the store do. DrainTimeout is here the longest of the node's and
// its registered daemons'. What did not return in time is logged and left running. Everything else that Run has
// started has ended by then. Run can be called once. It does not close the store.
//
// Run returns by itself, with an error, in these cases:
//
//   - Another live process has this node's ID (storage.ErrIDInUse): its heartbeats advance while this node is
//     refused.
//   - The store makes one change at a time and cannot carry one more node with these timings. Run waits for the
//     time that a dead or stopping node takes to leave, and then gives up ([SlowStoreError]).
//   - The store belongs to a cluster with another name than Config.Cluster (storage.ErrOtherCluster).
//
// If the process with this node's ID was killed a moment ago, Run waits instead. It waits until this node finds
// exit evidence of that process on its own host, at most for the NodeRegistrationTTL of that process.
func (c *Coordinator) Run(ctx context.Context) error {
	c.mu.Lock()
	first := c.phase.CompareAndSwap(phaseNew, phaseRunning)
	advert := c.advert()
	c.mu.Unlock()
	if !first {
		return errors.New("run: a coordinator runs only once; create a new one")
	}
	m := member.New(member.Config{
		Node: c.cfg.Node, Advert: advert, Timing: c.timing,
		Store: storage.CapabilitiesOf(c.store), MaxMoves: c.cfg.MaxMovesPerRound,
		BrakePercent: c.cfg.BrakePercent, Seed: rand.Uint64(),
	}, c.clock())
	s := newShell(ctx, c, m)
	return s.run(ctx)
}

// stopBound returns the longest time that a stop may take.
func (c *Coordinator) stopBound() time.Duration {
	t := c.timing
	drain := t.DrainTimeout
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range c.declared.specs {
		drain = max(drain, c.declared.specs[i].DrainTimeout)
	}
	return t.LeaderStopTimeout + drain + t.StopTimeout + 2*t.QueryTimeout
}

// broadcast wakes all its waiters. The zero value has none.
type broadcast struct {
	mu sync.Mutex
	c  chan struct{} // nil while nobody waits: the nodes of a process are notified a million times while a thousand of them join
}

// next returns a channel that the next notify closes.
func (b *broadcast) next() <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.c == nil {
		b.c = make(chan struct{})
	}
	return b.c
}

// notify wakes all waiters.
func (b *broadcast) notify() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.c != nil {
		close(b.c)
		b.c = nil
	}
}
