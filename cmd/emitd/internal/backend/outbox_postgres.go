package backend

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/emitd/emitd/cmd/emitd/internal/config"
	"github.com/emitd/emitd/outbox"
	"github.com/emitd/emitd/outbox/postgres"
)

var postgresOutbox = outboxDriver{
	open: openPostgresOutbox, status: postgresOutboxStatus, migrate: migratePostgresOutbox, sql: postgresOutboxSQL,
}

func postgresOutboxStatus(ctx context.Context, o Options) ([]Migration, error) {
	return fromPostgresOutbox(postgres.MigrationStatus(ctx, postgresOutboxConfig(o)))
}

func postgresOutboxConfig(o Options) postgres.Config {
	c := o.Config
	schema, prefix := c.OutboxSchema()
	retention, dead := time.Duration(c.Outbox.Retention), time.Duration(c.Outbox.DeadRetention)
	if retention == 0 {
		retention = -1 // the library's value for none
	}
	if dead == 0 {
		dead = -1 // the library's value for ever
	}
	return postgres.Config{
		URL: c.OutboxURL(), Schema: schema, Prefix: prefix, Notify: c.Store.Notify, MaxConns: c.Outbox.MaxConnections,
		Retention: retention, DeadRetention: dead, MaxRetained: int64(c.Outbox.MaxRetained), OnLag: c.Outbox.OnLag, Logger: o.Logger,
	}
}

func openPostgresOutbox(ctx context.Context, o Options) (*Outbox, error) {
	migrated, err := prepareOutbox(ctx, o)
	if err != nil {
		return nil, err
	}
	cfg := postgresOutboxConfig(o)
	log, err := postgres.Open(ctx, cfg)
	if err != nil {
		return nil, err
	}
	pool, pub, err := postgresPublisher(ctx, cfg)
	if err != nil {
		log.Close()
		return nil, err
	}
	return &Outbox{
		Log: log, Operator: log, Kind: "postgres", Tasks: log.Tasks(), Migrated: migrated,
		publish: func(ctx context.Context, messages []outbox.Message) error {
			return pub.InTx(ctx, pool, func(tx *postgres.Tx) error { return pub.Publish(ctx, tx, messages...) })
		},
		close: func(ctx context.Context) error {
			err := pub.Close(ctx)
			log.Close()
			pool.Close()
			return err
		},
	}, nil
}

// prepareOutbox applies the policy, as prepare does for the cluster store.
func prepareOutbox(ctx context.Context, o Options) ([]Migration, error) {
	if o.Policy == Auto {
		have, err := postgresOutboxStatus(ctx, o)
		if err != nil {
			return nil, err
		}
		if len(pending(have)) < len(have) {
			return nil, nil // not empty: migrating an older schema is left to the operator
		}
	}
	if o.Policy == Auto || o.Policy == Always {
		return migratePostgresOutbox(ctx, o)
	}
	return nil, nil
}

// postgresPublisher makes a publisher for experiments, with a pool that connects at the first publish.
func postgresPublisher(ctx context.Context, cfg postgres.Config) (*pgxpool.Pool, *postgres.Publisher, error) {
	pc, err := pgxpool.ParseConfig(cfg.URL)
	if err != nil {
		return nil, nil, errors.New("outbox.url is not a valid connection string of Postgres")
	}
	pc.MinConns, pc.MaxConns = 0, 2
	pc.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeCacheDescribe // a pooler may share the session
	pool, err := pgxpool.NewWithConfig(ctx, pc)
	if err != nil {
		return nil, nil, fmt.Errorf("create a pool for publishing: %w", err)
	}
	pub, err := postgres.New(pool, cfg)
	if err != nil {
		pool.Close()
		return nil, nil, err
	}
	return pool, pub, nil
}

func migratePostgresOutbox(ctx context.Context, o Options) ([]Migration, error) {
	return fromPostgresOutbox(postgres.Migrate(ctx, postgresOutboxConfig(o), postgres.Version))
}

func fromPostgresOutbox(ms []postgres.Migration, err error) ([]Migration, error) {
	out := make([]Migration, len(ms))
	for i, m := range ms {
		out[i] = Migration{Version: m.Version, Name: m.Name, AppliedAt: m.AppliedAt}
	}
	return out, err
}

// postgresOutboxSQL returns the steps after a version, each in a transaction.
func postgresOutboxSQL(c config.Config, from int) (string, error) {
	if from < 0 || from > postgres.Version {
		return "", fmt.Errorf("there is no version %d, the newest is %d", from, postgres.Version)
	}
	var b strings.Builder
	for v := from + 1; v <= postgres.Version; v++ {
		text, err := postgres.MigrationSQL(postgresOutboxConfig(Options{Config: c}), v, true)
		if err != nil {
			return "", err
		}
		fmt.Fprintf(&b, "begin;\n%scommit;\n", text)
	}
	return b.String(), nil
}
