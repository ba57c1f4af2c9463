package sqlite

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/emitd/emitd/internal/schema"
	"github.com/emitd/emitd/internal/sqlitefile"
	"github.com/emitd/emitd/storage"
)

//go:embed migrations/*.sql
var migrationFiles embed.FS

// Migration is one version of the schema.
type Migration struct {
	Version   int       `json:"version"`
	Name      string    `json:"name"`
	AppliedAt time.Time `json:"applied_at,omitzero"` // by the wall clock; zero = not applied
}

// version is the schema version that this program needs.
const version = 3

// migrations are all versions. In their texts, ~ stands for the table prefix.
var migrations = schema.Load(migrationFiles, version)

const migrationTable = `CREATE TABLE IF NOT EXISTS ~migration (
    version    INTEGER PRIMARY KEY,
    name       TEXT    NOT NULL,
    applied_at INTEGER NOT NULL -- nanoseconds since 1970, wall clock
)`

// MigrationSQL returns the statements that bring a file from a version (0 = empty) to the one that
// this program needs. They can be applied by hand: sqlite3 FILE < migration.sql.
func MigrationSQL(prefix string, from int) (string, error) {
	if !validPrefix.MatchString(prefix) {
		return "", fmt.Errorf("table prefix %q does not match %s", prefix, validPrefix)
	}
	if from < 0 || from > len(migrations) {
		return "", fmt.Errorf("there is no version %d, the newest is %d", from, len(migrations))
	}
	var b strings.Builder
	b.WriteString("PRAGMA journal_mode = WAL;\n")
	for _, m := range migrations[from:] {
		fmt.Fprintf(&b, "\n-- version %d: %s\nBEGIN IMMEDIATE;\n%s;\n\n%s\nINSERT INTO ~migration VALUES (%d, '%s', unixepoch() * 1000000000);\nCOMMIT;\n",
			m.Version, m.Name, migrationTable, strings.TrimSpace(m.Up), m.Version, m.Name)
	}
	return strings.ReplaceAll(b.String(), "~", prefix), nil
}

// Migrate brings a file's schema to the version of this program and returns the versions that it
// applied. It creates the file as needed, unless MustExist is set.
func Migrate(ctx context.Context, cfg Config) ([]Migration, error) {
	var before []Migration
	cfg.NoMigrate = false
	after, err := withSchema(ctx, cfg, func(ctx context.Context, s *Store, c *session) error {
		var err error
		if before, err = appliedMigrations(ctx, c); err != nil {
			return err
		}
		return s.fitSchema(ctx, c)
	})
	if err != nil {
		return nil, fmt.Errorf("migrate %s: %w", cfg.Path, err)
	}
	return after[min(len(before), len(after)):], nil
}

// MigrationStatus lists every version that the file or the program knows. Versions that were not
// applied have no time. It changes nothing.
func MigrationStatus(ctx context.Context, cfg Config) ([]Migration, error) {
	cfg.MustExist = true
	applied, err := withSchema(ctx, cfg, func(context.Context, *Store, *session) error { return nil })
	if err != nil {
		return nil, fmt.Errorf("migration status of %s: %w", cfg.Path, err)
	}
	for _, m := range migrations[min(len(applied), len(migrations)):] {
		applied = append(applied, Migration{Version: m.Version, Name: m.Name})
	}
	return applied, nil
}

// withSchema runs fn with a connection to a file whose schema may not fit. It returns the versions
// that are applied afterwards.
func withSchema(ctx context.Context, cfg Config, fn func(context.Context, *Store, *session) error) ([]Migration, error) {
	s, err := prepare(cfg)
	if err != nil {
		return nil, err
	}
	ctx, cancel := s.opening(ctx)
	defer cancel()
	c, err := s.openSession(ctx)
	if err != nil {
		return nil, errors.Join(err, s.Close())
	}
	applied, err := func() ([]Migration, error) {
		if err := fn(ctx, s, c); err != nil {
			return nil, err
		}
		return appliedMigrations(ctx, c)
	}()
	c.close()
	return applied, errors.Join(s.explain(err), s.Close())
}

// fitSchema makes sure that the file has the program's schema version.
func (s *Store) fitSchema(ctx context.Context, c *session) error {
	for {
		applied, err := appliedMigrations(ctx, c)
		if err != nil {
			return s.explain(err)
		}
		have, want := len(applied), len(migrations)
		switch {
		case have == want:
			return nil
		case have > want:
			return &storage.SchemaError{Have: have, Want: want, Hint: "a newer emitd has migrated this file: use that version, or another file"}
		case s.cfg.NoMigrate:
			return &storage.SchemaError{Have: have, Want: want, Hint: "run emitd migrate up --store sqlite://" + s.cfg.Path}
		}
		if err := s.applyNext(ctx, c, have); err != nil {
			return s.explain(err)
		}
	}
}

// applyNext applies the version after have, unless another process was faster.
func (s *Store) applyNext(ctx context.Context, c *session, have int) error {
	if err := sqlitefile.RetryBusy(ctx, func() error { return c.Run(ctx, "BEGIN IMMEDIATE") }); err != nil {
		return err
	}
	applied, err := appliedMigrations(ctx, c)
	if err == nil && len(applied) == have {
		err = s.apply(ctx, c, migrations[have])
	}
	if err != nil {
		c.Rollback(ctx)
		return err
	}
	return c.Run(ctx, "COMMIT")
}

func (s *Store) apply(ctx context.Context, c *session, m schema.Step) error {
	for _, text := range []string{migrationTable, m.Up} {
		if err := c.Run(ctx, strings.ReplaceAll(text, "~", c.Prefix)); err != nil {
			return fmt.Errorf("apply version %d (%s): %w", m.Version, m.Name, err)
		}
	}
	_, err := c.Conn.ExecContext(ctx, "INSERT INTO "+c.Prefix+"migration VALUES (?, ?, ?)", m.Version, m.Name, nanos(s.host.wall()))
	if err != nil {
		return fmt.Errorf("apply version %d (%s): %w", m.Version, m.Name, err)
	}
	return nil
}

// appliedMigrations lists the versions that the file records as applied, oldest first.
func appliedMigrations(ctx context.Context, c *session) (out []Migration, err error) {
	var tables int
	err = sqlitefile.RetryBusy(ctx, func() error {
		return c.Conn.QueryRowContext(ctx, "SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name = ?", c.Prefix+"migration").Scan(&tables)
	})
	if err != nil || tables == 0 {
		return nil, err
	}
	err = sqlitefile.RetryBusy(ctx, func() error {
		out = nil
		q := &query{c: c, ctx: ctx}
		q.each("SELECT version, name, applied_at FROM ~migration ORDER BY version", nil, func(scan func(...any) bool) {
			var m Migration
			if scan(&m.Version, &m.Name, at{&m.AppliedAt}) {
				out = append(out, m)
			}
		})
		return q.err
	})
	return out, err
}
