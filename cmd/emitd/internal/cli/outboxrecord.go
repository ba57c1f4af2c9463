package cli

import (
	"context"
	"log/slog"

	"github.com/emitd/emitd/cmd/emitd/internal/backend"
	"github.com/emitd/emitd/cmd/emitd/internal/config"
	"github.com/emitd/emitd/internal/admin/audit"
	"github.com/emitd/emitd/internal/admin/fault"
	"github.com/emitd/emitd/internal/admin/view"
	"github.com/emitd/emitd/outbox"
)

// recordedOutbox records in the history what a command changes.
type recordedOutbox struct {
	outbox.Operator
	a   *app
	cfg *config.Loaded
}

var _ outbox.Operator = recordedOutbox{}

// change makes a change, and records it with the state of the subscription before and after.
func (o recordedOutbox) change(ctx context.Context, verb, name string, args any, do func() (int, error)) error {
	c := audit.Change{Kind: audit.Outbox + verb, Subject: name, By: audit.By{Actor: actor()}, Args: args, Before: o.lag(ctx, name)}
	c.Count, c.Err = do()
	c.After = o.lag(ctx, name)
	if o.cfg.Store.URL == "" {
		return c.Err // there is an outbox without a cluster
	}
	store, err := o.a.open(ctx, o.cfg)
	if err != nil {
		o.a.message("the history of the cluster does not have this: %v", err)
		return c.Err
	}
	defer store.Close()
	audit.Record(ctx, store.Store, slog.New(slog.DiscardHandler), c)
	return c.Err
}

func (o recordedOutbox) lag(ctx context.Context, name string) any {
	all, err := o.Stats(ctx, name)
	if err != nil || len(all) != 1 {
		return nil
	}
	return audit.LagOf(view.OutboxStatsOf(all[0]))
}

// Retry implements [outbox.Operator].
func (o recordedOutbox) Retry(ctx context.Context, name string, seqs ...int64) (n int, err error) {
	err = o.change(ctx, "retry", name, seqs, func() (int, error) {
		n, err = o.Operator.Retry(ctx, name, seqs...)
		return n, err
	})
	return n, err
}

// Skip implements [outbox.Operator].
func (o recordedOutbox) Skip(ctx context.Context, name string, seqs ...int64) error {
	return o.change(ctx, "skip", name, seqs, func() (int, error) { return len(seqs), o.Operator.Skip(ctx, name, seqs...) })
}

// verbs are the commands that settle messages, by what they make of them.
var verbs = map[outbox.Kind]string{outbox.Waiting: "retry", outbox.Dead: "skip", outbox.Dropped: "purge"}

// SettleAll implements [outbox.Operator].
func (o recordedOutbox) SettleAll(ctx context.Context, f outbox.Filter, to outbox.Kind, dryRun bool) (counts map[outbox.Kind]int, err error) {
	if dryRun {
		return o.Operator.SettleAll(ctx, f, to, true)
	}
	err = o.change(ctx, verbs[to], f.Subscription, f, func() (int, error) {
		counts, err = o.Operator.SettleAll(ctx, f, to, false)
		return total(counts), err
	})
	return counts, err
}

// Replay implements [outbox.Operator].
func (o recordedOutbox) Replay(ctx context.Context, r outbox.ReplayRequest) (after int64, counts map[outbox.Kind]int, err error) {
	if r.DryRun {
		return o.Operator.Replay(ctx, r)
	}
	err = o.change(ctx, "replay", r.Subscription, r, func() (int, error) {
		after, counts, err = o.Operator.Replay(ctx, r)
		return counts[outbox.Delivered], err
	})
	return after, counts, err
}

// Pause implements [outbox.Operator].
func (o recordedOutbox) Pause(ctx context.Context, name string, paused bool) error {
	verb := "resume"
	if paused {
		verb = "pause"
	}
	return o.change(ctx, verb, name, nil, func() (int, error) { return 0, o.Operator.Pause(ctx, name, paused) })
}

// Delete implements [outbox.Operator]. A subscription that nodes deliver is refused, as by a node.
func (o recordedOutbox) Delete(ctx context.Context, name string) error {
	if err := o.checkForget(ctx, name); err != nil {
		return err
	}
	return o.change(ctx, "forget", name, nil, func() (int, error) { return 0, o.Operator.Delete(ctx, name) })
}

func (o recordedOutbox) checkForget(ctx context.Context, name string) error {
	if o.cfg.Store.URL == "" {
		return nil // there is an outbox without a cluster
	}
	store, err := o.a.open(ctx, o.cfg)
	switch {
	case err != nil && backend.Fault(err).Code == fault.NotMigrated: // and one beside an empty store
		return nil
	case err != nil:
		return err
	}
	defer store.Close()
	snap, err := store.Snapshot(ctx)
	if err != nil {
		return err
	}
	return view.CheckForget(snap, name, o.cfg.Node.Group)
}
