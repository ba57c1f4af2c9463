package backend

import (
	"context"

	"github.com/emitd/emitd/cmd/emitd/internal/config"
	"github.com/emitd/emitd/daemon/sweeper"
	"github.com/emitd/emitd/internal/admin/fault"
	"github.com/emitd/emitd/outbox"
	"github.com/emitd/emitd/outbox/sink"
)

// Outbox is an open outbox: its log, its operator's commands, and a publisher for experiments.
type Outbox struct {
	outbox.Log
	outbox.Operator
	Kind string // for people: sqlite, postgres
	// Migrated lists the migrations that were applied on opening.
	Migrated []Migration
	// Tasks are the tasks for the sweeper.
	Tasks []sweeper.Task

	publish func(ctx context.Context, messages []outbox.Message) error
	close   func(ctx context.Context) error
}

// Publish publishes messages in a transaction of their own.
func (o *Outbox) Publish(ctx context.Context, messages ...outbox.Message) error {
	return o.publish(ctx, messages)
}

// Close closes the outbox. Until ctx ends it waits for wake-ups that are still to be sent.
func (o *Outbox) Close(ctx context.Context) error { return o.close(ctx) }

// outboxDriver is one kind of database.
type outboxDriver struct {
	open    func(context.Context, Options) (*Outbox, error)
	status  func(context.Context, Options) ([]Migration, error)
	migrate func(context.Context, Options) ([]Migration, error)
	sql     func(cfg config.Config, from int) (string, error)
}

func outboxDriverOf(cfg config.Config) (outboxDriver, error) {
	address := cfg.OutboxURL()
	switch scheme(address) {
	case "sqlite":
		return sqliteOutbox, nil
	case "postgres", "postgresql":
		return postgresOutbox, nil
	}
	if cfg.Store.URL == "" {
		return outboxDriver{}, fault.New(fault.OutboxURL, "neither outbox.url nor store.url is set, so the outbox has no database")
	}
	return outboxDriver{}, fault.New(fault.OutboxURL, "outbox.url is not set, and store.url is %s, which is not a SQL database", config.RedactURL(cfg.Store.URL))
}

// OpenOutbox opens the outbox of a configuration. The policy means the same as for the cluster store. Its
// errors are faults.
func OpenOutbox(ctx context.Context, o Options) (*Outbox, error) {
	d, err := outboxDriverOf(o.Config)
	if err != nil {
		return nil, err
	}
	return outboxFaulty(d.open(ctx, o))
}

// OutboxStatus lists every version of the outbox's schema. Versions that are not applied have a zero
// AppliedAt.
func OutboxStatus(ctx context.Context, o Options) ([]Migration, error) {
	d, err := outboxDriverOf(o.Config)
	if err != nil {
		return nil, err
	}
	return outboxFaulty(d.status(ctx, o))
}

// PendingOutbox lists the versions that MigrateOutbox would apply.
func PendingOutbox(ctx context.Context, o Options) ([]Migration, error) {
	all, err := OutboxStatus(ctx, o)
	return pending(all), err
}

// MigrateOutbox migrates the outbox's schema to the program's version and returns what it applied.
func MigrateOutbox(ctx context.Context, o Options) ([]Migration, error) {
	d, err := outboxDriverOf(o.Config)
	if err != nil {
		return nil, err
	}
	return outboxFaulty(migrateDated(ctx, o, d.migrate, d.status))
}

// OutboxSQL returns the statements that migrate the outbox from a version to the program's.
func OutboxSQL(cfg config.Config, from int) (string, error) {
	d, err := outboxDriverOf(cfg)
	if err != nil {
		return "", err
	}
	text, err := d.sql(cfg, from)
	if err != nil {
		return "", fault.New(fault.Usage, "migrate get --outbox: %w", err)
	}
	return text, nil
}

func outboxFaulty[T any](v T, err error) (T, error) {
	if err != nil {
		return v, OutboxFault(err)
	}
	return v, nil
}

// OutboxFault turns an error of an outbox into a fault.
func OutboxFault(err error) *fault.Fault {
	f := Fault(err)
	switch {
	case f.Code != fault.Internal:
		return f
	case sink.Unreachable(err) || Away(err):
		return &fault.Fault{Code: fault.Unreachable, What: err.Error(), Err: err}
	}
	return fault.New(fault.StoreFailed, "%w", err)
}
