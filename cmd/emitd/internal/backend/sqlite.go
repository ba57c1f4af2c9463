package backend

import (
	"context"

	"github.com/emitd/emitd/cmd/emitd/internal/config"
	"github.com/emitd/emitd/storage/sqlite"
)

var sqliteDriver = driver{
	open: openSQLite,
	status: func(ctx context.Context, o Options) ([]Migration, error) {
		return fromSQLite(sqlite.MigrationStatus(ctx, sqliteConfig(o.Config)))
	},
	migrate: func(ctx context.Context, o Options) ([]Migration, error) {
		return fromSQLite(sqlite.Migrate(ctx, sqliteConfig(o.Config)))
	},
	sql: func(cfg config.Config, from int) (string, error) {
		prefix := cfg.Store.Prefix
		if prefix == "" {
			prefix = "emitd_"
		}
		return sqlite.MigrationSQL(prefix, from)
	},
}

func sqliteConfig(cfg config.Config) sqlite.Config {
	path, _ := config.SQLitePath(cfg.Store.URL)
	return sqlite.Config{Path: path, Prefix: cfg.Store.Prefix, QueryTimeout: cfg.Timing().QueryTimeout}
}

func openSQLite(ctx context.Context, o Options) (*Store, error) {
	cfg := sqliteConfig(o.Config)
	cfg.Logger, cfg.Meter = o.Logger, o.Meter
	cfg.MustExist = o.Policy == ReadOnly
	cfg.NoMigrate = o.Policy == ReadOnly || o.Policy == Never
	s, err := sqlite.OpenConfig(ctx, cfg)
	if err != nil {
		return nil, err
	}
	return &Store{Store: s, Kind: "sqlite", close: s.Close, blocker: s.WriteLockHolder}, nil
}

func fromSQLite(ms []sqlite.Migration, err error) ([]Migration, error) {
	out := make([]Migration, len(ms))
	for i, m := range ms {
		out[i] = Migration{Version: m.Version, Name: m.Name, AppliedAt: m.AppliedAt}
	}
	return out, err
}
