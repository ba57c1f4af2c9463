package sqlite

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/emitd/emitd/storage"
)

// Every error about a path or a file says what to do about it.
func TestOpenErrors(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	text := filepath.Join(dir, "notes.txt")
	ok(t, os.WriteFile(text, []byte(strings.Repeat("not a database, just notes\n", 400)), 0o600))
	damaged := filepath.Join(dir, "damaged.db")
	damage(t, damaged)
	for name, c := range map[string]struct {
		cfg     Config
		message []string
	}{
		"no path":           {Config{}, []string{"path", "empty"}},
		"no directory":      {Config{Path: filepath.Join(dir, "no/such/store.db")}, []string{"directory does not exist", "mkdir -p " + filepath.Join(dir, "no/such")}},
		"a directory":       {Config{Path: dir}, []string{"not a regular file"}},
		"not a database":    {Config{Path: text}, []string{"not a SQLite database"}},
		"damaged":           {Config{Path: damaged}, []string{"damaged", "restore a backup"}},
		"must exist":        {Config{Path: filepath.Join(dir, "none.db"), MustExist: true}, []string{"does not exist"}},
		"in memory":         {Config{Path: ":memory:"}, []string{"names no file", "storage/memory"}},
		"hostile prefix":    {Config{Path: filepath.Join(dir, "a.db"), Prefix: "x; DROP TABLE y"}, []string{"prefix"}},
		"upper case prefix": {Config{Path: filepath.Join(dir, "a.db"), Prefix: "Emitd"}, []string{"prefix"}},
		"sync":              {Config{Path: filepath.Join(dir, "a.db"), Sync: "sometimes"}, []string{`"sometimes"`, `"full"`}},
		"negative":          {Config{Path: filepath.Join(dir, "a.db"), QueryTimeout: -time.Second}, []string{"-1s"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, err := OpenConfig(context.Background(), c.cfg)
			if err == nil {
				s.Close()
				t.Fatal("opened")
			}
			for _, want := range c.message {
				if !strings.Contains(err.Error(), want) {
					t.Errorf("%q does not say %q", err, want)
				}
			}
		})
	}
	if _, err := os.Stat(filepath.Join(dir, "none.db")); !errors.Is(err, os.ErrNotExist) {
		t.Error("MustExist made a file")
	}
	if _, err := os.Stat(filepath.Join(dir, "a.db")); !errors.Is(err, os.ErrNotExist) {
		t.Error("a configuration that was refused made a file")
	}
}

// damage makes a file that begins like a database but is none.
func damage(t testing.TB, path string) {
	t.Helper()
	s, err := Open(context.Background(), path)
	ok(t, err)
	runs(t, s, someone("a"))
	ok(t, s.Close())
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	ok(t, err)
	defer f.Close()
	info, err := f.Stat()
	ok(t, err)
	_, err = f.WriteAt([]byte(strings.Repeat("\xff\x00garbage", int(info.Size()-100)/9)), 100)
	ok(t, err)
}

// Many processes may open a file that does not exist yet at the same time.
func TestOpenAtOnce(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "store.db")
	children := make([]*child, 6)
	for i := range children {
		children[i] = spawn(t, "open", path)
	}
	for _, c := range children {
		c.rest()
	}
	status, err := MigrationStatus(context.Background(), Config{Path: path})
	ok(t, err)
	if len(status) != len(migrations) || status[0].AppliedAt.IsZero() {
		t.Errorf("status is %+v", status)
	}
}

func TestManualMigrations(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	path := filepath.Join(t.TempDir(), "store.db")
	text, err := MigrationSQL("mine_", 0)
	ok(t, err)
	_, err = userDB(t, path).Exec(text)
	ok(t, err)
	status, err := MigrationStatus(ctx, Config{Path: path, Prefix: "mine_"})
	ok(t, err)
	for _, m := range status {
		if m.AppliedAt.IsZero() || time.Since(m.AppliedAt).Abs() > time.Hour {
			t.Errorf("version %d was applied at %v", m.Version, m.AppliedAt)
		}
	}
	s := mustOpen(t, Config{Path: path, Prefix: "mine_", NoMigrate: true})
	runs(t, s, someone("a"))
	if rest, err := MigrationSQL("mine_", len(migrations)); err != nil || strings.Contains(rest, "CREATE") {
		t.Errorf("nothing is left to apply, but: %s (%v)", rest, err)
	}
	for _, c := range []struct {
		prefix string
		from   int
	}{{"a-b", 0}, {"a_", -1}, {"a_", len(migrations) + 1}} {
		if _, err := MigrationSQL(c.prefix, c.from); err == nil {
			t.Errorf("MigrationSQL(%q, %d) has no error", c.prefix, c.from)
		}
	}
}

// NoMigrate refuses a missing schema; Migrate creates it, once.
func TestMigrate(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	cfg := Config{Path: filepath.Join(t.TempDir(), "store.db")}
	if _, err := MigrationStatus(ctx, cfg); err == nil {
		t.Error("a file that is not there has a status")
	}
	ok(t, os.WriteFile(cfg.Path, nil, 0o600))
	status, err := MigrationStatus(ctx, cfg)
	ok(t, err)
	if len(status) != len(migrations) || !status[0].AppliedAt.IsZero() {
		t.Errorf("the status of an empty file is %+v", status)
	}
	manual := cfg
	manual.NoMigrate = true
	_, err = OpenConfig(ctx, manual)
	var schema *storage.SchemaError
	if !errors.As(err, &schema) || schema.Have != 0 || schema.Want != len(migrations) || !strings.Contains(err.Error(), "emitd migrate up") {
		t.Fatalf("got %v", err)
	}
	applied, err := Migrate(ctx, cfg)
	ok(t, err)
	if len(applied) != len(migrations) {
		t.Errorf("applied %+v", applied)
	}
	if applied, err = Migrate(ctx, cfg); err != nil || len(applied) != 0 {
		t.Errorf("applied again: %+v, %v", applied, err)
	}
	mustOpen(t, manual)
}

// A file that a newer program has migrated is refused with both versions.
func TestNewerSchema(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	s := mustOpen(t, Config{Path: filepath.Join(t.TempDir(), "store.db")})
	_, err := userDB(t, s.Path()).Exec("INSERT INTO emitd_migration VALUES (?, 'of tomorrow', 1)", len(migrations)+1)
	ok(t, err)
	_, err = Open(ctx, s.Path())
	refused(t, err, storage.ErrSchema)
	var schema *storage.SchemaError
	if !errors.As(err, &schema) || schema.Have != len(migrations)+1 || schema.Want != len(migrations) {
		t.Errorf("got %v", err)
	}
	status, err := MigrationStatus(ctx, Config{Path: s.Path()})
	ok(t, err)
	if len(status) != len(migrations)+1 {
		t.Errorf("status is %+v", status)
	}
	if _, err := Migrate(ctx, Config{Path: s.Path()}); !errors.Is(err, storage.ErrSchema) {
		t.Errorf("migrating down: %v", err)
	}
}
