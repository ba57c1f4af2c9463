package postgres

import (
	"context"
	"embed"
	"fmt"
	"io/fs"
	"path"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/emitd/emitd/storage"
)

// Version is the schema version that this program needs.
const Version = 1

//go:embed migrations/*.sql
var migrationFiles embed.FS

// Migration is one step of the schema.
type Migration struct {
	Version int
	Name    string
	// Compatible is the oldest program, by the version it needs, that works with this one: a
	// deployment migrates first and replaces programs afterwards.
	Compatible int
	// AppliedAt is zero for a step that was not taken.
	AppliedAt time.Time
}

// compatible lists the steps that programs older than themselves still work with; a step that is
// not listed breaks all of them.
var compatible = map[int]int{}

// known lists the steps of this program, in order.
func known() []Migration {
	files, err := fs.Glob(migrationFiles, "migrations/*.up.sql")
	if err != nil || len(files) != Version {
		panic(fmt.Sprintf("postgres: %d migrations are embedded, want %d", len(files), Version))
	}
	out := make([]Migration, len(files))
	for i, file := range files {
		number, name, _ := strings.Cut(strings.TrimSuffix(path.Base(file), ".up.sql"), "_")
		if n, err := strconv.Atoi(number); err != nil || n != i+1 {
			panic("postgres: migrations are not numbered from 1: " + file)
		}
		out[i] = Migration{Version: i + 1, Name: name, Compatible: i + 1}
		if c, ok := compatible[i+1]; ok {
			out[i].Compatible = c
		}
	}
	return out
}

// Migrate brings the schema to a version, up or down, and returns the steps taken. Version is
// the newest; 0 removes every table, and with them the cluster's state. Each step is a
// transaction of its own, so an interrupted migration goes on where it stopped; two at once take
// turns. The role needs to create in the schema, and in the database if the schema is missing.
func Migrate(ctx context.Context, cfg Config, target int) ([]Migration, error) {
	var taken []Migration
	err := withConn(ctx, cfg, "migrate", func(conn *pgx.Conn, n names) error {
		if target < 0 || target > Version {
			return fmt.Errorf("there is no version %d, want 0 to %d", target, Version)
		}
		if err := bootstrap(ctx, conn, n); err != nil {
			return err
		}
		for {
			m, err := step(ctx, conn, n, target)
			if err != nil || m == nil {
				return err
			}
			taken = append(taken, *m)
		}
	})
	return taken, err
}

// MigrationStatus lists the steps that this program knows and those, of a newer program, that the
// schema has. Where nothing was applied, or there is no schema yet, no step has a time.
func MigrationStatus(ctx context.Context, cfg Config) ([]Migration, error) {
	out := known()
	err := withConn(ctx, cfg, "read the schema's version", func(conn *pgx.Conn, n names) error {
		applied, err := applied(ctx, conn, n)
		for _, m := range applied {
			if m.Version <= len(out) {
				out[m.Version-1] = m
			} else {
				out = append(out, m)
			}
		}
		return err
	})
	return out, err
}

// MigrationSQL returns one step as text, complete with the record of itself, for a database that
// this program may not change: run it in one transaction.
func MigrationSQL(cfg Config, version int, up bool) (string, error) {
	cfg.URL = "postgres://" // any: only the names count
	cfg, err := cfg.withDefaults()
	if err != nil {
		return "", fmt.Errorf("print a migration: %w", err)
	}
	if version < 1 || version > Version {
		return "", fmt.Errorf("print a migration: there is no version %d, want 1 to %d", version, Version)
	}
	n, m := cfg.names(), known()[version-1]
	if !up {
		return n.down(m), nil
	}
	text := n.up(m)
	if version == 1 {
		text = n.fill("schema", "create schema if not exists {{schema}};\n") + n.compile().get("bootstrap").String() + ";\n" + text
	}
	return text, nil
}

// up returns a step and its record.
func (n names) up(m Migration) string {
	return n.migration(m, "up") + n.fill("record", fmt.Sprintf(
		"insert into {{migration}} (version, name, compatible) values (%d, %s, %d);\n", m.Version, literal(m.Name), m.Compatible))
}

// down returns a step back. The first step takes the record's table with it.
func (n names) down(m Migration) string {
	if m.Version == 1 {
		return n.migration(m, "down") + n.fill("record", "drop table {{migration}};\n")
	}
	return n.migration(m, "down") + n.fill("record", fmt.Sprintf("delete from {{migration}} where version = %d;\n", m.Version))
}

// migration reads one file and fills in the names; its comments are for readers of the printed
// text too.
func (n names) migration(m Migration, direction string) string {
	file := fmt.Sprintf("migrations/%03d_%s.%s.sql", m.Version, m.Name, direction)
	text, err := migrationFiles.ReadFile(file)
	if err != nil {
		panic("postgres: " + err.Error())
	}
	return n.fill(file, string(text))
}

