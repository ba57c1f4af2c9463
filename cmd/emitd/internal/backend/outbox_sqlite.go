package backend

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/emitd/emitd/cmd/emitd/internal/config"
	"github.com/emitd/emitd/internal/admin/fault"
	"github.com/emitd/emitd/internal/sqlitefile"
	"github.com/emitd/emitd/outbox"
	"github.com/emitd/emitd/outbox/sqlite"
)

var sqliteOutbox = outboxDriver{
	open: openSQLiteOutbox, migrate: migrateSQLiteOutbox, sql: sqliteOutboxSQL,
	status: func(ctx context.Context, o Options) ([]Migration, error) {
		cfg := sqliteOutboxConfig(o)
		if err := mustExist(cfg.Path); err != nil {
			return nil, err
		}
		db, err := openFile(cfg.Path, "mode=rw")
		if err != nil {
			return nil, err
		}
		defer db.Close()
		return fromSQLiteOutbox(sqlite.MigrationStatus(ctx, db, cfg))
	},
}

func sqliteOutboxConfig(o Options) sqlite.Config {
	c := o.Config
	path, _ := config.SQLitePath(c.OutboxURL())
	_, prefix := c.OutboxSchema()
	retention, dead := time.Duration(c.Outbox.Retention), time.Duration(c.Outbox.DeadRetention)
	if retention == 0 {
		retention = -1 // the library's value for none
	}
	if dead == 0 {
		dead = -1 // the library's value for ever
	}
	return sqlite.Config{
		Path: path, Prefix: prefix, Retention: retention, DeadRetention: dead,
		MaxRetained: int64(c.Outbox.MaxRetained), OnLag: c.Outbox.OnLag, Logger: o.Logger,
	}
}

func openSQLiteOutbox(ctx context.Context, o Options) (*Outbox, error) {
	var migrated []Migration
	if o.Policy == Auto || o.Policy == Always {
		var err error
		if migrated, err = migrateSQLiteOutbox(ctx, o); err != nil {
			return nil, err
		}
	}
	cfg := sqliteOutboxConfig(o)
	cfg.NoMigrate = true
	if err := mustExist(cfg.Path); err != nil {
		return nil, err
	}
	log, err := sqlite.Open(ctx, cfg)
	if err != nil {
		return nil, err
	}
	db, err := openFile(cfg.Path, "mode=rw")
	if err != nil {
		log.Close()
		return nil, err
	}
	pub, err := sqlite.New(db, cfg)
	if err != nil {
		log.Close()
		return nil, errors.Join(err, db.Close())
	}
	return &Outbox{
		Log: log, Operator: log, Kind: "sqlite", Tasks: log.Tasks(), Migrated: migrated,
		publish: func(ctx context.Context, messages []outbox.Message) error {
			return pub.InTx(ctx, db, func(tx *sqlite.Tx) error { return pub.Publish(ctx, tx, messages...) })
		},
		close: func(ctx context.Context) error {
			err := pub.Close(ctx)
			log.Close()
			return errors.Join(err, db.Close())
		},
	}, nil
}

// mustExist returns a fault if the file does not exist, for calls that must not create it.
func mustExist(path string) error {
	if _, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) {
		return fault.New(fault.Unreachable, "database file %s does not exist", path).
			Hint("correct the path; emitd migrate up --outbox creates the file")
	}
	return nil
}

// openFile returns a handle of a file.
func openFile(path, options string) (*sql.DB, error) {
	p := filepath.ToSlash(path)
	if !strings.HasPrefix(p, "/") {
		p = "/" + p
	}
	return sql.Open("sqlite", (&url.URL{Scheme: "file", Path: p, RawQuery: options}).String())
}

// migrateSQLiteOutbox migrates the file and creates it if it does not exist.
func migrateSQLiteOutbox(ctx context.Context, o Options) ([]Migration, error) {
	cfg := sqliteOutboxConfig(o)
	db, err := openFile(cfg.Path, "mode=rwc&_pragma=busy_timeout(2000)")
	if err != nil {
		return nil, err
	}
	defer db.Close()
	if _, err := os.Stat(filepath.Dir(cfg.Path)); errors.Is(err, fs.ErrNotExist) {
		return nil, fault.New(fault.Unreachable, "the directory of the database file %s does not exist", cfg.Path)
	}
	sqlitefile.Private(cfg.Path)
	if _, err := db.ExecContext(ctx, "PRAGMA journal_mode = WAL"); err != nil { // readers must not wait for a writer
		return nil, fmt.Errorf("write ahead in %s: %w", cfg.Path, err)
	}
	return fromSQLiteOutbox(sqlite.Migrate(ctx, db, cfg, sqlite.Version))
}

func fromSQLiteOutbox(ms []sqlite.Migration, err error) ([]Migration, error) {
	out := make([]Migration, len(ms))
	for i, m := range ms {
		out[i] = Migration{Version: m.Version, Name: m.Name, AppliedAt: m.AppliedAt}
	}
	return out, err
}

// sqliteOutboxSQL returns the steps after a version.
func sqliteOutboxSQL(c config.Config, from int) (string, error) {
	if from < 0 || from > sqlite.Version {
		return "", fmt.Errorf("there is no version %d, the newest is %d", from, sqlite.Version)
	}
	var b strings.Builder
	for v := from + 1; v <= sqlite.Version; v++ {
		text, err := sqlite.MigrationSQL(sqliteOutboxConfig(Options{Config: c}), v, true)
		if err != nil {
			return "", err
		}
		b.WriteString(text)
	}
	return b.String(), nil
}
