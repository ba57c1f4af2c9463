package sqlite

import (
	"context"
	"database/sql"
	"embed"
	"fmt"
	"strings"
	"time"

	"github.com/emitd/emitd/internal/schema"
	"github.com/emitd/emitd/internal/sqlitefile"
	"github.com/emitd/emitd/outbox"
)

// Version is the schema version that this program needs.
const Version = 1

//go:embed migrations/*.sql
var migrationFiles embed.FS

// Migration is one step of the schema.
type Migration struct {
	Version int
	Name    string
	// AppliedAt is zero for a step that was not applied.
	AppliedAt time.Time
}

// known returns the steps that this program knows, in order.
func known() []schema.Step { return schema.Load(migrationFiles, Version) }

const migrationTable = `CREATE TABLE IF NOT EXISTS ~outbox_migration (
    version    INTEGER PRIMARY KEY,
    name       TEXT    NOT NULL,
    applied_at INTEGER NOT NULL
);
`

// Migrate migrates the tables to a version, up or down, and returns the applied steps. The newest version
// is Version; 0 removes every table, and with them every message. Each step is a transaction of its own,
// so an interrupted migration continues where it stopped. Two migrations at once wait for each other.
func Migrate(ctx context.Context, db *sql.DB, cfg Config, target int) ([]Migration, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, fmt.Errorf("migrate the outbox: %w", err)
	}
	if target < 0 || target > Version {
		return nil, fmt.Errorf("migrate the outbox: there is no version %d, want 0 to %d", target, Version)
	}
	ctx, cancel := context.WithTimeout(ctx, max(cfg.QueryTimeout, 10*time.Second))
	defer cancel()
	conn, err := db.Conn(ctx)
	if err != nil {
		return nil, explain("migrate the outbox", "", err)
	}
	defer conn.Close()
	var taken []Migration
	for {
		m, err := migrateOnce(ctx, conn, cfg, target)
		if err != nil || m == nil {
			return taken, explain("migrate the outbox", "", err)
		}
		taken = append(taken, *m)
	}
}

// migrateOnce applies the next step towards a version. It returns nil if the version is reached. It reads
// the current version under the write lock.
func migrateOnce(ctx context.Context, conn *sql.Conn, cfg Config, target int) (taken *Migration, err error) {
	run := func(text string) error {
		_, err := conn.ExecContext(ctx, strings.ReplaceAll(text, "~", cfg.Prefix))
		return err
	}
	if err := sqlitefile.RetryBusy(ctx, func() error { return run("BEGIN IMMEDIATE") }); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			// After some errors SQLite has already rolled back.
			_, _ = conn.ExecContext(context.WithoutCancel(ctx), "ROLLBACK")
			taken = nil
		}
	}()
	have, err := applied(ctx, conn, cfg.Prefix)
	if err != nil {
		return nil, err
	}
	steps, at := known(), len(have)
	switch {
	case at > len(steps):
		return nil, tooNew(at)
	case at < target:
		taken = &Migration{Version: at + 1, Name: steps[at].Name}
		err = run(migrationTable + steps[at].Up + fmt.Sprintf("INSERT INTO ~outbox_migration VALUES (%d, '%s', %d);", at+1, taken.Name, cfg.Now().UnixNano()))
	case at > target:
		taken = &Migration{Version: at, Name: steps[at-1].Name}
		err = run(steps[at-1].Down + fmt.Sprintf("DELETE FROM ~outbox_migration WHERE version = %d;", at))
		if err == nil && at == 1 {
			err = run("DROP TABLE ~outbox_migration")
		}
	}
	if err != nil {
		return nil, err
	}
	return taken, run("COMMIT")
}

// MigrationStatus lists the steps that this program knows, and those of a newer program that the file
// has. Steps that were not applied have a zero AppliedAt. It changes nothing.
func MigrationStatus(ctx context.Context, db *sql.DB, cfg Config) ([]Migration, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return nil, fmt.Errorf("read the outbox's version: %w", err)
	}
	have, err := applied(ctx, db, cfg.Prefix)
	if err != nil {
		return nil, explain("read the outbox's version", "", err)
	}
	steps := known()
	for _, s := range steps[min(len(have), len(steps)):] {
		have = append(have, Migration{Version: s.Version, Name: s.Name})
	}
	return have, nil
}

// MigrationSQL returns one step as text, including the statement that records it, to apply it by hand:
// sqlite3 FILE < step.sql.
func MigrationSQL(cfg Config, version int, up bool) (string, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return "", fmt.Errorf("print a migration: %w", err)
	}
	if version < 1 || version > Version {
		return "", fmt.Errorf("print a migration: there is no version %d, want 1 to %d", version, Version)
	}
	m := known()[version-1]
	text := fmt.Sprintf("%s%sINSERT INTO ~outbox_migration VALUES (%d, '%s', unixepoch() * 1000000000);\n", migrationTable, m.Up, m.Version, m.Name)
	if version == 1 {
		text = "PRAGMA journal_mode = WAL;\nBEGIN IMMEDIATE;\n" + text
	} else {
		text = "BEGIN IMMEDIATE;\n" + text
	}
	if !up {
		text = fmt.Sprintf("BEGIN IMMEDIATE;\n%sDELETE FROM ~outbox_migration WHERE version = %d;\n", m.Down, m.Version)
		if version == 1 {
			text += "DROP TABLE ~outbox_migration;\n"
		}
	}
	return strings.ReplaceAll(text+"COMMIT;\n", "~", cfg.Prefix), nil
}

// querier is a handle, a connection or a transaction.
type querier interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

// applied returns the steps that the file has; none if there is no migration table.
func applied(ctx context.Context, db querier, prefix string) (out []Migration, err error) {
	err = sqlitefile.RetryBusy(ctx, func() error {
		out = nil
		rows, err := db.QueryContext(ctx, "SELECT version, name, applied_at FROM "+prefix+"outbox_migration ORDER BY version")
		if err != nil {
			return err
		}
		defer rows.Close()
		for rows.Next() {
			var m Migration
			var at int64
			if err := rows.Scan(&m.Version, &m.Name, &at); err != nil {
				return err
			}
			m.AppliedAt = time.Unix(0, at)
			out = append(out, m)
		}
		return rows.Err()
	})
	if err != nil && strings.Contains(err.Error(), "no such table") {
		return nil, nil
	}
	return out, err
}

// checkSchema checks the version of the tables. Its errors say what to do.
func checkSchema(ctx context.Context, db querier, prefix string) error {
	have, err := applied(ctx, db, prefix)
	switch {
	case err != nil:
		return err
	case len(have) < Version:
		return fmt.Errorf("%w: the outbox has version %d, this program needs %d: %s", outbox.ErrSchema, len(have), Version, hintMigrate)
	case len(have) > Version:
		return tooNew(len(have))
	}
	return nil
}

func tooNew(have int) error {
	return fmt.Errorf("%w: the outbox has version %d, this program knows %d: a newer program migrated it, upgrade this one", outbox.ErrSchema, have, Version)
}
