package outbox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/trace"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/internal/backoff"
)

// ID returns the ID of the daemon that relays a subscription: emit:outbox/<name>.
func ID(name string) daemon.ID { return daemon.ID(daemon.Reserved + "outbox/" + name) }

// Config configures a relay. Name, Log and Sink are required.
type Config struct {
	// Name is the subscription's name: lower-case letters, digits and ._:/-.
	Name string
	Log  Log
	Sink Sink
	// Instances is the number of units that share the shards. Each runs on a node of its own if there are
	// enough nodes. Default 1, at most Shards. While the number is changed, relays of the old and the new
	// number take shards from each other until only one number is left; no message is lost by it.
	Instances int
	// Topics selects messages: names, or prefixes that end in *. If it is empty, all messages are selected.
	Topics []string
	// Newest makes a new subscription start with messages published from now on. By default it starts with
	// what is in the log.
	Newest bool
	// Policy says what happens to a message that cannot be delivered; default Hold.
	Policy Policy
	Retry  Retry
	Hooks  Hooks

	// PageRows and PageBytes bound one page; defaults 1,000 and 4 MiB.
	PageRows, PageBytes int
	// MaxPages is how many full pages may be in flight; default 3. Smaller pages count by their rows.
	MaxPages int
	// Parallel is how many calls of the sink may be in flight for pages, each for different keys, and as
	// many again for lanes; default 4.
	Parallel int
	// DeliverTimeout bounds one call of the sink; default 30 s. Calls for messages of a page have the
	// shorter bound PageTimeout. A call for several lanes that hangs is repeated in halves until one key hangs
	// alone. Only for that key does an attempt count as failed.
	DeliverTimeout time.Duration
	// PageTimeout bounds one call of the sink for messages of a page; default a third of DeliverTimeout, at
	// most DeliverTimeout. Messages that the sink has not taken by then are parked in the lanes of their
	// keys. There they are tried for up to DeliverTimeout while other keys go on. A short PageTimeout harms a
	// sink that is slow by nature: its messages are written to lanes and may arrive twice.
	PageTimeout time.Duration
	// MinPoll and MaxPoll bound the pause between two reads of the log; defaults 2 ms and 1 s. For 5 s after
	// polling has found a message, the pause is at most 20 ms, or MinPoll if that is longer.
	MinPoll, MaxPoll time.Duration

	Logger         *slog.Logger         // default slog.Default()
	MeterProvider  metric.MeterProvider // default that of OpenTelemetry
	TracerProvider trace.TracerProvider // default that of OpenTelemetry
}

func (c Config) withDefaults() (Config, error) {
	c.Instances = cmp.Or(c.Instances, 1)
	c.Policy = cmp.Or(c.Policy, Hold)
	c.PageRows, c.PageBytes = cmp.Or(c.PageRows, 1000), cmp.Or(c.PageBytes, 4<<20)
	c.MaxPages, c.Parallel = cmp.Or(c.MaxPages, 3), cmp.Or(c.Parallel, 4)
	c.DeliverTimeout = cmp.Or(c.DeliverTimeout, 30*time.Second)
	c.PageTimeout = cmp.Or(c.PageTimeout, c.DeliverTimeout/3)
	c.MinPoll, c.MaxPoll = cmp.Or(c.MinPoll, 2*time.Millisecond), cmp.Or(c.MaxPoll, time.Second)
	c.Retry = c.Retry.withDefaults()
	c.Logger = cmp.Or(c.Logger, slog.Default())
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if id := ID(c.Name); id.Validate() != nil || id.Group() != "" || c.Name == "" {
		bad("the subscription's name is %q, want lower-case letters, digits and ._:/-", c.Name)
	}
	if c.Log == nil {
		bad("subscription %q has no log", c.Name)
	}
	if c.Sink == nil {
		bad("subscription %q has no sink", c.Name)
	}
	if c.Instances < 1 || c.Instances > Shards {
		bad("instances is %d, want 1 to %d", c.Instances, Shards)
	}
	if !slices.Contains([]Policy{Hold, Skip, Drop}, c.Policy) {
		bad("policy is %q, want %q, %q or %q", c.Policy, Hold, Skip, Drop)
	}
	for _, f := range []struct {
		name  string
		value int
	}{{"page rows", c.PageRows}, {"page bytes", c.PageBytes}, {"max pages", c.MaxPages}, {"parallel", c.Parallel}} {
		if f.value < 1 {
			bad("%s is %d, want 1 or more", f.name, f.value)
		}
	}
	if c.MinPoll <= 0 || c.MaxPoll < c.MinPoll {
		bad("max poll is %v, min poll %v: want 0 < min ≤ max", c.MaxPoll, c.MinPoll)
	}
	if c.DeliverTimeout <= 0 {
		bad("deliver timeout is %v, want more than 0", c.DeliverTimeout)
	} else if c.PageTimeout <= 0 || c.PageTimeout > c.DeliverTimeout {
		bad("page timeout is %v, deliver timeout %v: want 0 < page timeout ≤ deliver timeout", c.PageTimeout, c.DeliverTimeout)
	}
	for _, t := range c.Topics {
		if t == "" || strings.Contains(strings.TrimSuffix(t, "*"), "*") {
			bad("topic filter %q: want a name, or a prefix followed by *", t)
		}
	}
	return c, errors.Join(append(errs, c.Retry.validate())...)
}

