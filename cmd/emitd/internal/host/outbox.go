package host

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/emitd/emitd/cmd/emitd/internal/backend"
	"github.com/emitd/emitd/cmd/emitd/internal/config"
	"github.com/emitd/emitd/cmd/emitd/internal/sinks"
	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/daemon/sweeper"
	"github.com/emitd/emitd/internal/admin/fault"
	"github.com/emitd/emitd/internal/backoff"
	"github.com/emitd/emitd/outbox"
	"github.com/emitd/emitd/queue"
)

// relays are the subscriptions of a process: a relay and a sink for each, on one open outbox.
//
// A mistake in the configuration or the schema fails the start. A database that cannot be reached does
// not: the nodes run their other daemons, and the relays are offered to the cluster once it answers.
type relays struct {
	h    *host
	subs []subscription

	box   atomic.Pointer[backend.Outbox] // nil until the database is open
	hooks []*outbox.Relay
}

// subscription is a configured subscription with its sink.
type subscription struct {
	config.Subscription
	sink sinks.Sink
}

// newRelays makes the sinks of this process's subscriptions, and opens the outbox if it can be opened at
// once.
func (h *host) newRelays(ctx context.Context) (*relays, error) {
	r := &relays{h: h}
	if !h.Config.HasOutbox() {
		return r, nil
	}
	for _, s := range h.Config.Outbox.Subscriptions {
		if !h.Config.Runs(string(outbox.ID(s.Name))) {
			continue
		}
		to, err := sinks.Open(ctx, s.Sink.Settings, jobs{h})
		if err != nil {
			return nil, errors.Join(fault.New(fault.BadOutbox, "subscription %s: %w", s.Name, err), r.close(ctx))
		}
		r.subs = append(r.subs, subscription{s, to})
	}
	err := r.open(ctx)
	if err != nil && backend.OutboxFault(err).Code != fault.Unreachable {
		return nil, errors.Join(err, r.close(ctx))
	}
	if err != nil {
		h.log.Warn("the outbox cannot be reached yet; other daemons run", "error", err)
	}
	return r, nil
}

// outboxSweeper is the ID of the daemon that removes old messages of the outbox. It is not a task of the
// store's sweeper, because that may run on a node that has no outbox configured.
const outboxSweeper = sweeper.ID + "/outbox"

// open opens the outbox and offers its daemons to the cluster.
func (r *relays) open(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, firstAttempt)
	defer cancel()
	box, err := r.h.OpenOutbox(ctx, r.h.tel)
	if err != nil {
		return err
	}
	r.box.Store(box)
	for _, m := range box.Migrated {
		r.h.log.Info("schema of the outbox migrated", "version", m.Version, "name", m.Name)
	}
	var all []Daemon
	for _, s := range r.subs {
		cfg := s.RelayConfig()
		cfg.Log, cfg.Sink = box, s.sink
		cfg.Logger, cfg.MeterProvider, cfg.TracerProvider = r.h.log, r.h.tel.Meter, r.h.tel.Tracer
		relay, err := outbox.NewRelay(cfg)
		if err != nil {
			return fault.New(fault.BadOutbox, "%w", err)
		}
		r.hooks = append(r.hooks, relay)
		all = append(all, Daemon{relay.Spec(), relay})
	}
	if r.h.Config.Runs(string(outboxSweeper)) {
		spec := daemon.Spec{ID: outboxSweeper, Instances: 1, MaxFailures: -1}
		all = append(all, Daemon{spec, sweeper.New(box.Tasks, sweeper.Config{Logger: r.h.log})})
	}
	return r.offer(all)
}

func (r *relays) offer(all []Daemon) error {
	for _, d := range all {
		for _, c := range r.h.up.Nodes {
			if err := c.RegisterBuiltin(d.Spec, d.Agent); err != nil {
				return fault.New(fault.BadDaemon, "%w", err)
			}
		}
		r.h.up.Daemons = append(r.h.up.Daemons, d.Spec)
	}
	return nil
}

// run tries to open the outbox, if it is not open yet, until done is closed.
func (r *relays) run(ctx context.Context, done <-chan struct{}) {
	retries := backoff.Policy{First: time.Second, Limit: lastAttempt}
	for failures := 1; r.box.Load() == nil && r.h.Config.HasOutbox(); failures++ {
		pause := retries.Jittered(failures)
		select {
		case <-time.After(pause):
		case <-done:
			return
		}
		if err := r.open(ctx); err != nil && ctx.Err() == nil {
			why := backend.OutboxFault(err)
			r.h.log.Warn("cannot open the outbox; other daemons run", "code", why.Code, "error", why.What, "do", why.Advice(), "again_in", retries.After(failures+1))
		}
	}
}

// close closes hooks and sinks. The nodes must have stopped.
func (r *relays) close(ctx context.Context) error {
	var errs []error
	for _, h := range r.hooks {
		errs = append(errs, withShutdownTimeout(ctx, h.Close))
	}
	for _, s := range r.subs {
		errs = append(errs, s.sink.Close())
	}
	if box := r.box.Load(); box != nil {
		errs = append(errs, withShutdownTimeout(ctx, box.Close))
	}
	return errors.Join(errs...)
}

// jobs is the destination of the sink of kind queue: whichever node serves the queue.
type jobs struct{ h *host }

var _ queue.Producer = jobs{}

// Enqueue implements [queue.Producer].
func (j jobs) Enqueue(ctx context.Context, name string, list []queue.Job) ([]queue.Receipt, error) {
	return j.h.front.jobs().Enqueue(ctx, name, list)
}
