package backend

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/emitd/emitd/cmd/emitd/internal/config"
	"github.com/emitd/emitd/internal/admin/fault"
	"github.com/emitd/emitd/storage"
	"github.com/emitd/emitd/storage/postgres"
)

var postgresDriver = driver{
	open: openPostgres,
	status: func(ctx context.Context, o Options) ([]Migration, error) {
		return postgresStatus(ctx, postgresConfig(o))
	},
	migrate: func(ctx context.Context, o Options) ([]Migration, error) {
		return fromPostgres(postgres.Migrate(ctx, postgresConfig(o), postgres.Version))
	},
	sql: postgresSQL,
}

func postgresConfig(o Options) postgres.Config {
	c := o.Config
	return postgres.Config{
		URL: c.Store.URL, Schema: c.Store.Schema, Prefix: c.Store.Prefix, Notify: c.Store.Notify,
		MaxConns: c.Store.MaxConnections, QueryTimeout: c.Timing().QueryTimeout, Logger: o.Logger,
	}
}

func openPostgres(ctx context.Context, o Options) (*Store, error) {
	cfg := postgresConfig(o)
	migrated, err := prepare(ctx, cfg, o.Policy)
	if err != nil {
		return nil, err
	}
	s, err := postgres.OpenConfig(ctx, cfg)
	if err != nil {
		return nil, err
	}
	if o.Policy != ReadOnly {
		if err := Writable(ctx, s); err != nil {
			s.Close()
			return nil, err
		}
	}
	opened := &Store{Store: s, Kind: "postgres", Migrated: migrated, close: func() error {
		s.Close()
		return nil
	}}
	if cfg.Notify != postgres.NotifyPoll {
		opened.wakes = s.CheckNotifications
	}
	return opened, nil
}

// prepare applies the policy.
func prepare(ctx context.Context, cfg postgres.Config, p Policy) ([]Migration, error) {
	if p == Auto {
		have, err := postgresStatus(ctx, cfg)
		if err != nil {
			return nil, err
		}
		for _, m := range have {
			if !m.AppliedAt.IsZero() {
				return nil, nil // not empty: migrating an older schema is left to the operator
			}
		}
	}
	if p == Auto || p == Always {
		return fromPostgres(postgres.Migrate(ctx, cfg, postgres.Version))
	}
	return nil, nil
}

// probe is the name and the owner of the lock that shows that a store is writable. All probes share one
// owner, so none waits for another, not even for one that crashed while it held the lock.
const probe = "emit:probe"

// Writable acquires and releases a lock. It detects a standby, which answers every read but accepts no
// heartbeat.
func Writable(ctx context.Context, s storage.Locker) error {
	held, err := s.Acquire(ctx, probe, probe, time.Second, storage.Lock{})
	if err == nil {
		err = s.Release(ctx, held)
	}
	if err != nil && !errors.Is(err, storage.ErrLockLost) { // another probe released it
		return fmt.Errorf("write to the store: %w", err)
	}
	return nil
}

// postgresSQL returns the steps after a version, each in a transaction.
func postgresSQL(c config.Config, from int) (string, error) {
	if from < 0 || from > postgres.Version {
		return "", fmt.Errorf("there is no version %d, the newest is %d", from, postgres.Version)
	}
	var b strings.Builder
	for v := from + 1; v <= postgres.Version; v++ {
		text, err := postgres.MigrationSQL(postgresConfig(Options{Config: c}), v, true)
		if err != nil {
			return "", err
		}
		fmt.Fprintf(&b, "begin;\n%scommit;\n", text)
	}
	return b.String(), nil
}

// postgresStatus lists the versions.
func postgresStatus(ctx context.Context, cfg postgres.Config) ([]Migration, error) {
	return fromPostgres(postgres.MigrationStatus(ctx, cfg))
}

func fromPostgres(ms []postgres.Migration, err error) ([]Migration, error) {
	out := make([]Migration, len(ms))
	for i, m := range ms {
		out[i] = Migration{Version: m.Version, Name: m.Name, AppliedAt: m.AppliedAt}
	}
	return out, err
}

// sqlStates maps the server's error codes to faults.
var sqlStates = map[string]fault.Code{
	"25006": fault.ReadOnly,   // read_only_sql_transaction
	"42501": fault.NoRight,    // insufficient_privilege
	"28P01": fault.NoRight,    // invalid_password
	"28000": fault.NoRight,    // invalid_authorization_specification
	"3D000": fault.NoDatabase, // invalid_catalog_name
}

// postgresFault recognises an error of the server; nil for others.
func postgresFault(err error) *fault.Fault {
	var pg *pgconn.PgError
	if !errors.As(err, &pg) {
		return nil
	}
	if c, ok := sqlStates[pg.Code]; ok {
		return &fault.Fault{Code: c, What: err.Error(), Err: err}
	}
	return nil
}
