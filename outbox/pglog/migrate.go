package pglog

import (
	"bytes"
	"context"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strconv"
	"strings"
	"text/template"
	"time"

	"github.com/jackc/pgx/v5"

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
	// AppliedAt is zero for a step that was not taken.
	AppliedAt time.Time
}

// steps lists those of this program, in order.
func steps() []Migration {
	files, err := fs.Glob(migrationFiles, "migrations/*.up.sql")
	if err != nil || len(files) != Version {
		panic(fmt.Sprintf("pglog: %d migrations are embedded, want %d", len(files), Version))
	}
	out := make([]Migration, len(files))
	for i, file := range files {
		number, name, _ := strings.Cut(strings.TrimSuffix(path.Base(file), ".up.sql"), "_")
		if n, err := strconv.Atoi(number); err != nil || n != i+1 {
			panic("pglog: migrations are not numbered from 1: " + file)
		}
		out[i] = Migration{Version: i + 1, Name: name}
	}
	return out
}

// Migrate brings the schema to a version, up or down, and returns the steps taken. Version is the
// newest; 0 removes every table, and with them every message. Each step is a transaction of its own,
// so an interrupted migration goes on where it stopped; two at once take turns. The role needs to
// create in the schema, and in the database if the schema is missing. Programs then need usage of the
// schema and its sequences, select, insert, update and delete on its tables, and to execute its
// functions; those that only publish need insert on outbox and outbox_delayed and usage of the
// sequence.
func Migrate(ctx context.Context, cfg Config, target int) ([]Migration, error) {
	var taken []Migration
	err := withConn(ctx, cfg, "migrate the outbox", func(conn *pgx.Conn, cfg Config) error {
		if target < 0 || target > Version {
			return fmt.Errorf("there is no version %d, want 0 to %d", target, Version)
		}
		if err := bootstrap(ctx, conn, cfg); err != nil {
			return err
		}
		for {
			m, err := step(ctx, conn, cfg, target)
			if err != nil || m == nil {
				return err
			}
			taken = append(taken, *m)
		}
	})
	return taken, err
}

// MigrationStatus lists the steps that this program knows and those, of a newer program, that the
// schema has. Those that were not taken have no time. It changes nothing.
func MigrationStatus(ctx context.Context, cfg Config) (out []Migration, err error) {
	err = withConn(ctx, cfg, "read the outbox's version", func(conn *pgx.Conn, cfg Config) error {
		have, err := applied(ctx, conn, cfg.names())
		all := steps()
		out = slices.Concat(have, all[min(len(have), len(all)):])
		return err
	})
	return out, err
}

// MigrationSQL returns one step as text, complete with the record of itself, for a database that this
// program may not change: run it in one transaction.
func MigrationSQL(cfg Config, version int, up bool) (string, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return "", fmt.Errorf("print a migration: %w", err)
	}
	if version < 1 || version > Version {
		return "", fmt.Errorf("print a migration: there is no version %d, want 1 to %d", version, Version)
	}
	m := steps()[version-1]
	if !up {
		return m.down(cfg), nil
	}
	text := m.up(cfg)
	if version == 1 {
		text = cfg.fill("create schema if not exists {{schema}};\n"+migrationTable) + text
	}
	return text, nil
}

const migrationTable = `create table if not exists {{outbox_migration}} (
	version    integer primary key,
	name       text not null,
	applied_at timestamptz not null default clock_timestamp()
);
`

// up returns a step and its record.
func (m Migration) up(cfg Config) string {
	return m.text(cfg, "up") + cfg.fill(fmt.Sprintf("insert into {{outbox_migration}} (version, name) values (%d, %s);\n", m.Version, literal(m.Name)))
}

// down returns a step back. The first step takes the record's table with it.
func (m Migration) down(cfg Config) string {
	if m.Version == 1 {
		return m.text(cfg, "down") + cfg.fill("drop table {{outbox_migration}};\n")
	}
	return m.text(cfg, "down") + cfg.fill(fmt.Sprintf("delete from {{outbox_migration}} where version = %d;\n", m.Version))
}

func (m Migration) text(cfg Config, direction string) string {
	text, err := migrationFiles.ReadFile(fmt.Sprintf("migrations/%03d_%s.%s.sql", m.Version, m.Name, direction))
	if err != nil {
		panic("pglog: " + err.Error())
	}
	return cfg.fill(string(text))
}

// fill expands a template of a migration. An unknown name is a programming error.
func (c Config) fill(text string) string {
	n := c.names()
	f := template.FuncMap{
		"schema":   func() string { return pgx.Identifier{n.schema}.Sanitize() },
		"name":     func(s string) string { return pgx.Identifier{n.prefix + s}.Sanitize() },
		"function": n.table,
		"text":     func(s string) string { return literal(n.prefix + s) },
		"regclass": func(s string) string { return literal(n.table(s)) + "::regclass" },
		"scope":    n.locks,
		"width":    func() int64 { return c.width },
		"room":     func() int64 { return (minAhead - 1) * c.width },
	}
	for _, t := range []string{
		"outbox", "outbox_id", "outbox_partition", "outbox_state", "outbox_delayed", "outbox_subscription", "outbox_cursor",
		"outbox_lane", "outbox_parked", "outbox_dead", "outbox_migration",
	} {
		f[t] = func() string { return n.table(t) }
	}
	var out bytes.Buffer
	if err := template.Must(template.New("").Funcs(f).Parse(text)).Execute(&out, nil); err != nil {
		panic("pglog: " + err.Error())
	}
	return out.String()
}

