//go:build unix

package sqlite

import (
	"context"
	"database/sql"
	"testing"
)

// A transaction is refused if its lock does not keep the store from writing: commits would be lost. A handle without
// locks stands for one of another driver in this process.
func TestFenceUnderAnotherDriver(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	s, f := fenced(t)
	db := ledger(t, s, "")
	other := ledger(t, s, "?vfs=unix-none&_pragma=locking_mode(EXCLUSIVE)")
	refused(t, s.InTx(ctx, other, f, add), errNotLockedOut)
	ok(t, s.InTx(ctx, db, f, add))
	if n := entries(t, db); n != 1 {
		t.Errorf("%d entries, want the one of the store's driver", n)
	}

	tx, err := db.Begin()
	ok(t, err)
	ok(t, tx.Rollback())
	refused(t, s.checkLockedOut(ctx, tx), sql.ErrTxDone) // not an error about its driver
}
