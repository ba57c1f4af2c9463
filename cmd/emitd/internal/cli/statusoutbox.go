package cli

import (
	"context"
	"time"

	"github.com/emitd/emitd/cmd/emitd/internal/backend"
	"github.com/emitd/emitd/cmd/emitd/internal/config"
	"github.com/emitd/emitd/internal/admin/fault"
	"github.com/emitd/emitd/internal/admin/view"
	"github.com/emitd/emitd/outbox"
)

// statusPartTimeout is how long the status of a cluster waits for its outbox, and for its queues.
const statusPartTimeout = time.Second

// startOutboxRead reads the outbox while the cluster is read. It returns a function that waits for the result,
// until statusPartTimeout has passed since the start. A problem of the outbox is part of the result, because
// the cluster is shown all the same; nil means that there is no outbox. A read that does not return is
// abandoned; its context has ended.
func (a *app) startOutboxRead(ctx context.Context, cfg *config.Loaded) (wait func() *view.Outbox) {
	ctx, cancel := context.WithTimeout(ctx, statusPartTimeout)
	answer := make(chan *view.Outbox, 1)
	go func() { answer <- a.summary(ctx, cfg) }()
	return func() *view.Outbox {
		defer cancel()
		select {
		case out := <-answer:
			return out
		case <-ctx.Done():
		}
		select {
		case out := <-answer: // in time: reading the cluster took longer
			return out
		default:
			return tooLate()
		}
	}
}

func tooLate() *view.Outbox {
	return view.NoOutbox("it has not answered within " + view.Exact(statusPartTimeout))
}

// summary reads the outbox. If none is configured and the database lacks its tables, there is no outbox.
func (a *app) summary(ctx context.Context, cfg *config.Loaded) *view.Outbox {
	kind, all, err := a.readOutbox(ctx, cfg)
	if err == nil {
		return view.OutboxOf(kind, all)
	}
	if ctx.Err() != nil {
		return tooLate()
	}
	f := backend.OutboxFault(err)
	if noOutbox(cfg, f) {
		return nil
	}
	return view.NoOutbox(string(f.Code) + ": " + f.What)
}

// noOutbox reports whether a fault means that there is no outbox: none is configured, and the database
// has no tables of one.
func noOutbox(cfg *config.Loaded, f *fault.Fault) bool {
	return f.Code == fault.OutboxURL || !cfg.HasOutbox() && (f.Code == fault.OutboxSchema || f.Code == fault.Unreachable)
}

func (a *app) readOutbox(ctx context.Context, cfg *config.Loaded) (kind string, all []outbox.Stats, err error) {
	box, err := backend.OpenOutbox(ctx, backend.Options{Config: cfg.Config, Policy: backend.ReadOnly, Logger: a.commandLog(cfg)})
	if err != nil {
		return "", nil, err
	}
	defer box.Close(ctx)
	all, err = box.Stats(ctx, "")
	return box.Kind, all, err
}