// withConn connects and runs one thing.
func withConn(ctx context.Context, cfg Config, what string, do func(*pgx.Conn, Config) error) error {
	cfg, err := cfg.withURL()
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	cc, err := pgx.ParseConfig(cfg.URL)
	if err != nil {
		return fmt.Errorf("%s: outbox.url is no connection string: %s", what, redact(err.Error(), cfg.URL))
	}
	cc.DialFunc, cc.ConnectTimeout = dialer.DialContext, cfg.QueryTimeout
	cc.DefaultQueryExecMode = pgx.QueryExecModeSimpleProtocol
	conn, err := pgx.ConnectConfig(ctx, cc)
	if err != nil {
		return cfg.explain(what, err)
	}
	defer conn.Close(context.WithoutCancel(ctx))
	return cfg.explain(what, do(conn, cfg))
}

// locked runs one transaction that no other migration of this log runs beside.
func locked(ctx context.Context, conn *pgx.Conn, n names, do func(pgx.Tx) error) error {
	return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "select pg_advisory_xact_lock(hashtextextended($1, 0))", n.scope()+":migrate"); err != nil {
			return err
		}
		return do(tx)
	})
}

// bootstrap makes what the first step needs. A schema that exists is not created: that would need a
// privilege on the database for nothing.
func bootstrap(ctx context.Context, conn *pgx.Conn, cfg Config) error {
	return locked(ctx, conn, cfg.names(), func(tx pgx.Tx) error {
		var schema, table bool
		err := tx.QueryRow(ctx, "select to_regnamespace($1) is not null, to_regclass($2) is not null",
			pgx.Identifier{cfg.Schema}.Sanitize(), cfg.names().table("outbox_migration")).Scan(&schema, &table)
		if err != nil || schema && table {
			return err
		}
		text := migrationTable
		if !schema {
			text = "create schema {{schema}};\n" + text
		}
		_, err = tx.Exec(ctx, cfg.fill(text))
		return err
	})
}

// step takes the next step towards a version; nil if it is reached. The version is read under the lock.
func step(ctx context.Context, conn *pgx.Conn, cfg Config, target int) (taken *Migration, err error) {
	err = locked(ctx, conn, cfg.names(), func(tx pgx.Tx) error {
		have, err := applied(ctx, tx, cfg.names())
		if err != nil {
			return err
		}
		all, at := steps(), len(have)
		var text string
		switch {
		case at > len(all):
			return tooNew(at)
		case at < target:
			taken, text = &all[at], all[at].up(cfg)
		case at > target:
			taken, text = &all[at-1], all[at-1].down(cfg)
		default:
			return nil
		}
		_, err = tx.Exec(ctx, text)
		return err
	})
	if err != nil {
		return nil, err
	}
	return taken, nil
}

// querier is a connection, a pool or a transaction.
type querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

// applied lists the steps that the schema has; none where there is no schema.
func applied(ctx context.Context, q querier, n names) ([]Migration, error) {
	// Asked first, because an error would end the transaction that this may be part of.
	rows, err := q.Query(ctx, "select to_regclass($1) is not null", n.table("outbox_migration"))
	if err != nil {
		return nil, err
	}
	if found, err := pgx.CollectExactlyOneRow(rows, pgx.RowTo[bool]); err != nil || !found {
		return nil, err
	}
	// As a number, because a session may write times in any style.
	rows, err = q.Query(ctx, n.q("select version, name, (extract(epoch from applied_at) * 1000000)::bigint from ~outbox_migration order by version"))
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (m Migration, err error) {
		var at int64
		err = row.Scan(&m.Version, &m.Name, &at)
		m.AppliedAt = time.UnixMicro(at)
		return m, err
	})
}

// checkSchema says what to do about tables that do not fit.
func checkSchema(ctx context.Context, q querier, n names) error {
	have, err := applied(ctx, q, n)
	switch {
	case err != nil:
		return err
	case len(have) < Version:
		return fmt.Errorf("%w: the outbox has version %d, this program needs %d: %s", outbox.ErrSchema, len(have), Version, hintMigrate)
	case len(have) > Version:
		return tooNew(len(have))
	}
	rows, err := q.Query(ctx, "select seqcache from pg_sequence where seqrelid = to_regclass($1)", n.table("outbox_id"))
	if err != nil {
		return err
	}
	cache, err := pgx.CollectExactlyOneRow(rows, pgx.RowTo[int64])
	if errors.Is(err, pgx.ErrNoRows) {
		return fmt.Errorf("%w: the sequence %s is missing: restore it, above all ids of the log", outbox.ErrSchema, n.table("outbox_id"))
	}
	if err == nil && cache != 1 {
		err = fmt.Errorf("%w: the sequence %s has a cache, by which keys lose their order: alter sequence %[2]s cache 1", outbox.ErrSchema, n.table("outbox_id"))
	}
	return err
}

func tooNew(have int) error {
	return fmt.Errorf("%w: the outbox has version %d, this program knows %d: a newer program migrated it, upgrade this one", outbox.ErrSchema, have, Version)
}
