package lock_test

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"path/filepath"

	_ "modernc.org/sqlite"

	"github.com/emitd/emitd/coordinator/lock"
	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/storage/sqlite"
)

// A lock whose effects are fenced. The number is stamped before anything is read, and every write
// is refused once a later holder has stamped its own number.
func Example() {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "lock-example-*")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	path := filepath.Join(dir, "app.db")
	store, err := sqlite.Open(ctx, path)
	if err != nil {
		panic(err)
	}
	defer store.Close()
	db, err := sql.Open("sqlite", path)
	if err != nil {
		panic(err)
	}
	defer db.Close()
	if _, err := db.ExecContext(ctx, "CREATE TABLE report (line TEXT)"); err != nil {
		panic(err)
	}

	locks, err := lock.New(store, lock.Config{})
	if err != nil {
		panic(err)
	}
	held, err := locks.Acquire(ctx, "nightly-report")
	if err != nil {
		panic(err)
	}
	defer held.Release(ctx)

	fence := daemon.Fence{Unit: daemon.Unit{Daemon: "lock:nightly-report"}, Generation: held.Number()}
	if err := store.StampFence(ctx, fence); err != nil { // stamp first, then read
		panic(err)
	}
	err = store.InTx(held.Context(), db, fence, func(tx *sql.Tx) error {
		_, err := tx.ExecContext(held.Context(), "INSERT INTO report VALUES ('done')")
		return err
	})
	fmt.Println("written:", err == nil)

	late := daemon.Fence{Unit: fence.Unit, Generation: held.Number() - 1} // an earlier holder
	err = store.InTx(ctx, db, late, func(*sql.Tx) error { return nil })
	fmt.Println("an earlier holder:", err != nil)
	// Output:
	// written: true
	// an earlier holder: true
}
