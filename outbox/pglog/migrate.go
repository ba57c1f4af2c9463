package pglog

import (
	"bytes"
	"context"
	"embed"
	"errors"
	"fmt"
	"text/template"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/emitd/emitd/internal/pgschema"
	"github.com/emitd/emitd/internal/schema"
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

// versions is what this program knows of its tables.
func (c Config) versions() pgschema.Schema {
	n := c.names()
	s := pgschema.Schema{Name: n.schema, Table: n.table("outbox_migration"), Record: c.fill(migrationTable), Scope: n.scope(), TooNew: tooNew}
	for _, step := range schema.Steps(migrationFiles, Version) {
		s.Steps = append(s.Steps, pgschema.Step{Version: step.Version, Name: step.Name, Up: c.fill(step.Up), Down: c.fill(step.Down)})
	}
	return s
}

// migrations are steps as callers see them.
func migrations(steps []pgschema.Step, err error) ([]Migration, error) {
	out := make([]Migration, len(steps))
	for i, s := range steps {
		out[i] = Migration{Version: s.Version, Name: s.Name, AppliedAt: s.AppliedAt}
	}
	return out, err
}

// Migrate brings the schema to a version, up or down, and returns the steps taken. Version is the
// newest; 0 removes every table, and with them every message. Each step is a transaction of its own,
// so an interrupted migration goes on where it stopped; two at once take turns. The role needs to
// create in the schema, and in the database if the schema is missing; nobody else should be able to
// create in it. What programs need then is [GrantSQL].
func Migrate(ctx context.Context, cfg Config, target int) ([]Migration, error) {
	var taken []pgschema.Step
	err := withConn(ctx, cfg, "migrate the outbox", func(conn *pgx.Conn, cfg Config) (err error) {
		taken, err = cfg.versions().Migrate(ctx, conn, target)
		return err
	})
	return migrations(taken, err)
}

// MigrationStatus lists the steps that this program knows and those, of a newer program, that the
// schema has. Those that were not taken have no time. It changes nothing.
func MigrationStatus(ctx context.Context, cfg Config) ([]Migration, error) {
	var all []pgschema.Step
	err := withConn(ctx, cfg, "read the outbox's version", func(conn *pgx.Conn, cfg Config) (err error) {
		all, err = cfg.versions().Status(ctx, conn)
		return err
	})
	return migrations(all, err)
}

// MigrationSQL returns one step as text, complete with the record of itself, for a database that this
// program may not change: run it in one transaction.
func MigrationSQL(cfg Config, version int, up bool) (string, error) {
	cfg, err := cfg.withDefaults()
	if err != nil {
		return "", fmt.Errorf("print a migration: %w", err)
	}
	text, err := cfg.versions().Text(version, up)
	if err != nil {
		return "", fmt.Errorf("print a migration: %w", err)
	}
	return text, nil
}

const migrationTable = `create table if not exists {{outbox_migration}} (
	version    integer primary key,
	name       text not null,
	applied_at timestamptz not null default clock_timestamp()
)`

// fill expands a template of a migration. An unknown name is a programming error.
func (c Config) fill(text string) string {
	n := c.names()
	f := template.FuncMap{
		"schema":     func() string { return pgx.Identifier{n.schema}.Sanitize() },
		"name":       func(s string) string { return pgx.Identifier{n.prefix + s}.Sanitize() },
		"function":   n.table,
		"text":       func(s string) string { return pgschema.Literal(n.prefix + s) },
		"regclass":   func(s string) string { return pgschema.Literal(n.table(s)) + "::regclass" },
		"scope":      n.locks,
		"limits":     limits,
		"privileged": n.privileged,
		"width":      func() int64 { return c.width },
		"room":       func() int64 { return (minAhead - 1) * c.width },
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

// limits is the constraint that a row keeps the limits of [outbox.Message.Validate], however it was
// inserted. What is null keeps them. Headers are longer as JSON: at most the double, and punctuation.
func limits() string {
	return fmt.Sprintf(`check (octet_length(topic) between 1 and %d and octet_length(type) <= %d and octet_length(key) <= %d
		and octet_length(headers::text) <= %d and octet_length(traceparent) <= 255 and octet_length(tracestate) <= 4096
		and octet_length(payload) <= %d)`, outbox.MaxTopic, outbox.MaxType, outbox.MaxKey, maxHeaderText, outbox.MaxPayload)
}

// maxHeaderText bounds the headers of a message as JSON, in bytes: with room for as many as a message may
// have, of the longest names and values, all of characters that JSON writes as six.
const maxHeaderText = 2 << 20

// withConn connects and runs one thing.
func withConn(ctx context.Context, cfg Config, what string, do func(*pgx.Conn, Config) error) error {
	cfg, err := cfg.withURL()
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	cc, err := pgx.ParseConfig(cfg.URL)
	if err != nil {
		return fmt.Errorf("%s: outbox.url is no connection string", what)
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

// checkSchema says what to do about tables that do not fit.
func checkSchema(ctx context.Context, q pgschema.Querier, cfg Config) error {
	have, err := cfg.versions().Applied(ctx, q)
	switch {
	case err != nil:
		return err
	case len(have) < Version:
		return fmt.Errorf("%w: the outbox has version %d, this program needs %d: %s", outbox.ErrSchema, len(have), Version, hintMigrate)
	case len(have) > Version:
		return tooNew(have[len(have)-1].Version)
	}
	n := cfg.names()
	rows, err := q.Query(ctx, "select seqcache from pg_sequence where seqrelid = to_regclass($1)", n.table("outbox_id"))
	if err != nil {
		return err
	}
	cache, err := pgx.CollectExactlyOneRow(rows, pgx.RowTo[int64])
	if errors.Is(err, pgx.ErrNoRows) {
		return fmt.Errorf("%w: the table %s is missing", outbox.ErrSchema, n.table("outbox"))
	}
	if err == nil && cache != 1 {
		err = fmt.Errorf("%w: the sequence %s has a cache, by which keys lose their order: alter sequence %[2]s cache 1", outbox.ErrSchema, n.table("outbox_id"))
	}
	return err
}

func tooNew(have int) error {
	return fmt.Errorf("%w: the outbox has version %d, this program knows %d: a newer program migrated it, upgrade this one", outbox.ErrSchema, have, Version)
}
