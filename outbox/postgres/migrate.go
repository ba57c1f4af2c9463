package postgres

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

// Version is the newest schema version that this program knows.
const Version = 3

// needed is the oldest schema version that this program works with. With earlier ones the sweeper could remove messages that
// were not delivered.
const needed = 3

// compatible lists the steps that older programs still work with, with the oldest version that such a program
// needs. A step that is not listed breaks all of them.
var compatible = map[int]int{2: 1, 3: 1}

//go:embed migrations/*.sql
var migrationFiles embed.FS

// Migration is one step of the schema.
type Migration struct {
	Version int
	Name    string
	// AppliedAt is zero for a step that was not applied.
	AppliedAt time.Time
}

// versions returns the schema's steps that this program knows.
func (c Config) versions() pgschema.Schema {
	n := c.names()
	s := pgschema.Schema{Name: n.schema, Table: n.table("outbox_migration"), Record: c.fill(migrationTable), Scope: n.scope(), TooNew: tooNew}
	for _, step := range schema.Load(migrationFiles, Version) {
		s.Steps = append(s.Steps, pgschema.Step{
			Version: step.Version, Name: step.Name, Compatible: compatible[step.Version], Up: c.fill(step.Up), Down: c.fill(step.Down),
		})
	}
	return s
}

// migrations converts steps to the exported type.
func migrations(steps []pgschema.Step, err error) ([]Migration, error) {
	out := make([]Migration, len(steps))
	for i, s := range steps {
		out[i] = Migration{Version: s.Version, Name: s.Name, AppliedAt: s.AppliedAt}
	}
	return out, err
}

// Migrate migrates the schema to a version, up or down, and returns the applied steps. The newest version
// is Version; 0 removes every table, and with them every message. Each step is a transaction of its own,
// so an interrupted migration continues where it stopped; where there is nothing yet, all steps are one
// transaction. Two migrations at once wait for each other. The
// role must be allowed to create objects in the schema, and in the database if the schema is missing.
// Nobody else should be allowed to create objects in the schema. [GrantSQL] gives programs the rights
// that they need afterwards.
func Migrate(ctx context.Context, cfg Config, target int) ([]Migration, error) {
	var taken []pgschema.Step
	err := withConn(ctx, cfg, "migrate the outbox", func(conn *pgx.Conn, cfg Config) (err error) {
		taken, err = cfg.versions().Migrate(ctx, conn, target)
		return err
	})
	return migrations(taken, err)
}

// MigrationStatus lists the steps that this program knows, and those of a newer program that the schema
// has. Steps that were not applied have a zero AppliedAt. It changes nothing.
func MigrationStatus(ctx context.Context, cfg Config) ([]Migration, error) {
	var all []pgschema.Step
	err := withConn(ctx, cfg, "read the outbox's version", func(conn *pgx.Conn, cfg Config) (err error) {
		all, err = cfg.versions().Status(ctx, conn)
		return err
	})
	return migrations(all, err)
}

// MigrationSQL returns one step as text, including the statement that records it, for a database that
// this program may not change. Run it in one transaction.
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
	applied_at timestamptz not null default clock_timestamp(),
	compatible integer -- the oldest program that works with this version; null: none that is older
)`

// fill expands the template of a migration. An unknown name is a programming error and panics.
func (c Config) fill(text string) string {
	n := c.names()
	f := template.FuncMap{
		"schema":     func() string { return pgx.Identifier{n.schema}.Sanitize() },
		"name":       func(s string) string { return pgx.Identifier{n.prefix + s}.Sanitize() },
		"function":   n.table,
		"text":       func(s string) string { return pgschema.Literal(n.prefix + s) },
		"regclass":   func(s string) string { return pgschema.Literal(n.table(s)) + "::regclass" },
		"scope":      n.locks,
		"channel":    func() string { return pgschema.Literal(n.channel()) },
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
		panic("outbox/postgres: " + err.Error())
	}
	return out.String()
}

// limits returns the constraint that enforces the limits of [outbox.Message.Validate] for every way to
// insert a row. A null satisfies it. Headers have another limit, because they are longer as JSON.
func limits() string {
	return fmt.Sprintf(`check (octet_length(topic) between 1 and %d and octet_length(type) <= %d and octet_length(key) <= %d
		and octet_length(headers::text) <= %d and octet_length(traceparent) <= 255 and octet_length(tracestate) <= 4096
		and octet_length(payload) <= %d)`, outbox.MaxTopic, outbox.MaxType, outbox.MaxKey, maxHeaderText, outbox.MaxPayload)
}

// maxHeaderText bounds the headers of a message as JSON, in bytes. There is room for as many headers as a
// message may have, with the longest names and values, if JSON writes every character as six.
const maxHeaderText = 2 << 20

// withConn connects and runs one function.
func withConn(ctx context.Context, cfg Config, what string, do func(*pgx.Conn, Config) error) error {
	cfg, err := cfg.withURL()
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	cc, err := pgx.ParseConfig(cfg.URL)
	if err != nil {
		return fmt.Errorf("%s: outbox.url is not a valid connection string", what)
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

// checkSchema checks the version of the tables and the sequence. Its errors say what to do.
func checkSchema(ctx context.Context, q pgschema.Querier, cfg Config) error {
	have, err := cfg.versions().Applied(ctx, q)
	switch {
	case err != nil:
		return err
	case len(have) < needed:
		return fmt.Errorf("%w: the outbox has version %d, this program needs %d: %s", outbox.ErrSchema, len(have), needed, hintMigrate)
	}
	for _, step := range have {
		if step.Version > Version && step.Compatible > Version {
			return tooNew(have[len(have)-1].Version)
		}
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
		err = fmt.Errorf("%w: the sequence %s has a cache, so keys would lose their order: run alter sequence %[2]s cache 1", outbox.ErrSchema, n.table("outbox_id"))
	}
	return err
}

func tooNew(have int) error {
	return fmt.Errorf("%w: the outbox has version %d, this program knows %d: a newer program migrated it, upgrade this one", outbox.ErrSchema, have, Version)
}
