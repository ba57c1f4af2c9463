//go:build unix

package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"testing"
)

// TestPublishUnderAnotherDriver checks that a transaction is refused whose lock does not keep the log of this process from writing, because
// commits would be lost. A handle without locks stands for one of another driver.
func TestPublishUnderAnotherDriver(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Config{})
	w.claim(t, "s", 1) // the log has written
	db, err := sql.Open("sqlite", "file:"+w.cfg.Path+"?vfs=unix-none&_pragma=locking_mode(EXCLUSIVE)")
	ok(t, err)
	defer db.Close()
	db.SetMaxOpenConns(1)
	publish := func(tx *Tx) error { return w.pub.Publish(context.Background(), tx, text("a", "1")) }
	if err := w.pub.InTx(t.Context(), db, publish); !errors.Is(err, errNotLockedOut) {
		t.Errorf("error %v, want %v", err, errNotLockedOut)
	}
	ok(t, w.pub.InTx(t.Context(), w.db, publish))
}
