// Package host runs nodes inside the process: the listener, telemetry, the store, the built-in and
// configured daemons, and one coordinator per node.
//
//	settings ─▶ telemetry ─▶ listener ─▶ store ─▶ nodes ─▶ … ctx ends … ─▶ nodes stop
//	                            └────────── health and metrics answer ──────────┘
//
// Mistakes are found before the first node runs, in this order: certificates and tokens, the address, the
// store and its schema. If the store cannot be reached, the process waits for it, unless store.wait is
// false. Meanwhile /livez answers ok and everything else answers 503 with the reason: see waiting.
// Whatever was started is stopped in reverse order, also after an error. [Run] returns nil if the nodes
// stopped cleanly because ctx ended.
//
// Two things are opened while the nodes already run, because the nodes can do everything else without
// them: the object store of the queues (see front), and a database of the outbox that cannot be reached
// at the start (see relays).
//
// The listener closes last, so that probes see the nodes drain: /readyz fails, /livez does not.
package host

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sync/errgroup"

	"github.com/emitd/emitd/cmd/emitd/internal/backend"
	"github.com/emitd/emitd/cmd/emitd/internal/config"
	"github.com/emitd/emitd/cmd/emitd/internal/runlog"
	"github.com/emitd/emitd/cmd/emitd/internal/telemetry"
	"github.com/emitd/emitd/coordinator"
	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/internal/admin/fault"
	"github.com/emitd/emitd/internal/garbage"
	"github.com/emitd/emitd/node"
	"github.com/emitd/emitd/queue"
	"github.com/emitd/emitd/queue/api"
)

// Options configure Run.
type Options struct {
	Config  *config.Loaded
	Version string
	Handler slog.Handler   // of the log
	Level   *slog.LevelVar // of the log
	// Nodes are the names of the nodes. If it is empty, there is one, with the name node.name.
	Nodes []string
	// Open opens the store.
	Open func(ctx context.Context, t *telemetry.Telemetry) (*backend.Store, error)
	// OpenOutbox opens the outbox, for a configuration that has one.
	OpenOutbox func(ctx context.Context, t *telemetry.Telemetry) (*backend.Outbox, error)
	// NextPort makes Run use a port near the one in listen if that is in use.
	NextPort bool
	// Token is required by the listener if there is no api.tokens_file; empty means none.
	Token Token
	// Extra are daemons that the program adds to those of the configuration.
	Extra []Daemon
	// Alongside runs while the nodes run. Its context ends when they stop. It may be nil.
	Alongside func(ctx context.Context, r *Running)
	// Started is called when everything is set up and before the nodes run.
	Started func(r *Running)
	// Hooks returns the hooks of the node with that name.
	Hooks func(name string) coordinator.Hooks
	// Reload delivers requests to read the configuration again; nil means there are none.
	Reload <-chan func() (*config.Loaded, error)
}

// Token is a bearer token that the program generated itself.
type Token struct {
	Text string
	Hint string // tells a caller without the token where to find it
}

// Daemon is a daemon's specification with its agent.
type Daemon struct {
	Spec  daemon.Spec
	Agent daemon.Agent
}

// Running is what a running process consists of.
type Running struct {
	Address string // host:port of the listener
	URL     string // of the listener, for people
	// Advertised is the host:port by which other nodes reach the listener.
	Advertised string
	Store      *backend.Store
	Nodes      []*coordinator.Coordinator
	Daemons    []daemon.Spec
	Queues     bool // this process serves queues once the object store answers

	// Outbox returns nil while the outbox is not open, or if there is none.
	Outbox func() *backend.Outbox
	// Jobs returns the queues, wherever they are served.
	Jobs func() queue.Service
	// Declare creates a queue. It fails while the object store is not open.
	Declare func(ctx context.Context, s queue.Settings) error
}

// host is the state of Run.
type host struct {
	Options
	nodes []node.Identity
	tel   *telemetry.Telemetry
	guard *guard
	log   *slog.Logger
	lock  string // path of the lock file, if there is one

	places  places // of the listener
	limiter *api.Limiter

	routes atomic.Pointer[routes] // the current handlers of the listener
	runs   *runlog.Log            // output of commands; nil: none is kept
	ending <-chan struct{}        // closed when the nodes begin to stop
	trends *trends
	front  *queueAPI
	relays *relays
	up     Running
}

// shutdownTimeout bounds each step after the nodes have stopped: exporting telemetry, closing connections.
const shutdownTimeout = 2 * time.Second

