package backend

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/emitd/emitd/cmd/emitd/internal/config"
	"github.com/emitd/emitd/internal/admin/fault"
	"github.com/emitd/emitd/storage"
	"github.com/emitd/emitd/storage/sqlite"
)

func options(t *testing.T, p Policy) Options {
	t.Helper()
	c := config.Defaults("default")
	c.Store.URL = config.SQLiteURL(filepath.Join(t.TempDir(), "cluster.db"))
	return Options{Config: c, Policy: p}
}

func codeOf(err error) fault.Code {
	for _, f := range fault.Of(err) {
		return f.Code
	}
	return ""
}

// TestPolicies checks that policy ReadOnly creates nothing, that a node creates the file, and that the schema
// is then there for all.
func TestPolicies(t *testing.T) {
	t.Parallel()
	ctx, o := context.Background(), options(t, ReadOnly)
	if _, err := Open(ctx, o); codeOf(err) != fault.Unreachable {
		t.Errorf("looking at no file: %v", err)
	}
	if _, err := Status(ctx, o); codeOf(err) != fault.Unreachable {
		t.Errorf("status of no file: %v", err)
	}
	path, _ := config.SQLitePath(o.Config.Store.URL)
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		t.Fatalf("looking made the file: %v", err)
	}
	o.Policy = Never
	if _, err := Open(ctx, o); codeOf(err) != fault.NotMigrated {
		t.Errorf("a node that may not migrate: %v", err)
	}
	o.Policy = Auto
	s, err := Open(ctx, o)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if s.Kind != "sqlite" {
		t.Errorf("kind is %q", s.Kind)
	}
	if _, ok := s.Store.(storage.Watcher); !ok {
		t.Error("the store's own abilities are hidden")
	}
	for _, p := range []Policy{ReadOnly, Never, Always} {
		o.Policy = p
		again, err := Open(ctx, o)
		if err != nil {
			t.Fatalf("%s: %v", p, err)
		}
		if err := again.Close(); err != nil {
			t.Error(err)
		}
	}
	pending, err := Pending(ctx, o)
	if err != nil || len(pending) != 0 {
		t.Errorf("pending: %v, %v", pending, err)
	}
}

func TestMigrate(t *testing.T) {
	t.Parallel()
	ctx, o := context.Background(), options(t, ReadOnly)
	done, err := Migrate(ctx, o)
	if err != nil || len(done) == 0 {
		t.Fatalf("migrated %v: %v", done, err)
	}
	all, err := Status(ctx, o)
	if err != nil || len(all) != len(done) || all[0].AppliedAt.IsZero() {
		t.Errorf("status %v: %v", all, err)
	}
	again, err := Migrate(ctx, o)
	if err != nil || len(again) != 0 {
		t.Errorf("migrated again %v: %v", again, err)
	}
}

func TestSQL(t *testing.T) {
	t.Parallel()
	for _, url := range []string{"sqlite:///x.db", "postgres://", "postgresql://"} {
		c := config.Defaults("default")
		c.Store.URL, c.Store.Prefix = url, "mine_"
		text, err := SQL(c, 0)
		if err != nil || !strings.Contains(text, "mine_") {
			t.Errorf("%s: %v, %d bytes", url, err, len(text))
		}
		if _, err := SQL(c, 1000); codeOf(err) != fault.Usage {
			t.Errorf("%s from version 1000: %v", url, err)
		}
	}
}

// TestPostgresConfig checks that the store gets the configuration's settings of the pool.
func TestPostgresConfig(t *testing.T) {
	t.Parallel()
	c := config.Defaults("fast")
	if got := postgresConfig(Options{Config: c}); got.MaxConns != 4 || got.QueryTimeout != c.Timing().QueryTimeout {
		t.Errorf("by default: %v", got)
	}
	c.Store.MaxConnections = 16
	if got := postgresConfig(Options{Config: c}); got.MaxConns != 16 {
		t.Errorf("%d connections, want 16", got.MaxConns)
	}
}

// TestObjectConfig checks that a bucket's store has the time of a call from the configuration.
func TestObjectConfig(t *testing.T) {
	t.Parallel()
	c := config.Defaults("fast")
	if got := objectConfig(Options{Config: c}); got.QueryTimeout != c.Timing().QueryTimeout || got.MustExist {
		t.Errorf("%+v", got)
	}
}

func TestUnknownStores(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	for _, url := range []string{"", "mysql://x"} {
		o := Options{Config: config.Defaults("default")}
		o.Config.Store.URL = url
		_, open := Open(ctx, o)
		_, status := Status(ctx, o)
		_, migrate := Migrate(ctx, o)
		_, sql := SQL(o.Config, 0)
		for _, err := range []error{open, status, migrate, sql} {
			if codeOf(err) != fault.StoreURL {
				t.Errorf("%q: %v", url, err)
			}
		}
	}
}

func TestMemory(t *testing.T) {
	t.Parallel()
	s := Memory()
	if _, err := s.Snapshot(context.Background()); err != nil || s.Kind != "memory" || s.Close() != nil {
		t.Errorf("memory: %v", err)
	}
	if pid, stopped := s.Blocker(); pid != 0 || stopped {
		t.Error("a store in memory has a blocker")
	}
}

func TestFaults(t *testing.T) {
	t.Parallel()
	file := func(problem string, err error) error {
		return fmt.Errorf("open store: %w", &sqlite.FileError{Path: "/x.db", Problem: problem, Hint: "mend it", Err: err})
	}
	for _, c := range []struct {
		err  error
		code fault.Code
	}{
		{fault.New(fault.NoNode, "x"), fault.NoNode},
		{file("cannot be written", nil), fault.ReadOnly},
		{file("cannot be opened or created", nil), fault.NoRight},
		{file("is a riddle", os.ErrPermission), fault.NoRight},
		{file("does not exist", nil), fault.Unreachable},
		{file("is gone", nil), fault.Unreachable},
		{file("is not a SQLite database", nil), fault.StoreFailed},
		{&sqlite.LockedError{Path: "/x.db", PID: 7, Stopped: true}, fault.Locked},
		{&pgconn.PgError{Code: "25006"}, fault.ReadOnly},
		{&pgconn.PgError{Code: "42501"}, fault.NoRight},
		{&pgconn.PgError{Code: "28P01"}, fault.NoRight},
		{&pgconn.PgError{Code: "3D000"}, fault.NoDatabase},
		{&pgconn.PgError{Code: "XX000"}, fault.Internal},
		{&storage.SchemaError{Have: 1, Want: 2}, fault.OldSchema},
		{errors.New("x"), fault.Internal},
	} {
		if f := Fault(c.err); f.Code != c.code {
			t.Errorf("%v: %s, want %s", c.err, f.Code, c.code)
		}
	}
	f := Fault(&sqlite.LockedError{Path: "/x.db", PID: 7, Stopped: true})
	if !strings.Contains(f.What, "process 7") || !strings.Contains(f.Advice(), "kill -CONT 7") {
		t.Errorf("%s; %s", f.What, f.Advice())
	}
}
