package postgres

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/emitd/emitd/outbox"
)

// TestMigrate migrates up, twice at once, down and up again. The printed SQL must do the same.
func TestMigrate(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	s := newStage(t)
	cfg := Config{URL: s.url, Schema: "m", Prefix: "my_"}
	status := func(want bool) {
		t.Helper()
		all, err := MigrationStatus(ctx, cfg)
		ok(t, err)
		if len(all) != Version || all[0].AppliedAt.IsZero() == want {
			t.Errorf("status: %+v", all)
		}
	}
	status(false)
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			if _, err := Migrate(ctx, cfg, Version); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	status(true)
	w := openWorld(t, cfg)
	w.publish(text("k", "x"))
	w.sweepAll()
	if got := drain(t, w.claim("s", 1)); len(got) != 1 {
		t.Errorf("got %v", got)
	}
	down, err := Migrate(ctx, cfg, 0)
	ok(t, err)
	var left int
	ok(t, s.pool.QueryRow(ctx, `select count(*) from pg_class c join pg_namespace n on n.oid = c.relnamespace where n.nspname = 'm'`).Scan(&left))
	if len(down) != Version || left != 0 {
		t.Errorf("%d steps down, %d relations left", len(down), left)
	}
	status(false)
	print := func(version int, up bool) {
		t.Helper()
		text, err := MigrationSQL(cfg, version, up)
		ok(t, err)
		ok(t, pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
			_, err := tx.Exec(ctx, text)
			return err
		}))
	}
	for _, up := range []bool{true, false, true} {
		print(1, up)
		status(up)
	}
	for version := 2; version <= Version; version++ {
		print(version, true)
	}
	w = openWorld(t, cfg)
	w.publish(text("k", "x"))
	for _, version := range []int{1, Version} { // back for a program of version 1, and up again
		_, err := Migrate(ctx, cfg, version)
		ok(t, err)
		w.exec("select ~outbox_pass()")
		if left := w.left(); left != 1 {
			t.Errorf("%d messages with version %d", left, version)
		}
	}
	for _, bad := range []int{-1, Version + 1} {
		if _, err := Migrate(ctx, cfg, bad); err == nil {
			t.Errorf("migrated to %d", bad)
		}
		if _, err := MigrationSQL(cfg, bad, true); err == nil {
			t.Errorf("printed step %d", bad)
		}
	}
	s.exec(t, "insert into m.my_outbox_migration values (99, 'future')")
	if _, err := Open(ctx, cfg); !errors.Is(err, outbox.ErrSchema) || !strings.Contains(err.Error(), "upgrade") {
		t.Errorf("a newer schema: %v", err)
	}
	if _, err := Migrate(ctx, cfg, Version); !errors.Is(err, outbox.ErrSchema) {
		t.Errorf("migrating a newer schema: %v", err)
	}
}

// TestProgramsOfOtherVersions checks which versions of the schema this program works with: not with those before needed, the
// first one as an earlier program has left it, and with later ones whose record says so.
func TestProgramsOfOtherVersions(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	s := newStage(t)
	cfg := Config{URL: s.url, Schema: "versions"}
	works := func(what string) {
		t.Helper()
		w := openWorld(t, cfg)
		w.publish(text("k", what))
		if got := drain(t, w.claim("s", 1)); len(got) != 1 {
			t.Errorf("%s: got %v", what, got)
		}
	}
	_, err := Migrate(ctx, cfg, 1)
	ok(t, err)
	s.exec(t, "alter table versions.outbox_migration drop column compatible")
	refused := func(what string) {
		t.Helper()
		if _, err := Open(ctx, cfg); !errors.Is(err, outbox.ErrSchema) || !strings.Contains(err.Error(), "emitd migrate up --outbox") {
			t.Errorf("%s: %v", what, err)
		}
	}
	refused("version 1")
	for version := 2; version < needed; version++ {
		_, err := Migrate(ctx, cfg, version)
		ok(t, err)
		refused(fmt.Sprint("version ", version))
	}
	_, err = Migrate(ctx, cfg, 1)
	ok(t, err)
	all, err := MigrationStatus(ctx, cfg)
	ok(t, err)
	if len(all) != Version || all[0].AppliedAt.IsZero() || !all[1].AppliedAt.IsZero() {
		t.Errorf("status of version 1: %+v", all)
	}
	taken, err := Migrate(ctx, cfg, Version)
	ok(t, err)
	if len(taken) != Version-1 {
		t.Errorf("migrated %+v", taken)
	}
	works("the newest version")
	s.exec(t, "insert into versions.outbox_migration (version, name, compatible) values (98, 'later', 1), (99, 'later still', $1)", Version)
	works("a later version that is compatible")
	s.exec(t, "update versions.outbox_migration set compatible = $1 where version = 98", Version+1)
	if _, err := Open(ctx, cfg); !errors.Is(err, outbox.ErrSchema) || !strings.Contains(err.Error(), "upgrade") {
		t.Errorf("a later version, of which one step is not compatible: %v", err)
	}
	s.exec(t, "delete from versions.outbox_migration")
	refused("no version")
}

// TestGrantsStay checks that a role which was granted what it needs before a migration needs nothing more after it, and that
// nobody else may execute the functions that it replaces.
func TestGrantsStay(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	s := newStage(t)
	cfg := Config{URL: s.url, Schema: "granted"}
	_, err := Migrate(ctx, cfg, Version-1)
	ok(t, err)
	grants, err := GrantSQL(cfg, Roles{Relay: s.role})
	ok(t, err)
	s.exec(t, grants)
	_, err = Migrate(ctx, cfg, Version)
	ok(t, err)
	cfg.URL = s.user
	w := openWorld(t, cfg)
	w.publish(text("k", "x"))
	w.sweepAll()
	if got := drain(t, w.claim("s", 1)); len(got) != 1 {
		t.Errorf("got %v", got)
	}
	var may bool
	ok(t, s.pool.QueryRow(ctx, `select has_function_privilege($1, 'granted.outbox_pass()', 'execute')`, s.publisher).Scan(&may))
	if may {
		t.Error("a role without grants may execute a function of the sweeper")
	}
}
