package backend

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/emitd/emitd/cmd/emitd/internal/config"
	"github.com/emitd/emitd/internal/admin/fault"
	"github.com/emitd/emitd/outbox"
	"github.com/emitd/emitd/outbox/postgres"
	"github.com/emitd/emitd/outbox/sqlite"
)

// TestOutboxPolicies checks that policy ReadOnly creates nothing, and that a node creates the tables unless
// it must not.
func TestOutboxPolicies(t *testing.T) {
	t.Parallel()
	ctx, o := context.Background(), options(t, ReadOnly)
	o.Config.Outbox.URL = config.SQLiteURL(filepath.Join(t.TempDir(), "a ?#%.db"))
	path, _ := config.SQLitePath(o.Config.Outbox.URL)
	for name, f := range map[string]func() error{
		"open":    func() error { _, err := OpenOutbox(ctx, o); return err },
		"status":  func() error { _, err := OutboxStatus(ctx, o); return err },
		"pending": func() error { _, err := PendingOutbox(ctx, o); return err },
	} {
		if err := f(); codeOf(err) != fault.Unreachable {
			t.Errorf("%s of no file: %v", name, err)
		}
	}
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		t.Fatalf("looking made the file: %v", err)
	}
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	o.Policy = Never
	if _, err := OpenOutbox(ctx, o); codeOf(err) != fault.OutboxSchema {
		t.Errorf("a node that may not migrate: %v", err)
	}
	o.Policy = Auto
	for i, want := range []int{1, 0} {
		box, err := OpenOutbox(ctx, o)
		if err != nil {
			t.Fatal(err)
		}
		if len(box.Migrated) != want || box.Kind != "sqlite" || len(box.Tasks) == 0 {
			t.Errorf("%d: %+v", i, box)
		}
		if err := errors.Join(box.Publish(ctx, outbox.Message{Topic: "t"}), box.Close(ctx)); err != nil {
			t.Error(err)
		}
	}
	all, err := OutboxStatus(ctx, o)
	if err != nil || len(all) != 1 || all[0].AppliedAt.IsZero() {
		t.Errorf("status: %+v, %v", all, err)
	}
	if err := os.WriteFile(path, []byte("this is no database, whatever its name says"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenOutbox(ctx, o); codeOf(err) != fault.StoreFailed {
		t.Errorf("a file that is no database: %v", err)
	}
}

func TestNoDatabaseForAnOutbox(t *testing.T) {
	t.Parallel()
	for store, want := range map[string]string{"": "neither outbox.url nor store.url", "s3://k:hunter2@b/p": "store.url is s3://k:***@b/p"} {
		c := config.Defaults("default")
		c.Store.URL = store
		for name, f := range map[string]func() error{
			"open":    func() error { _, err := OpenOutbox(t.Context(), Options{Config: c}); return err },
			"migrate": func() error { _, err := MigrateOutbox(t.Context(), Options{Config: c}); return err },
			"sql":     func() error { _, err := OutboxSQL(c, 0); return err },
		} {
			if err := f(); codeOf(err) != fault.OutboxURL || !strings.Contains(err.Error(), want) {
				t.Errorf("%s of %q: %v", name, store, err)
			}
		}
	}
}

func TestOutboxSQL(t *testing.T) {
	t.Parallel()
	for address, newest := range map[string]int{"sqlite:///x.db": sqlite.Version, "postgres://h/d": postgres.Version} {
		c := config.Defaults("default")
		c.Outbox.URL, c.Outbox.Prefix = address, "mine_"
		text, err := OutboxSQL(c, 0)
		if err != nil || !strings.Contains(text, "mine_outbox_cursor") {
			t.Errorf("%s: %v: %.200s", address, err, text)
		}
		if text, err := OutboxSQL(c, newest); err != nil || text != "" {
			t.Errorf("%s after the newest: %v: %q", address, err, text)
		}
		if _, err := OutboxSQL(c, 99); codeOf(err) != fault.Usage {
			t.Errorf("%s after one that is not: %v", address, err)
		}
	}
}

func TestOutboxFaults(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		err  error
		want fault.Code
	}{
		{fmt.Errorf("x: %w", outbox.ErrSchema), fault.OutboxSchema},
		{fmt.Errorf("x: %w", outbox.ErrNotFound), fault.NoMessage},
		{context.DeadlineExceeded, fault.Unreachable},
		{errors.New("x"), fault.StoreFailed},
		{fmt.Errorf("x: %w", &net.OpError{Op: "dial", Err: errors.New("refused")}), fault.Unreachable},
		{fmt.Errorf("x: %w", &pgconn.PgError{Code: "57P03"}), fault.Unreachable},
		{fmt.Errorf("x: %w", &pgconn.PgError{Code: "28P01"}), fault.NoRight},
		{fault.New(fault.Locked, "x"), fault.Locked},
	} {
		if got := OutboxFault(c.err).Code; got != c.want {
			t.Errorf("%v is %s, want %s", c.err, got, c.want)
		}
	}
}

// TestOutboxSettings checks that both databases get the same settings.
func TestOutboxSettings(t *testing.T) {
	t.Parallel()
	c := config.Defaults("default")
	c.Store.Schema, c.Store.Prefix, c.Outbox.Prefix = "s", "store_", "box_"
	c.Outbox.URL, c.Outbox.MaxRetained, c.Outbox.OnLag = "postgres://h/d", 7, "forget"
	for retention, want := range map[config.Duration]time.Duration{0: -1, config.Duration(time.Hour): time.Hour} {
		c.Outbox.Retention = retention
		pg := postgresOutboxConfig(Options{Config: c})
		if pg.URL != "postgres://h/d" || pg.Schema != "s" || pg.Prefix != "box_" || pg.Retention != want || pg.MaxRetained != 7 || pg.OnLag != postgres.LagForget {
			t.Errorf("postgres: %+v", pg)
		}
		lite := c
		lite.Outbox.URL = config.SQLiteURL("/a.db")
		got := sqliteOutboxConfig(Options{Config: lite})
		if got.Path != "/a.db" || got.Prefix != "box_" || got.Retention != want || got.MaxRetained != 7 || got.OnLag != sqlite.LagForget {
			t.Errorf("sqlite: %+v", got)
		}
	}
}
