package postgres

import (
	"context"
	"embed"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/emitd/emitd/internal/pgerror"
	"github.com/emitd/emitd/internal/pgschema"
	"github.com/emitd/emitd/internal/schema"
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

// versions is what this program knows of its tables.
func (n names) versions() pgschema.Schema {
	s := pgschema.Schema{
		Name: n.schema, Table: n.table("migration"), Record: strings.TrimSpace(n.include("record")), Compatible: true, Scope: n.scope(),
		TooNew: func(have int) error { return &storage.SchemaError{Have: have, Want: Version, Hint: hintNewer} },
	}
	for _, step := range schema.Steps(migrationFiles, Version) {
		oldest, listed := compatible[step.Version]
		if !listed {
			oldest = step.Version
		}
		s.Steps = append(s.Steps, pgschema.Step{
			Version: step.Version, Name: step.Name, Compatible: oldest,
			Up: n.fill(step.Name, step.Up), Down: n.fill(step.Name, step.Down),
		})
	}
	return s
}

// migrations are steps as callers see them.
func migrations(steps []pgschema.Step, err error) ([]Migration, error) {
	out := make([]Migration, len(steps))
	for i, s := range steps {
		out[i] = Migration{Version: s.Version, Name: s.Name, Compatible: s.Compatible, AppliedAt: s.AppliedAt}
	}
	return out, err
}

// Migrate brings the schema to a version, up or down, and returns the steps taken. Version is
// the newest; 0 removes every table, and with them the cluster's state. Each step is a
// transaction of its own, so an interrupted migration goes on where it stopped; two at once take
// turns. The role needs to create in the schema, and in the database if the schema is missing; nobody
// else should be able to create in it. What programs need then is [GrantSQL].
func Migrate(ctx context.Context, cfg Config, target int) ([]Migration, error) {
	var taken []pgschema.Step
	err := withConn(ctx, cfg, "migrate", func(conn *pgx.Conn, n names) (err error) {
		if taken, err = n.versions().Migrate(ctx, conn, target); pgerror.Code(err) == codeNoPrivilege {
			err = &mayNotMigrate{err}
		}
		return err
	})
	return migrations(taken, err)
}

// MigrationStatus lists the steps that this program knows and those, of a newer program, that the
// schema has. Where nothing was applied, or there is no schema yet, no step has a time.
func MigrationStatus(ctx context.Context, cfg Config) ([]Migration, error) {
	var all []pgschema.Step
	err := withConn(ctx, cfg, "read the schema's version", func(conn *pgx.Conn, n names) (err error) {
		all, err = n.versions().Status(ctx, conn)
		return err
	})
	return migrations(all, err)
}

// MigrationSQL returns one step as text, complete with the record of itself, for a database that
// this program may not change: run it in one transaction.
func MigrationSQL(cfg Config, version int, up bool) (string, error) {
	cfg.URL = "postgres://" // any: only the names count
	cfg, err := cfg.withDefaults()
	if err != nil {
		return "", fmt.Errorf("print a migration: %w", err)
	}
	text, err := cfg.names().versions().Text(version, up)
	if err != nil {
		return "", fmt.Errorf("print a migration: %w", err)
	}
	return text, nil
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
		return fmt.Errorf("%s: store.url is no connection string", what)
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
	return "run: emitd migrate up --store <the same URL>" + flags + " (or, in a program of your own, set Config.AutoMigrate)"
}

// checkSchema compares versions.
func (s *Store) checkSchema(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.QueryTimeout)
	defer cancel()
	conn, leave, err := s.enter(ctx, "schema")
	if err != nil {
		return err
	}
	defer leave()
	have, err := s.cfg.names().versions().Applied(ctx, conn)
	if err != nil {
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
