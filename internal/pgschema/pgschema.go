// Package pgschema brings the tables of one prefix in a Postgres schema to a version, up or down,
// and defines which names they may have.
//
// A table of its own records the steps that were applied. Each step is one transaction together
// with its record, so an interrupted migration continues where it stopped. Only where there is
// nothing yet, all steps are one transaction: a program that starts in the meantime must not take a
// part of them for the schema of an older program. Programs that migrate at
// the same time wait for each other by an advisory lock. Versions are numbered from 1. Version 0 is
// no table at all, not even the record's. The package does not touch a schema that a newer program
// has migrated further.
package pgschema

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
)

// Step is one step of the schema, from the version below its own.
type Step struct {
	Version int
	Name    string
	// Compatible is the oldest program that works with this step, by the schema version that
	// program needs. A step to be applied that leaves it 0 breaks all older programs.
	Compatible int
	// AppliedAt is zero for a step that was not applied.
	AppliedAt time.Time

	Up, Down string // the statements, without the record; empty for a step read from the database
}

// Schema is what a program knows about its tables.
type Schema struct {
	Name   string // the schema, not quoted
	Table  string // that records the steps, quoted and qualified
	Record string // the statement that makes this table, if it is not there
	Scope  string // identifies the tables in a database; migrations of one scope wait for each other
	Steps  []Step // in order, from version 1
	TooNew func(have int) error
}

// Querier is a connection, a pool or a transaction.
type Querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}

// Migrate brings the schema to a version and returns the steps that it applied. The role must be
// able to create in the schema, and in the database if the schema is missing.
func (s Schema) Migrate(ctx context.Context, conn *pgx.Conn, target int) (taken []Step, err error) {
	if target < 0 || target > len(s.Steps) {
		return nil, fmt.Errorf("there is no version %d, want 0 to %d", target, len(s.Steps))
	}
	if err := s.bootstrap(ctx, conn); err != nil {
		return nil, err
	}
	for {
		steps, err := s.step(ctx, conn, target)
		if err != nil || len(steps) == 0 {
			return taken, err
		}
		taken = append(taken, steps...)
	}
}

// Status lists the steps that this program knows, and those that a newer program applied to the
// schema. Steps that were not applied have no time. It changes nothing.
func (s Schema) Status(ctx context.Context, q Querier) ([]Step, error) {
	have, err := s.Applied(ctx, q)
	if err != nil {
		return nil, err
	}
	return slices.Concat(have, s.Steps[min(len(have), len(s.Steps)):]), nil
}

// Text returns one step as text, including the record of the step, for a database that this program
// may not change. Run it in one transaction.
func (s Schema) Text(version int, up bool) (string, error) {
	if version < 1 || version > len(s.Steps) {
		return "", fmt.Errorf("there is no version %d, want 1 to %d", version, len(s.Steps))
	}
	step := s.Steps[version-1]
	switch {
	case !up:
		return path + s.down(step), nil
	case version == 1:
		return path + "create schema if not exists " + quoted(s.Name) + ";\n" + s.Record + ";\n" + s.up(step), nil
	}
	return path + s.up(step), nil
}

// SearchPath is the search path of every session and function. Statements name their own objects in
// full. Objects that others have made in schemas of their own, or as temporary tables, therefore
// never hide what a statement means.
const SearchPath = "pg_catalog, pg_temp"

// path begins a text that is run in one transaction.
const path = "set local search_path = " + SearchPath + ";\n"

// up returns the statements of a step and of its record.
func (s Schema) up(step Step) string {
	name := Literal(step.Name)
	if step.Compatible > 0 {
		return step.Up + fmt.Sprintf("insert into %s (version, name, compatible) values (%d, %s, %d);\n", s.Table, step.Version, name, step.Compatible)
	}
	return step.Up + fmt.Sprintf("insert into %s (version, name) values (%d, %s);\n", s.Table, step.Version, name)
}

// down returns the statements that undo a step. Undoing the first step also drops the record's
// table.
func (s Schema) down(step Step) string {
	if step.Version == 1 {
		return step.Down + "drop table " + s.Table + ";\n"
	}
	return step.Down + fmt.Sprintf("delete from %s where version = %d;\n", s.Table, step.Version)
}

// withLock runs one transaction that excludes other migrations of this scope. If the program is
// stopped in it, or its host fails, the server rolls it back, so that others do not wait for long.
func (s Schema) withLock(ctx context.Context, conn *pgx.Conn, do func(pgx.Tx) error) error {
	return pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "select pg_catalog.set_config('idle_in_transaction_session_timeout', '5s', true), pg_catalog.set_config('search_path', $2, true), "+
			"pg_catalog.pg_advisory_xact_lock(pg_catalog.hashtextextended($1::text, 0::bigint))", s.Scope+":migrate", SearchPath); err != nil {
			return err
		}
		return do(tx)
	})
}

// bootstrap creates what the first step needs. It does not create a schema that exists, because
// that would need a privilege on the database for nothing.
func (s Schema) bootstrap(ctx context.Context, conn *pgx.Conn) error {
	return s.withLock(ctx, conn, func(tx pgx.Tx) error {
		var schema, table bool
		err := tx.QueryRow(ctx, "select to_regnamespace($1) is not null, to_regclass($2) is not null", quoted(s.Name), s.Table).Scan(&schema, &table)
		if err == nil && !schema {
			_, err = tx.Exec(ctx, "create schema "+quoted(s.Name))
		}
		if err == nil && !table {
			_, err = tx.Exec(ctx, s.Record)
		}
		return err
	})
}

// step applies the next step towards a version, or all of them where there is nothing yet; none if
// that version is reached. It reads the version under the lock.
func (s Schema) step(ctx context.Context, conn *pgx.Conn, target int) (taken []Step, err error) {
	err = s.withLock(ctx, conn, func(tx pgx.Tx) error {
		have, err := s.Applied(ctx, tx)
		if err != nil {
			return err
		}
		at := len(have)
		write := s.up
		switch {
		case at > 0 && have[at-1].Version > len(s.Steps):
			return s.TooNew(have[at-1].Version)
		case at == 0:
			taken = s.Steps[:target]
		case at < target:
			taken = s.Steps[at : at+1]
		case at > target:
			taken, write = s.Steps[at-1:at], s.down
		}
		for _, step := range taken {
			if _, err := tx.Exec(ctx, write(step)); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	return taken, nil
}

// Applied lists the steps that the schema has; none if there is no schema.
func (s Schema) Applied(ctx context.Context, q Querier) ([]Step, error) {
	// This check comes first, because an error would end the transaction that this may be part of.
	rows, err := q.Query(ctx, "select to_regclass($1) is not null", s.Table)
	if err != nil {
		return nil, err
	}
	if found, err := pgx.CollectExactlyOneRow(rows, pgx.RowTo[bool]); err != nil || !found {
		return nil, err
	}
	// The time is read as a number, because a session may write times in any style. An early record has no
	// column compatible, hence the detour.
	rows, err = q.Query(ctx, "select version, name, coalesce((to_jsonb(m) ->> 'compatible')::int, version), (extract(epoch from applied_at) * 1000000)::bigint from "+s.Table+" m order by version")
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (step Step, err error) {
		var at int64
		err = row.Scan(&step.Version, &step.Name, &step.Compatible, &at)
		step.AppliedAt = time.UnixMicro(at).UTC()
		return step, err
	})
}

func quoted(name string) string { return pgx.Identifier{name}.Sanitize() }
