package coordinator

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/emitd/emitd/coordinator/lease"
	"github.com/emitd/emitd/coordinator/member"
	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/node"
	"github.com/emitd/emitd/storage"
)

// Coordinator is one node of a cluster. Make it with New. Its methods may be called from any
// goroutine.
type Coordinator struct {
	cfg    Config
	timing lease.Timing
	clock  func() lease.Instant
	store  storage.Store
	log    *slog.Logger // may block: for the goroutine of voice
	aside  *slog.Logger // the same, never blocking: for all others
	m      *instruments

	lead      *leadership
	observers *observers
	inbox     *queue[member.Input]
	woken     *broadcast // the store hinted at a change
	// voice writes the log for whoever must not wait for it: a log that nobody reads (a full
	// pipe) would otherwise end a leadership.
	voice *queue[func()]

	// published is what the member thought when the loop last looked.
	published atomic.Pointer[member.View]
	// storeClock is what the store's clock said last.
	storeClock atomic.Pointer[reading]
	progress   atomic.Int64 // lease.Instant at which the loop last went round
	answered   atomic.Int64 // lease.Instant of the store's newest answer
	phase      atomic.Int32

	mu     sync.Mutex
	specs  map[daemon.ID]daemon.Spec
	agents map[daemon.ID]daemon.Agent
	ping   *ping // readiness: one question to the store at a time
}

// The phases of a coordinator's life.
const (
	phaseNew int32 = iota
	phaseRunning
	phaseStopping
	phaseOver
)

// New returns a coordinator over the store, which stays the caller's to close, after Run. It does
// nothing before Run. All that is wrong with the configuration is in the error.
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
		cfg: cfg, timing: cfg.timing(), clock: cfg.Clock, store: store,
		log:   cfg.Logger.With("cluster", cfg.Cluster, "node", cfg.Node.Name),
		inbox: newQueue[member.Input](), woken: newBroadcast(), voice: newQueue[func()](),
		specs: map[daemon.ID]daemon.Spec{}, agents: map[daemon.ID]daemon.Agent{},
	}
	c.aside = slog.New(voiced{c.log.Handler(), c.voice})
	if c.m, err = newInstruments(c); err != nil {
		return nil, fmt.Errorf("new coordinator: %w", err)
	}
	c.published.Store(&member.View{})
	c.observers = newObservers(cfg.Hooks, c.aside, c.m)
	c.lead = newLeadership(c.clock, c.timing.Watch/2)
	c.lead.post = func(in member.Input) { c.inbox.push(in) }
	c.lead.told, c.lead.gates = c.tellTransition, c.observers.gates
	for _, d := range c.observers.duties() {
		c.lead.assign(d)
	}
	return c, nil
}

// TimingError says that a node which was in the cluster before lives with other timings than this one.
type TimingError = member.TimingError

// SlowStoreError says that the store is too slow for this node's timings and the number of nodes, and which
// timings would work.
type SlowStoreError = member.SlowStoreError

// Node returns who this node is, the drawn parts included.
func (c *Coordinator) Node() node.Identity { return c.cfg.Node }

// Register declares a daemon and says what runs its units on this node. It may be called before
// and while Run is under way; once Run has returned it is refused, as are a second registration
// of an ID and IDs that begin with "emit:".
func (c *Coordinator) Register(spec daemon.Spec, agent daemon.Agent) error {
	if strings.HasPrefix(string(spec.ID), daemon.Reserved) {
		return fmt.Errorf("register %s: the prefix %s is reserved for built-in daemons", spec.ID, daemon.Reserved)
	}
	return c.register(spec, agent)
}

// RegisterBuiltin is Register for the daemons that come with this module, whose IDs begin with
// "emit:" and must.
func (c *Coordinator) RegisterBuiltin(spec daemon.Spec, agent daemon.Agent) error {
	if !strings.HasPrefix(string(spec.ID), daemon.Reserved) {
		return fmt.Errorf("register %s: ids of built-in daemons begin with %s", spec.ID, daemon.Reserved)
	}
	return c.register(spec, agent)
}

func (c *Coordinator) register(spec daemon.Spec, agent daemon.Agent) error {
	if err := spec.Validate(); err != nil {
		return fmt.Errorf("register: %w", err)
	}
	if agent == nil {
		return fmt.Errorf("register %s: the agent is nil", spec.ID)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, ok := c.agents[spec.ID]; ok {
		return fmt.Errorf("register %s: it is registered on this node already", spec.ID)
	}
	if c.phase.Load() >= phaseStopping {
		return fmt.Errorf("register %s: the coordinator has stopped", spec.ID)
	}
	c.specs[spec.ID], c.agents[spec.ID] = spec, agent
	if c.phase.Load() == phaseRunning {
		c.inbox.push(member.Advertise{Advert: c.advert()})
	}
	return nil
}

// Unregister takes a daemon back that this node has declared; one that is not declared is no error.
// Its units end in order once no node declares it any more.
func (c *Coordinator) Unregister(id daemon.ID) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, ok := c.agents[id]; !ok {
		return
	}
	delete(c.specs, id)
	delete(c.agents, id)
	if c.phase.Load() == phaseRunning {
		c.inbox.push(member.Advertise{Advert: c.advert()})
	}
}