// include reads a part of a migration that has a file of its own.
func (n names) include(part string) string {
	text, err := migrationFiles.ReadFile("migrations/" + part + ".sql")
	if err != nil {
		panic("postgres: " + err.Error())
	}
	return n.fill(part, string(text))
}

// withConn connects and runs one thing.
func withConn(ctx context.Context, cfg Config, what string, do func(*pgx.Conn, names) error) error {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	cc, err := pgx.ParseConfig(cfg.URL)
	if err != nil {
		return fmt.Errorf("%s: store.url is no connection string: %s", what, redact(err.Error(), cfg.URL))
	}
	cfg.connection(cc, dialer.DialContext)
	conn, err := pgx.ConnectConfig(ctx, cc)
	if err != nil {
		return fmt.Errorf("%s: %w", what, explain(err, cfg))
	}
	defer conn.Close(context.WithoutCancel(ctx))
	if err := do(conn, cfg.names()); err != nil {
		return fmt.Errorf("%s: %w", what, explain(err, cfg))
	}
	return nil
}

// locked runs one transaction that no other migration of this store runs beside.
func locked(ctx context.Context, conn *pgx.Conn, n names, do func(pgx.Tx) error) error {
	return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "select pg_advisory_xact_lock(hashtextextended($1, 0))", n.scope()+":migrate"); err != nil {
			return err
		}
		return do(tx)
	})
}

// bootstrap makes what the first step needs. A schema that exists is not created: that would
// need a privilege on the database for nothing.
func bootstrap(ctx context.Context, conn *pgx.Conn, n names) error {
	return locked(ctx, conn, n, func(tx pgx.Tx) error {
		var schema, table bool
		if err := tx.QueryRow(ctx, "select to_regnamespace($1) is not null, to_regclass($2) is not null",
			pgx.Identifier{n.schema}.Sanitize(), n.table("migration")).Scan(&schema, &table); err != nil {
			return err
		}
		if !schema {
			if _, err := tx.Exec(ctx, n.fill("schema", "create schema {{schema}}")); err != nil {
				return err
			}
		}
		if table {
			return nil
		}
		_, err := tx.Exec(ctx, n.compile().get("bootstrap").String())
		return err
	})
}

// step takes the next step towards a version; nil if it is reached. The version is read under the
// lock.
func step(ctx context.Context, conn *pgx.Conn, n names, target int) (taken *Migration, err error) {
	err = locked(ctx, conn, n, func(tx pgx.Tx) error {
		have, err := applied(ctx, tx, n)
		if err != nil {
			return err
		}
		at := len(have)
		if at > 0 && have[at-1].Version > Version {
			return &storage.SchemaError{Have: have[at-1].Version, Want: Version, Hint: hintNewer}
		}
		var text string
		switch {
		case at < target:
			taken, text = &known()[at], n.up(known()[at])
		case at > target:
			taken, text = &have[at-1], n.down(have[at-1])
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
	rows, err := q.Query(ctx, "select to_regclass($1) is not null", n.table("migration"))
	if err != nil {
		return nil, err
	}
	if found, err := pgx.CollectExactlyOneRow(rows, pgx.RowTo[bool]); err != nil || !found {
		return nil, err
	}
	// As a number, because a session may write times in any style.
	rows, err = q.Query(ctx, n.fill("applied", "select version, name, compatible, (extract(epoch from applied_at) * 1000000)::bigint from {{migration}} order by version"))
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var out []Migration
	for rows.Next() {
		var m Migration
		var at int64
		if err := rows.Scan(&m.Version, &m.Name, &m.Compatible, &at); err != nil {
			return nil, err
		}
		m.AppliedAt = time.UnixMicro(at).UTC()
		out = append(out, m)
	}
	return out, rows.Err()
}

// What to do about a schema that does not fit.
const hintNewer = "a newer program migrated it: upgrade this one"

func hintMigrate(cfg Config) string {
	flags := ""
	if cfg.Schema != "emitd" && cfg.Schema != "" {
		flags += " --store.schema " + cfg.Schema
	}
	if cfg.Prefix != "" {
		flags += " --store.prefix " + cfg.Prefix
	}
	return "run: emitd migrate up --store <the same URL>" + flags
}

// checkSchema compares versions.
func (s *Store) checkSchema(ctx context.Context) error {
	var have []Migration
	ctx, cancel := context.WithTimeout(ctx, s.cfg.QueryTimeout)
	defer cancel()
	conn, leave, err := s.enter(ctx, "schema")
	if err != nil {
		return err
	}
	defer leave()
	if have, err = applied(ctx, conn, s.cfg.names()); err != nil {
		return err
	}
	if len(have) < Version {
		return &storage.SchemaError{Have: len(have), Want: Version, Hint: hintMigrate(s.cfg)}
	}
	newest := have[len(have)-1]
	if newest.Version > Version && newest.Compatible > Version {
		return &storage.SchemaError{Have: newest.Version, Want: Version, Hint: hintNewer}
	}
	return nil
}
