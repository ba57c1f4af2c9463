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
const Version = 8

//go:embed migrations/*.sql
var migrationFiles embed.FS

// Migration is one step of the schema.
type Migration struct {
	Version int
	Name    string
	// Compatible is the oldest program that works with this step, by the schema version that
	// program needs. A deployment therefore migrates first and replaces programs afterwards.
	Compatible int
	// AppliedAt is zero for a step that was not applied.
	AppliedAt time.Time
}

// compatible lists the steps that older programs still work with. A step that is not listed breaks
// all of them.
//
// Version 2 adds the function of the heartbeat. Programs that need version 1 do not call it.
// Version 3 adds an index, version 4 the revision, which triggers write, and another function of the heartbeat.
// Version 5 adds the states of units, which programs of earlier versions do not have.
// Version 6 adds keys. Their rows are units of daemons that earlier programs do not know; a trigger keeps such programs
// from retiring them.
// Version 7 adds an index and the function of registrations, which programs of earlier versions do not call.
// Version 8 adds further versions of both functions, and triggers that write the revision less often.
var compatible = map[int]int{2: 1, 3: 1, 4: 1, 5: 1, 6: 1, 7: 1, 8: 1}

// versions is what this program knows about the versions of its tables.
func (n names) versions() pgschema.Schema {
	s := pgschema.Schema{
		Name: n.schema, Table: n.table("migration"), Record: strings.TrimSpace(n.include("record")), Scope: n.scope(),
		TooNew: func(have int) error { return &storage.SchemaError{Have: have, Want: Version, Hint: hintNewer} },
	}
	for _, step := range schema.Load(migrationFiles, Version) {
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

// migrations converts steps to the form that callers see.
func migrations(steps []pgschema.Step, err error) ([]Migration, error) {
	out := make([]Migration, len(steps))
	for i, s := range steps {
		out[i] = Migration{Version: s.Version, Name: s.Name, Compatible: s.Compatible, AppliedAt: s.AppliedAt}
	}
	return out, err
}

// Migrate brings the schema to a version, up or down, and returns the steps that it applied.
// Version is the newest; 0 removes every table and with them the cluster's state. Each step is a
// transaction of its own, so an interrupted migration continues where it stopped; where there is
// nothing yet, all steps are one transaction. If two run at
// once, one waits for the other. The role must be able to create in the schema, and in the database
// if the schema is missing. No other role should be able to create in it. The rights that programs
// then need are those of [GrantSQL].
func Migrate(ctx context.Context, cfg Config, target int) ([]Migration, error) {
	var taken []pgschema.Step
	err := withConn(ctx, cfg, "migrate", func(conn *pgx.Conn, n names) (err error) {
		if taken, err = n.versions().Migrate(ctx, conn, target); pgerror.Code(err) == codeNoPrivilege {
			err = &migrationDenied{err}
		}
		return err
	})
	return migrations(taken, err)
}

// MigrationStatus lists the steps that this program knows, and those that a newer program applied
// to the schema. If nothing was applied, or there is no schema yet, no step has a time.
func MigrationStatus(ctx context.Context, cfg Config) ([]Migration, error) {
	var all []pgschema.Step
	err := withConn(ctx, cfg, "read the schema's version", func(conn *pgx.Conn, n names) (err error) {
		all, err = n.versions().Status(ctx, conn)
		return err
	})
	return migrations(all, err)
}

// MigrationSQL returns one step as text, including the record of the step, for a database that this
// program may not change. Run it in one transaction.
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

// include returns a part of a migration that has a file of its own.
func (n names) include(part string) string {
	text, err := migrationFiles.ReadFile("migrations/" + part + ".sql")
	if err != nil {
		panic("postgres: " + err.Error())
	}
	return n.fill(part, string(text))
}

// withConn connects and calls do.
func withConn(ctx context.Context, cfg Config, what string, do func(*pgx.Conn, names) error) error {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	cc, err := pgx.ParseConfig(cfg.URL)
	if err != nil {
		return fmt.Errorf("%s: store.url is not a valid connection string", what)
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

// hintNewer and hintMigrate say what to do about a schema that does not fit.
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

// checkSchema compares the schema's version with this program's.
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
