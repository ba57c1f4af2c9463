package sqlite

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"github.com/emitd/emitd/outbox"
)

// TestMigrate migrates up, down and up again. Other tables must stay untouched.
func TestMigrate(t *testing.T) {
	t.Parallel()
	db := appDB(t, filepath.Join(t.TempDir(), "app.db"))
	_, err := db.Exec("CREATE TABLE orders (id INTEGER PRIMARY KEY); INSERT INTO orders VALUES (7)")
	ok(t, err)
	status, err := MigrationStatus(t.Context(), db, Config{})
	ok(t, err)
	if len(status) != Version || !status[0].AppliedAt.IsZero() {
		t.Errorf("status of an empty file: %+v", status)
	}
	for _, step := range []struct{ target, taken int }{{Version, Version}, {Version, 0}, {0, Version}, {0, 0}, {Version, Version}} {
		taken, err := Migrate(t.Context(), db, Config{}, step.target)
		ok(t, err)
		if len(taken) != step.taken {
			t.Errorf("to %d: %d steps, want %d", step.target, len(taken), step.taken)
		}
		var tables, orders int
		ok(t, db.QueryRow("SELECT count(*) FROM sqlite_master WHERE name LIKE 'emitd_%'").Scan(&tables))
		ok(t, db.QueryRow("SELECT id FROM orders").Scan(&orders))
		if (tables == 0) != (step.target == 0) || orders != 7 {
			t.Errorf("at %d there are %d tables, order %d", step.target, tables, orders)
		}
	}
	for _, target := range []int{-1, Version + 1} {
		if _, err := Migrate(t.Context(), db, Config{}, target); err == nil {
			t.Errorf("migrated to %d", target)
		}
	}
}

// TestNewerSchema checks that a newer program's tables are refused and not changed.
func TestNewerSchema(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "app.db")
	db := appDB(t, path)
	_, err := Migrate(t.Context(), db, Config{}, Version)
	ok(t, err)
	_, err = db.Exec("INSERT INTO emitd_outbox_migration VALUES (2, 'future', 1)")
	ok(t, err)
	if _, err := Open(t.Context(), Config{Path: path}); !errors.Is(err, outbox.ErrSchema) || !strings.Contains(err.Error(), "upgrade") {
		t.Errorf("opened: %v", err)
	}
	if _, err := Migrate(t.Context(), db, Config{}, 0); !errors.Is(err, outbox.ErrSchema) {
		t.Errorf("migrated down: %v", err)
	}
	status, err := MigrationStatus(t.Context(), db, Config{})
	ok(t, err)
	if len(status) != 2 || status[1].Name != "future" {
		t.Errorf("status: %+v", status)
	}
}

// TestMigrationSQL checks that the printed steps do what Migrate does.
func TestMigrationSQL(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "app.db")
	db := appDB(t, path)
	up, err := MigrationSQL(Config{Prefix: "shop_"}, 1, true)
	ok(t, err)
	_, err = db.Exec(up)
	ok(t, err)
	mustOpen(t, Config{Path: path, Prefix: "shop_", NoMigrate: true})
	down, err := MigrationSQL(Config{Prefix: "shop_"}, 1, false)
	ok(t, err)
	_, err = db.Exec(down)
	ok(t, err)
	var tables int
	ok(t, db.QueryRow("SELECT count(*) FROM sqlite_master WHERE name LIKE 'shop_%'").Scan(&tables))
	if tables != 0 {
		t.Errorf("%d tables are left", tables)
	}
	for _, bad := range []int{0, Version + 1} {
		if _, err := MigrationSQL(Config{}, bad, true); err == nil {
			t.Errorf("printed step %d", bad)
		}
	}
}

// TestPrefixes checks that two logs can share a file with different prefixes.
func TestPrefixes(t *testing.T) {
	t.Parallel()
	a := newWorld(t, Config{})
	b := newWorld(t, Config{Path: a.cfg.Path, Prefix: "other_"})
	a.publish(t, text("k", "a"))
	b.publish(t, text("k", "b"))
	got := append(drain(t, a.claim(t, "s", 1)), drain(t, b.claim(t, "s", 1))...)
	if strings.Join(got, " ") != "a b" {
		t.Errorf("messages %v", got)
	}
}
