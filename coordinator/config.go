package coordinator

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"time"

	"github.com/google/uuid"
	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/internal/bootclock"
	"github.com/emitd/emitd/internal/coordinator/lease"
	"github.com/emitd/emitd/internal/coordinator/plan"
	"github.com/emitd/emitd/node"
)

// Timing holds every duration of the protocol. A zero field keeps the duration of the profile.
type Timing struct {
	// HeartbeatInterval is how often a node writes its row. A shorter interval finds work sooner in
	// a store without wake-ups, and costs one more statement per node each time.
	HeartbeatInterval time.Duration
	// QueryTimeout bounds every call to the store.
	QueryTimeout time.Duration
	// LeaseDuration is how long a leader keeps its term without renewing it. It is also the time
	// without a leader after a crash.
	LeaseDuration time.Duration
	// NodeRegistrationTTL is how long a node that sends no heartbeat keeps its units.
	NodeRegistrationTTL time.Duration
	// AcknowledgeTimeout is how long an assigned node has to start a unit.
	AcknowledgeTimeout time.Duration
	// DrainTimeout is how long a revoked unit has to finish.
	DrainTimeout time.Duration
	// StopTimeout is how long an agent has to return once its context is cancelled.
	StopTimeout time.Duration
	// LeaderStopTimeout is how long leader-only work may take to end at a clean stop.
	LeaderStopTimeout time.Duration
	// SettleWindow is how long joins and leaves are waited out. The first leader of a cluster in which nothing runs
	// waits that long for more nodes to join. Later, units wait up to that long for a node while more than half of
	// the nodes join or leave at once. Running units are moved to make loads even only once no node has joined
	// or left for that long. Make it longer than the pauses of your rollouts.
	SettleWindow time.Duration

	// Wakeup (σ) bounds the latency of waking up and cancelling.
	Wakeup time.Duration
	// ClockStep (θ) is the largest step of the store's clock that may go undetected.
	ClockStep time.Duration
	// ClockCheckInterval is how often the local clock is read, so that a suspend of the machine is noticed.
	ClockCheckInterval time.Duration
	// MinWorkTime is the least time for work that a deadline must leave after all margins.
	MinWorkTime time.Duration
}

// The profiles of timings.
const (
	// ProfileDefault replaces a dead leader after 60 s and a dead node after 90 s.
	ProfileDefault = "default"
	// ProfileFast replaces them after 5 s and 6 s, with fifteen times as many heartbeats.
	ProfileFast = "fast"
	// ProfileInstant replaces them after 1 s and 1.5 s, with 75 times as many heartbeats. It needs a store that answers
	// within 150 ms, always.
	ProfileInstant = "instant"
)

// Config configures a coordinator. Its zero value is a node that may lead and run daemons, with the profile
// "default". The nodes of a cluster may have different timings, so that a rolling restart can change them. While
// they differ, the bounds are those of the slowest node.
type Config struct {
	// Cluster names the cluster; default "default". The first node writes the name into the store, and the store
	// refuses nodes with another name (storage.ErrOtherCluster). A staging node that reaches the production store
	// by mistake then stops without having disturbed anything. Two clusters in one database are separated by the
	// store's schema and prefix, not by their names.
	Cluster string
	// Node is this node's identity. Name defaults to the host's name, ID to a UUID v7 drawn for this process. Set
	// the ID only if something prevents two processes from having it at once.
	Node node.Identity
	// Group makes the node one of a group, such as those of one of several services on one store. Everything that it
	// declares has the group's name in its ID (acme:reports@billing), and only nodes of the group run it. So two groups
	// may each have a daemon acme:reports. Queues are the exception: they belong to the cluster. Any node may lead.
	Group string
	// Labels are what Spec.Requires and Spec.Spread refer to.
	Labels map[string]string
	// Capacity divides the node's load; 0 counts as 1.
	Capacity int
	// MaxWeight is the most weight of units that this node is given in all; 0 is no limit. A unit that fits on no
	// node waits, and is reported.
	MaxWeight int
	// Version is the version of the user's program, shown to people.
	Version string
	// Address is host:port of the node's listener, shown to people; empty without one.
	Address string
	// NeverLead keeps the node out of elections. A cluster needs at least one node without it.
	NeverLead bool
	// NoDaemons keeps daemons away from the node. The node still declares the daemons that it registers.
	NoDaemons bool
	// Profile is ProfileDefault (also when empty), ProfileFast or ProfileInstant.
	Profile string
	// Timing overrides the profile's durations; zero fields keep them. A negative SettleWindow means none.
	Timing Timing
	// MaxMovesPerRound is how many running units this node moves at a time, as leader, to make loads even; 0 counts
	// as 100, and a negative number moves none. Each move is a graceful hand-over.
	MaxMovesPerRound int
	// BrakePercent is the brake: if more than this share of the nodes, and at least three, look dead at once, then this
	// node, as leader, takes nothing from them for another NodeRegistrationTTL, unless their end is proven. 0 counts
	// as 50, and a negative number means no brake.
	BrakePercent int
	// HostLock is the path of a file that is kept locked (flock) by this process, and by whatever ends its child
	// processes after it. Set it if the process has child processes. Without the lock, other nodes on the host
	// could take exit evidence of this process as the end of its work while a child still runs.
	HostLock string
	// Hooks are called when something happens on or around this node.
	Hooks Hooks
	// Exit ends the process when an agent whose Spec has OnAbandoned "exit" was abandoned; default os.Exit.
	Exit func(code int)

	// Logger is for messages to people; default slog.Default().
	Logger *slog.Logger
	// MeterProvider and TracerProvider default to OpenTelemetry's global ones.
	MeterProvider  metric.MeterProvider
	TracerProvider trace.TracerProvider
	// Clock reads the local clock: the time since an arbitrary origin. It must never step and should count suspended time. The default is the
	// system's clock (CLOCK_BOOTTIME on Linux). Tests in a testing/synctest bubble must set it, e.g. from
	// time.Since, because the kernel's clock knows nothing of bubbles.
	Clock func() time.Duration
}