// Run runs the nodes until ctx ends and they have stopped, or one fails.
func Run(ctx context.Context, o Options) (err error) {
	h := &host{Options: o, ending: ctx.Done()}
	if size := o.Config.Daemons.OutputBuffer; size > 0 {
		h.runs = runlog.New(size)
	}
	if h.nodes, err = identities(o); err != nil {
		return err
	}
	instance := ""
	if len(h.nodes) == 1 {
		instance = string(h.nodes[0].ID)
	}
	h.tel, err = telemetry.New(ctx, telemetry.Options{
		Cluster: o.Config.Cluster, Version: o.Version, Instance: instance, Handler: o.Handler, Secrets: o.Config.Secrets(),
	})
	if err != nil {
		return fault.New(fault.Telemetry, "telemetry: %w", err)
	}
	defer func() { err = errors.Join(err, withShutdownTimeout(ctx, h.tel.Close)) }()
	h.trends = newTrends(h)
	h.log = h.tel.Logger
	var limits api.Limits
	garbage.Limit(garbage.DefaultLimit)
	h.places, limits = callLimits(o.Config.API, limitHeap(h.log))
	if h.limiter, err = api.NewLimiter(limits); err != nil {
		return fault.New(fault.BadValue, "api.max_in_flight: %w", err)
	}
	if h.guard, err = newGuard(o.Config.API, h.log); err != nil {
		return err
	}
	h.guard.accept(o.Token)
	listener, err := listen(ctx, o.Config.Listen, o.NextPort)
	if err != nil {
		return err
	}
	defer listener.Close()
	h.guard.confine(listener.Addr(), o.Config.Listen)
	h.up.Address = listener.Addr().String()
	h.up.URL = h.guard.scheme() + "://" + h.up.Address
	wait, err := h.newWaiting()
	if err != nil {
		return err
	}
	web, served := h.web(listener), make(chan error, 1)
	go func() { served <- web.start() }()
	defer func() { err = errors.Join(err, withShutdownTimeout(ctx, web.stop)) }()
	if h.up.Store, err = wait.open(ctx, served); err != nil {
		if ctx.Err() != nil {
			return nil // stopped before there was anything to drain
		}
		return err
	}
	defer func() { err = errors.Join(err, h.up.Store.Close()) }()
	h.up.Advertised = advertised(&o.Config.Config, listener.Addr(), thisNetwork)
	return h.serve(ctx, web, served)
}

// identities generates the IDs that are not configured, so that telemetry can carry them from the start.
func identities(o Options) ([]node.Identity, error) {
	names := o.Nodes
	if len(names) == 0 {
		names = []string{o.Config.Node.Name}
	}
	out := make([]node.Identity, len(names))
	for i, name := range names {
		out[i] = node.Identity{Name: name, ID: node.ID(o.Config.Node.ID)}
		if out[i].ID != "" {
			continue
		}
		id, err := uuid.NewV7()
		if err != nil {
			return nil, fmt.Errorf("generate a node ID: %w", err)
		}
		out[i].ID = node.ID(id.String())
	}
	return out, nil
}

// withShutdownTimeout calls end with a fresh context, because the end of the program's context must not interrupt it.
func withShutdownTimeout(ctx context.Context, end func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownTimeout)
	defer cancel()
	return end(ctx)
}

// serve makes the nodes, runs them and makes the listener answer for them.
func (h *host) serve(ctx context.Context, web *web, served <-chan error) (err error) {
	daemons, end, err := h.daemons()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, end()) }()
	for _, id := range h.nodes {
		if err := h.add(ctx, id, daemons); err != nil {
			return err
		}
	}
	if h.front, err = h.newFront(); err != nil {
		return err
	}
	h.up.Queues = h.front.open != nil
	defer func() { err = errors.Join(err, h.front.close()) }()
	if h.relays, err = h.newRelays(ctx); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, h.relays.close(ctx)) }()
	manage, err := h.newAdmin()
	if err != nil {
		return err
	}
	web.server.RegisterOnShutdown(manage.Close)
	h.up.Outbox, h.up.Jobs, h.up.Declare = h.relays.box.Load, h.front.jobs, h.front.declare
	h.routes.Store(&routes{mux: h.mux(manage), door: func() *api.Handler { return h.front.answers.Load().handler }})
	if h.Started != nil {
		h.Started(&h.up)
	}
	h.logStart()
	err = h.runNodes(ctx, served)
	stop := withShutdownTimeout(ctx, web.stop)
	if err == nil {
		return stop
	}
	return err
}

// runNodes runs the nodes until all have stopped. The first failure, of a node or of the listener, stops
// the others cleanly.
func (h *host) runNodes(ctx context.Context, served <-chan error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	nodes := new(errgroup.Group)
	for _, c := range h.up.Nodes {
		nodes.Go(func() error {
			defer cancel()
			return c.Run(ctx)
		})
	}
	done := make(chan struct{})
	background := new(errgroup.Group)
	background.Go(func() error { return h.notifySystemd(ctx, done) })
	background.Go(func() error { h.reloads(done); return nil })
	background.Go(func() error { h.watchFiles(done, accessInterval); return nil })
	background.Go(func() error { releaseStartMemory(ctx); return nil })
	background.Go(func() error { h.trends.run(done); return nil })
	background.Go(func() error { h.front.run(ctx, done); return nil })
	background.Go(func() error { h.relays.run(ctx, done); return nil })
	if h.Alongside != nil {
		background.Go(func() error { h.Alongside(ctx, &h.up); return nil })
	}
	var broken error
	background.Go(func() error {
		select {
		case broken = <-served:
			cancel()
		case <-done:
		}
		return nil
	})
	err := nodes.Wait()
	close(done)
	if err := background.Wait(); err != nil {
		h.log.Warn("cannot notify systemd", "error", err)
	}
	return errors.Join(err, broken)
}