// advert returns what this node advertises now; c.mu is held.
func (c *Coordinator) advert() daemon.Advert {
	a := daemon.Advert{Traits: c.cfg.traits()}
	for _, id := range slices.Sorted(maps.Keys(c.specs)) {
		spec := c.specs[id]
		a.Specs = append(a.Specs, spec)
		a.Kinds = append(a.Kinds, spec.WithDefaults().Kind)
	}
	slices.Sort(a.Kinds)
	a.Kinds = slices.Compact(a.Kinds)
	return a
}

// agent returns what runs the daemon here. A node that advertises a built-in kind runs every daemon of
// it ("emit:queue/…"), also one that another node has declared a moment ago and this one has not
// heard of yet: the leader counts on that.
func (c *Coordinator) agent(id daemon.ID) (daemon.Agent, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if a, ok := c.agents[id]; ok {
		return a, true
	}
	for _, s := range c.specs {
		if k := string(s.Kind); strings.HasPrefix(k, daemon.Reserved) && strings.HasPrefix(string(id), k+"/") {
			return c.agents[s.ID], true
		}
	}
	return nil, false
}

// trust returns how long the unit's run may still trust its assignment.
func (c *Coordinator) trust(u daemon.Unit) time.Duration {
	runs := c.published.Load().Runs
	i, ok := slices.BinarySearchFunc(runs, u, func(r member.RunView, u daemon.Unit) int { return r.Fence.Unit.Compare(u) })
	if !ok || runs[i].Trust == lease.Never {
		return 0
	}
	return max(runs[i].Trust.Sub(c.clock()), 0)
}

// Run makes this process a node and blocks. When ctx ends it stops cleanly: it gives up
// leadership, drains its daemons, deregisters, and returns nil, at the latest
//
//	LeaderStopTimeout + DrainTimeout + StopTimeout + 2·QueryTimeout
//
// after ctx ended, whatever agents, hooks and the store do; DrainTimeout is the longest of the node's and
// its registered daemons'. What did not return in time is logged and left behind. Everything else that
// Run has started has ended by then. Run can be called once; it does not close the store.
//
// It returns by itself, with an error, if another live process has this node's id
// (storage.ErrIDInUse): that one was seen to beat while this one was refused; if one that was there
// first lives with other timings ([TimingError]); if the store makes one change at a time and carries no more nodes
// with these timings, and none has made room within the time that a dead or leaving one takes ([SlowStoreError]); or if the store belongs to a cluster of another name than
// Config.Cluster (storage.ErrOtherCluster). The row of a process that was killed a moment ago is
// waited for instead: until this one finds the proof on its own host that it has ended, at most its
// NodeRegistrationTTL.
func (c *Coordinator) Run(ctx context.Context) error {
	c.mu.Lock()
	first := c.phase.CompareAndSwap(phaseNew, phaseRunning)
	advert := c.advert()
	c.mu.Unlock()
	if !first {
		return errors.New("run: a coordinator runs once; make a new one")
	}
	m := member.New(member.Config{
		Node: c.cfg.Node, Advert: advert, Timing: c.timing,
		Store: storage.CapabilitiesOf(c.store), Seed: rand.Uint64(),
	}, c.clock())
	s := newShell(ctx, c, m)
	return s.run(ctx)
}

// stopBound returns how long a stop may take.
func (c *Coordinator) stopBound() time.Duration {
	t := c.timing
	drain := t.DrainTimeout
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, s := range c.specs {
		drain = max(drain, s.DrainTimeout)
	}
	return t.LeaderStopTimeout + drain + t.StopTimeout + 2*t.QueryTimeout
}

// broadcast wakes everybody who waits. Its zero value is not usable.
type broadcast struct {
	mu sync.Mutex
	c  chan struct{}
}

func newBroadcast() *broadcast { return &broadcast{c: make(chan struct{})} }

// next returns a channel that is closed by the next notify.
func (b *broadcast) next() <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.c
}

func (b *broadcast) notify() {
	b.mu.Lock()
	defer b.mu.Unlock()
	close(b.c)
	b.c = make(chan struct{})
}