// withDefaults returns the configuration with zero fields replaced by their defaults, and with a complete
// identity.
func (c Config) withDefaults() (Config, error) {
	c.Cluster = cmp.Or(c.Cluster, "default")
	c.Profile = cmp.Or(c.Profile, ProfileDefault)
	c.Capacity = cmp.Or(c.Capacity, 1)
	c.BrakePercent = cmp.Or(c.BrakePercent, plan.DefaultBrakePercent)
	c.MaxMovesPerRound = cmp.Or(c.MaxMovesPerRound, plan.DefaultMaxMoves)
	c.Labels = maps.Clone(c.Labels)
	if c.Clock == nil {
		c.Clock = bootclock.Now
	}
	if c.Exit == nil {
		c.Exit = os.Exit
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	if c.MeterProvider == nil {
		c.MeterProvider = otel.GetMeterProvider()
	}
	if c.TracerProvider == nil {
		c.TracerProvider = otel.GetTracerProvider()
	}
	if c.Node.Name == "" {
		name, err := os.Hostname()
		if err != nil {
			return c, fmt.Errorf("node name: it is empty and the host has none: %w", err)
		}
		c.Node.Name = name
	}
	var err error
	if c.Node.ID == "" {
		if c.Node.ID, err = draw[node.ID](); err != nil {
			return c, err
		}
	} else if id, err := uuid.Parse(string(c.Node.ID)); err == nil {
		c.Node.ID = node.ID(id.String()) // as stores write it, so that the node recognises itself in replies
	}
	c.Node.Incarnation, err = draw[node.Incarnation]()
	return c, err
}

// draw returns a new UUID of version 7.
func draw[T ~string]() (T, error) {
	id, err := uuid.NewV7()
	if err != nil {
		return "", fmt.Errorf("draw a node id: %w", err)
	}
	return T(id.String()), nil
}

// validate returns an error that names every invalid field.
func (c Config) validate() error {
	var errs []error
	if _, ok := lease.OfProfile(c.Profile); !ok {
		errs = append(errs, fmt.Errorf("profile is %q, want %q, %q or %q", c.Profile, ProfileDefault, ProfileFast, ProfileInstant))
	}
	if c.Capacity < 0 {
		errs = append(errs, fmt.Errorf("capacity is %d, want 1 or more", c.Capacity))
	}
	if c.MaxWeight < 0 {
		errs = append(errs, fmt.Errorf("max weight is %d, want 1 or more, or 0 for no limit", c.MaxWeight))
	}
	if c.Group != "" {
		if err := daemon.ValidateGroup(c.Group); err != nil {
			errs = append(errs, err)
		}
	}
	if _, err := uuid.Parse(string(c.Node.ID)); err != nil {
		errs = append(errs, fmt.Errorf("node id %q is not a UUID; leave it empty to have one drawn: %w", c.Node.ID, err))
	}
	if len(errs) > 0 {
		return errors.Join(errs...)
	}
	return c.timing().Validate()
}

// timing returns the profile's durations with the overrides applied.
func (c Config) timing() lease.Timing {
	o := lease.Timing(c.Timing)
	t, _ := lease.OfProfile(c.Profile)
	t = t.With(o.Shared())
	t.AcknowledgeTimeout = cmp.Or(o.AcknowledgeTimeout, t.AcknowledgeTimeout)
	t.DrainTimeout = cmp.Or(o.DrainTimeout, t.DrainTimeout)
	t.LeaderStopTimeout = cmp.Or(o.LeaderStopTimeout, t.LeaderStopTimeout)
	t.SettleWindow = max(cmp.Or(o.SettleWindow, t.SettleWindow), 0)
	t.ClockCheckInterval = cmp.Or(o.ClockCheckInterval, t.ClockCheckInterval)
	t.MinWorkTime = cmp.Or(o.MinWorkTime, t.MinWorkTime)
	return t
}

// traits returns what the node declares about itself.
func (c Config) traits() node.Traits {
	host := thisHost()
	host.Lock = c.HostLock
	return node.Traits{
		Version: c.Version, Address: c.Address, Labels: c.Labels, Capacity: c.Capacity, MaxWeight: c.MaxWeight,
		NeverLead: c.NeverLead, NoDaemons: c.NoDaemons, Host: host,
		Group: c.Group, Cluster: c.Cluster,
	}
}
