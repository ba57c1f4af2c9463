package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/storage"
)

// ledger is a user's own table in the store's file.
func ledger(t testing.TB, s *Store, options string) *sql.DB {
	t.Helper()
	db, err := sql.Open("sqlite", "file:"+s.Path()+options)
	ok(t, err)
	t.Cleanup(func() { ok(t, db.Close()) })
	_, err = db.Exec("CREATE TABLE IF NOT EXISTS ledger (entry TEXT)")
	ok(t, err)
	return db
}

func entries(t testing.TB, db *sql.DB) (n int) {
	t.Helper()
	ok(t, db.QueryRow("SELECT count(*) FROM ledger").Scan(&n))
	return n
}

func add(tx *sql.Tx) error {
	_, err := tx.Exec("INSERT INTO ledger VALUES ('x')")
	return err
}

func fenced(t testing.TB) (*Store, daemon.Fence) {
	t.Helper()
	s := mustOpen(t, Config{Path: filepath.Join(t.TempDir(), "store.db")})
	f := daemon.Fence{Unit: unit0, Generation: 7}
	ok(t, s.StampFence(context.Background(), f))
	return s, f
}

// An effect and its fence check are one transaction. A refused or failed transaction leaves
// nothing, an accepted one is there.
func TestInTx(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	s, f := fenced(t)
	db := ledger(t, s, "")
	ok(t, s.InTx(ctx, db, f, add))
	for _, g := range []int64{6, 8, 0, -1} {
		err := s.InTx(ctx, db, daemon.Fence{Unit: unit0, Generation: g}, add)
		var stale *daemon.StaleError
		if !errors.As(err, &stale) || stale.HeldGeneration != 7 {
			t.Errorf("generation %d: %v", g, err)
		}
	}
	refused(t, s.InTx(ctx, db, daemon.Fence{Unit: daemon.Unit{Daemon: "acme:other"}, Generation: 7}, add), daemon.ErrStale)
	boom := errors.New("boom")
	refused(t, s.InTx(ctx, db, f, func(tx *sql.Tx) error { return errors.Join(add(tx), boom) }), boom)
	func() {
		defer func() {
			if recover() == nil {
				t.Error("the panic was swallowed")
			}
		}()
		_ = s.InTx(ctx, db, f, func(tx *sql.Tx) error { _ = add(tx); panic(boom) })
	}()
	if n := entries(t, db); n != 1 {
		t.Errorf("%d entries, want the one that was accepted", n)
	}
	ok(t, s.StampFence(ctx, daemon.Fence{Unit: unit0, Generation: 8})) // nothing holds the file
}

// A user's transaction waits for the write lock even without busy_timeout, and even if transactions
// begin deferred.
func TestInTxWaitsForTheLock(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	s, f := fenced(t)
	for _, options := range []string{"", "?_txlock=immediate", "?_pragma=busy_timeout(5000)"} {
		db := ledger(t, s, options)
		other := ledger(t, s, "?_txlock=immediate")
		blocker, err := other.Begin()
		ok(t, err)
		done := make(chan error, 1)
		go func() { done <- s.InTx(ctx, db, f, add) }()
		select {
		case err := <-done:
			t.Fatalf("%q: ended (%v) while another transaction held the lock", options, err)
		case <-time.After(30 * time.Millisecond):
		}
		ok(t, blocker.Commit())
		ok(t, <-done)
	}
}

// From the check to the end of the transaction no run can stamp. Not even a transaction that began
// with a read can be superseded.
func TestFenceHoldsUntilTheEnd(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	s, f := fenced(t)
	db := ledger(t, s, "")
	next := daemon.Fence{Unit: unit0, Generation: 8}

	tx, err := db.Begin()
	ok(t, err)
	var n int
	ok(t, tx.QueryRow("SELECT count(*) FROM ledger").Scan(&n)) // reads before it fences
	ok(t, s.Fence(ctx, tx, f))
	short, cancel := context.WithTimeout(ctx, 50*time.Millisecond)
	defer cancel()
	err = s.StampFence(short, next)
	refused(t, err, context.DeadlineExceeded)
	var locked *LockedError
	if !errors.As(err, &locked) || !strings.Contains(err.Error(), "this process") {
		t.Errorf("got %v, want the process itself named", err)
	}
	ok(t, add(tx))
	ok(t, tx.Commit())
	ok(t, s.StampFence(ctx, next))

	// A transaction that read before another one wrote cannot be fenced any more: Fence returns an
	// error, and nothing changes.
	tx, err = db.Begin()
	ok(t, err)
	ok(t, tx.QueryRow("SELECT count(*) FROM ledger").Scan(&n))
	ok(t, s.StampFence(ctx, daemon.Fence{Unit: unit0, Generation: 9}))
	err = s.Fence(ctx, tx, next)
	if err == nil {
		t.Fatal("a transaction with an old view was accepted")
	}
	refused(t, err, storage.ErrUnavailable)
	ok(t, tx.Rollback())
}

// A transaction on another file gets an error, and does not count as fenced.
func TestFenceOnAnotherFile(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	s, f := fenced(t)
	other, _ := fenced(t) // has stamped the same
	empty, err := sql.Open("sqlite", "file:"+filepath.Join(t.TempDir(), "empty.db"))
	ok(t, err)
	defer empty.Close()
	for _, db := range []*sql.DB{userDB(t, other.Path()), empty} {
		err := s.InTx(ctx, db, f, func(*sql.Tx) error { t.Error("ran"); return nil })
		if err == nil || !strings.Contains(err.Error(), "not on the store's file") {
			t.Errorf("got %v", err)
		}
	}
}

// A fenced transaction does not outlast the validity of its assignment.
func TestInTxEndsWithTrust(t *testing.T) {
	t.Parallel()
	s, f := fenced(t)
	db := ledger(t, s, "")
	gone := daemon.WithValidity(context.Background(), func() time.Duration { return 0 })
	err := s.InTx(gone, db, f, add)
	refused(t, err, errTrust)
	short := daemon.WithValidity(context.Background(), func() time.Duration { return 30 * time.Millisecond })
	err = s.InTx(short, db, f, func(tx *sql.Tx) error {
		err := add(tx)
		// The agent hangs, and its transaction is rolled back meanwhile.
		waitFor(t, "the transaction to be ended", func() bool { return tx.QueryRow("SELECT 1").Err() != nil })
		return err
	})
	refused(t, err, errTrust)
	if n := entries(t, db); n != 0 {
		t.Errorf("%d entries of runs without trust", n)
	}
	ok(t, s.StampFence(context.Background(), daemon.Fence{Unit: unit0, Generation: 8}))
}

// A stamp that had to wait for long leaves an event.
func TestStampReportsALongWait(t *testing.T) {
	t.Parallel()
	s, f := fenced(t)
	db := ledger(t, s, "?_txlock=immediate")
	tx, err := db.Begin()
	ok(t, err)
	done := make(chan error, 1)
	go func() { done <- s.StampFence(context.Background(), daemon.Fence{Unit: unit0, Generation: 8}) }()
	<-time.After(reportWaitAfter + 50*time.Millisecond)
	ok(t, tx.Commit())
	ok(t, <-done)
	events := history(t, s, 0)
	if len(events) != 1 || events[0].Kind != daemon.FenceWaiting || events[0].Unit != f.Unit || !strings.Contains(events[0].Reason, "waited") {
		t.Errorf("events are %+v", events)
	}
}

// addAnd adds an entry and then calls more inside the transaction.
func addAnd(more func()) func(*sql.Tx) error {
	return func(tx *sql.Tx) error {
		more()
		return add(tx)
	}
}