// wants reports whether the subscription selects a topic.
func (c *Config) wants(topic string) bool {
	return len(c.Topics) == 0 || slices.ContainsFunc(c.Topics, func(f string) bool {
		beginning, any := strings.CutSuffix(f, "*")
		return f == topic || any && strings.HasPrefix(topic, beginning)
	})
}

// Relay delivers the messages of one subscription. It is the agent of all its units on a node.
type Relay struct {
	cfg     Config
	metrics *instruments
	hooks   *hooks
	breaker *breaker
}

var _ daemon.Agent = (*Relay)(nil)

// NewRelay returns a relay. Close it after its last run has ended.
func NewRelay(cfg Config) (*Relay, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, fmt.Errorf("create an outbox relay: %w", err)
	}
	r := &Relay{cfg: cfg, metrics: newInstruments(cfg), breaker: newBreaker()}
	r.hooks = newHooks(cfg.Hooks, cfg.Logger, r.metrics.missed)
	return r, nil
}

// Close waits until the hooks have handled their buffered events, or ctx ends.
func (r *Relay) Close(ctx context.Context) error {
	r.metrics.close()
	return r.hooks.close(ctx)
}

// Spec returns the specification of the relay's daemon.
func (r *Relay) Spec() daemon.Spec {
	return daemon.Spec{ID: ID(r.cfg.Name), Instances: r.cfg.Instances, MaxFailures: -1}
}

// Run delivers until the assignment drains or ctx ends. Errors of the log or the sink do not end it: it
// waits and tries again. It returns early if the node has too few instances configured, or if another
// relay has replaced it.
func (r *Relay) Run(ctx context.Context, a *daemon.Assignment) error {
	if a.Index >= r.cfg.Instances {
		r.cfg.Logger.Warn("this node is configured with fewer instances than the cluster; it releases the unit", "unit", a.Unit.String(), "instances", r.cfg.Instances)
		return fmt.Errorf("unit %s of %d instances: %w", a.Unit, r.cfg.Instances, daemon.ErrRelease)
	}
	ctx, cancel := withValidity(ctx)
	defer cancel(nil)
	log := r.cfg.Logger.With("subscription", r.cfg.Name, "unit", a.Unit.String(), "generation", a.Generation)
	shards := RangeOf(a.Index, r.cfg.Instances)
	wake := r.cfg.Log.WakeUps(ctx)
	sampling := r.sample(ctx, a, log)
	defer sampling()
	refusal := "" // why the receiver could not be fenced
	for failures := 0; ; {
		began := time.Now()
		err := r.session(ctx, a, shards, &refusal, wake, log)
		switch {
		case err == nil, errors.Is(err, errDrained):
			return nil
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case errors.Is(err, ErrMoved):
			log.Debug("outbox cursor moved; the relay opens its cursors again", "error", err)
			if time.Since(began) < logRetries.First && !sleep(ctx, a.Draining(), logRetries.Jittered(1)) {
				return context.Cause(ctx) // nil if the unit drains
			}
			continue
		case errors.Is(err, ErrFenced):
			r.metrics.fenced()
			if end := r.overtakenErr(a, err, log); end != nil {
				return end
			}
		}
		if time.Since(began) > time.Minute {
			failures = 0
		}
		failures++
		wait := logRetries.Jittered(failures)
		log.Warn("outbox relay is interrupted", "error", err, "retry_in", wait)
		if !sleep(ctx, a.Draining(), wait) {
			return context.Cause(ctx) // nil if the unit drains
		}
	}
}

// logRetries are the pauses after the log failed.
var logRetries = backoff.Policy{First: 50 * time.Millisecond, Limit: 5 * time.Second}

// overtakenErr returns the error that ends the run if the refusal err carries an epoch that is at least the
// run's own: another relay owns the range. Otherwise it returns nil. The case: a receiver that reports no
// epoch may have been fenced by a relay that did not know it was replaced. Then the next claim decides.
func (r *Relay) overtakenErr(a *daemon.Assignment, err error, log *slog.Logger) error {
	var f *FencedError
	if !errors.As(err, &f) || f.Floor < a.Generation {
		return nil
	}
	a.ReportRefused(f.Floor)
	log.Info("outbox relay was replaced by a newer one", "error", err)
	if f.Resized {
		return fmt.Errorf("relay %s with %d instances: %w: %w", r.cfg.Name, r.cfg.Instances, daemon.ErrRelease, err)
	}
	return &daemon.StaleError{Fence: a.Fence(), HeldGeneration: f.Floor}
}

// errNotValid ends deliveries when the node has not heard from the store for too long.
var errNotValid = errors.New("the assignment can no longer be trusted")

// withValidity returns a context that ends when the run's assignment can no longer be trusted. From then on
// another relay may own the shards.
func withValidity(ctx context.Context) (context.Context, context.CancelCauseFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	if _, ok := daemon.Validity(ctx); !ok {
		return ctx, cancel
	}
	go func() {
		for {
			left, _ := daemon.Validity(ctx)
			if left <= 0 {
				cancel(errNotValid)
				return
			}
			if !sleep(ctx, nil, min(left, time.Second)) {
				return
			}
		}
	}()
	return ctx, cancel
}

// sleep waits for d. It returns false if ctx or done ended the wait.
func sleep(ctx context.Context, done <-chan struct{}, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-done:
	case <-ctx.Done():
	}
	return false
}
