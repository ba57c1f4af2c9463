//go:build unix

package sqlite

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	modernc "modernc.org/sqlite"
)

// withoutLocks is what a handle needs to stand for one of another driver.
const withoutLocks = "?vfs=unix-none&_pragma=locking_mode(EXCLUSIVE)"

// TestPublishUnderAnotherDriver checks that a transaction is refused whose lock does not keep the log of this process from writing, because
// commits would be lost. A handle without locks stands for one of another driver.
func TestPublishUnderAnotherDriver(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Config{})
	w.claim(t, "s", 1) // the log has written
	db, err := sql.Open("sqlite", "file:"+w.cfg.Path+withoutLocks)
	ok(t, err)
	defer db.Close()
	db.SetMaxOpenConns(1)
	publish := func(tx *Tx) error { return w.pub.Publish(context.Background(), tx, text("a", "1")) }
	if err := w.pub.InTx(t.Context(), db, publish); !errors.Is(err, errNotLockedOut) {
		t.Errorf("error %v, want %v", err, errNotLockedOut)
	}
	ok(t, w.pub.InTx(t.Context(), w.db, publish))
}

// TestPublishIntoAReplacedFile checks that a handle with an open connection to a file that was replaced publishes nothing into that file once
// this was found.
func TestPublishIntoAReplacedFile(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Config{})
	w.db.SetMaxOpenConns(1)
	publish := func(tx *Tx) error { return w.pub.Publish(context.Background(), tx, text("a", "1")) }
	ok(t, w.pub.InTx(t.Context(), w.db, publish)) // the connection stays open
	by := filepath.Join(t.TempDir(), "copy.db")
	_, err := w.db.Exec("VACUUM INTO ?", by)
	ok(t, err)
	for _, suffix := range []string{"-wal", "-shm"} {
		ok(t, os.Remove(w.cfg.Path+suffix))
	}
	ok(t, os.Rename(by, w.cfg.Path))
	w.claim(t, "s", 1)            // the log has written into the new file
	w.pub.begun.Store(checkEvery) // the next transaction is checked
	for i := range 3 {
		if err := w.pub.InTx(t.Context(), w.db, publish); !errors.Is(err, errNotLockedOut) || !strings.Contains(err.Error(), "replaced") {
			t.Errorf("transaction %d: error %v, want %v", i, err, errNotLockedOut)
		}
	}
	ok(t, w.pub.InTx(t.Context(), appDB(t, w.cfg.Path), publish))
}

// TestCheckThatFails checks that a transaction is rolled back if the check of its lock fails. Otherwise its connection and its lock would be
// lost.
func TestCheckThatFails(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Config{})
	w.claim(t, "s", 1) // the log has written
	inner, err := modernc.NewConnector("file:" + w.cfg.Path + withoutLocks)
	ok(t, err)
	db := sql.OpenDB(failing{inner})
	defer db.Close()
	if err := w.pub.InTx(t.Context(), db, func(*Tx) error { return nil }); !errors.Is(err, errFailing) {
		t.Errorf("error %v, want %v", err, errFailing)
	}
	if n := db.Stats().InUse; n != 0 {
		t.Errorf("%d connections are in use after the call", n)
	}
}

// failing makes connections on which only the first statement that changes something succeeds.
type failing struct{ driver.Connector }

var errFailing = errors.New("failed as ordered")

func (f failing) Connect(ctx context.Context) (driver.Conn, error) {
	conn, err := f.Connector.Connect(ctx)
	return &failingConn{Conn: conn}, err
}

type failingConn struct {
	driver.Conn
	updates int
}

func (c *failingConn) ExecContext(ctx context.Context, text string, args []driver.NamedValue) (driver.Result, error) {
	if c.updates++; c.updates > 1 {
		return nil, errFailing
	}
	return c.Conn.(driver.ExecerContext).ExecContext(ctx, text, args)
}