// add makes one node.
func (h *host) add(ctx context.Context, id node.Identity, daemons []Daemon) (err error) {
	cfg, meter := h.Config, h.tel.Meter
	if len(h.nodes) > 1 {
		if meter, err = h.tel.Node(ctx, id.Name, string(id.ID)); err != nil {
			return fault.New(fault.Telemetry, "telemetry: %w", err)
		}
	}
	timing := coordinator.Timing(cfg.Timing())
	if timing.SettleWindow == 0 {
		timing.SettleWindow = -1 // the coordinator's value for none
	}
	brake := cfg.Coordinator.BrakePercent
	if brake == 0 {
		brake = -1 // likewise
	}
	c, err := coordinator.New(h.up.Store.Store, coordinator.Config{
		Cluster: cfg.Cluster, Node: id, Group: cfg.Node.Group, Labels: cfg.Node.Labels, Capacity: cfg.Node.Capacity, MaxWeight: cfg.Node.MaxWeight,
		Version: h.Version, Address: h.up.Advertised,
		NeverLead: cfg.Node.NeverLead, NoDaemons: cfg.Node.NoDaemons,
		Profile: cfg.Profile, Timing: timing, MaxMovesPerRound: h.maxMoves(), BrakePercent: brake, HostLock: h.lock, Hooks: h.hooks(id.Name),
		Logger: h.log, MeterProvider: meter, TracerProvider: h.tel.Tracer,
	})
	if err != nil {
		return err
	}
	h.up.Daemons = nil // those of one node, because all nodes run the same
	for _, d := range slices.Concat(h.sweeper(c), daemons) {
		if !h.Config.Runs(string(d.Spec.ID)) {
			continue
		}
		register := c.Register
		if builtin(d.Spec.ID) {
			register = c.RegisterBuiltin
		}
		if err := register(d.Spec, d.Agent); err != nil {
			return fault.New(fault.BadDaemon, "%w", err)
		}
		h.up.Daemons = append(h.up.Daemons, d.Spec)
	}
	h.up.Nodes = append(h.up.Nodes, c)
	return nil
}

// maxMoves returns max_moves_per_round as the coordinator takes it: a negative number for none.
func (h *host) maxMoves() int { return cmp.Or(h.Config.Coordinator.MaxMovesPerRound, -1) }

func (h *host) hooks(name string) coordinator.Hooks {
	if h.Hooks == nil {
		return coordinator.Hooks{}
	}
	return h.Hooks(name)
}

// logStart logs what was started, and which settings have no effect.
func (h *host) logStart() {
	for _, m := range h.up.Store.Migrated {
		h.log.Info("schema migrated", "version", m.Version, "name", m.Name)
	}
	for _, note := range h.Config.Notes() {
		h.log.Warn("setting without effect", "setting", note)
	}
	if h.Config.Insecure && !h.guard.secured() {
		h.log.Warn("the listener is neither encrypted nor authenticated (insecure)", "listen", h.up.Address)
	}
	h.log.Info("listening", "address", h.up.Address, "advertised", h.up.Advertised, "store", h.up.Store.Kind, "version", h.Version)
}

// nearby is how many ports after the configured one are tried.
const nearby = 30

// listen binds the address. If next is set and the port is in use, it tries ports near it and finally any
// free port.
func listen(ctx context.Context, address string, next bool) (net.Listener, error) {
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", address)
	if err == nil || !next {
		if err != nil {
			return nil, fault.New(fault.CannotListen, "cannot listen on %s: %w", address, reason(err))
		}
		return l, nil
	}
	name, port, _ := net.SplitHostPort(address)
	first, _ := strconv.Atoi(port)
	for i := 1; i <= nearby; i++ {
		if l, err := lc.Listen(ctx, "tcp", net.JoinHostPort(name, strconv.Itoa(first+i))); err == nil {
			return l, nil
		}
	}
	if l, err = lc.Listen(ctx, "tcp", net.JoinHostPort(name, "0")); err != nil {
		return nil, fault.New(fault.CannotListen, "cannot listen on %s nor any other port: %w", address, reason(err))
	}
	return l, nil
}

// reason unwraps a net.OpError, whose text would repeat the address.
func reason(err error) error {
	var op *net.OpError
	if errors.As(err, &op) {
		return op.Err
	}
	return err
}
