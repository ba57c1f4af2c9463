package sqlite

import (
	"context"
	"errors"
	"path/filepath"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/emitd/emitd/daemon"
)

// untilWaiting waits until this many stamps wait for a transaction.
func untilWaiting(t *testing.T, s *Store, n int) {
	t.Helper()
	for end := time.Now().Add(time.Minute); ; runtime.Gosched() {
		s.stamps.mu.Lock()
		waiting := len(s.stamps.waiting)
		s.stamps.mu.Unlock()
		switch {
		case waiting == n:
			return
		case time.Now().After(end):
			t.Fatalf("%d stamps wait, want %d", waiting, n)
		}
	}
}

// TestStampsShareTransactions: what waits while another transaction is under way is written in few transactions, and each
// caller learns what has become of its own stamp.
func TestStampsShareTransactions(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	s := mustOpen(t, Config{Path: filepath.Join(t.TempDir(), "store.db")})
	ok(t, s.StampFence(ctx, daemon.Fence{Unit: daemon.Unit{Daemon: "acme:a", Index: 7}, Generation: 9}))
	const n = maxStamps + 50
	writer := <-s.writer // as another call has it
	errs := make([]error, n)
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() {
			errs[i] = s.StampFence(ctx, daemon.Fence{Unit: daemon.Unit{Daemon: "acme:a", Index: i}, Generation: 5})
		})
	}
	untilWaiting(t, s, n)
	s.writer <- writer
	all.Wait()
	untilWaiting(t, s, 0)
	for i, err := range errs {
		if stale, _ := errors.AsType[*daemon.StaleError](err); i == 7 && (stale == nil || stale.HeldGeneration != 9) || i != 7 && err != nil {
			t.Errorf("stamp %d: %v", i, err)
		}
	}
	db := ledger(t, s, "")
	var units, transactions int
	ok(t, db.QueryRow("SELECT count(*), count(DISTINCT stamped_at) FROM emitd_fence WHERE generation = 5").Scan(&units, &transactions))
	if units != n-1 || transactions > 3 {
		t.Errorf("%d fences in %d transactions, want %d in two, or three", units, transactions, n-1)
	}
}

// TestStampsOfManyCallers: each stamp is settled once, whoever writes it.
func TestStampsOfManyCallers(t *testing.T) {
	t.Parallel()
	s := mustOpen(t, Config{Path: filepath.Join(t.TempDir(), "store.db")})
	var all sync.WaitGroup
	for i := range 50 {
		all.Go(func() {
			for g := range int64(50) {
				if err := s.StampFence(context.Background(), daemon.Fence{Unit: daemon.Unit{Daemon: "acme:a", Index: i}, Generation: g + 1}); err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	untilWaiting(t, s, 0)
}

// TestStampFailsAlone: a stamp whose time is over before it gets the write lock fails no other one, although it would
// have taken the other one along.
func TestStampFailsAlone(t *testing.T) {
	t.Parallel()
	s := mustOpen(t, Config{Path: filepath.Join(t.TempDir(), "store.db")})
	db := ledger(t, s, "")
	db.SetMaxOpenConns(1)
	_, err := db.Exec("BEGIN IMMEDIATE")
	ok(t, err)
	short, cancel := context.WithCancel(context.Background())
	first, second := make(chan error, 1), make(chan error, 1)
	go func() { first <- s.StampFence(short, daemon.Fence{Unit: unit0, Generation: 1}) }()
	untilWaiting(t, s, 1)
	for len(s.writer) > 0 {
		runtime.Gosched() // until the first one waits for the lock
	}
	go func() { second <- s.StampFence(context.Background(), daemon.Fence{Unit: unit0, Generation: 2}) }()
	untilWaiting(t, s, 2)
	cancel()
	refused(t, <-first, context.Canceled)
	_, err = db.Exec("ROLLBACK")
	ok(t, err)
	ok(t, <-second)
	ok(t, s.StampFence(context.Background(), daemon.Fence{Unit: unit0, Generation: 2}))
	refused(t, s.StampFence(context.Background(), daemon.Fence{Unit: unit0, Generation: 1}), daemon.ErrStale)
	ok(t, s.Close())
	refused(t, s.StampFence(context.Background(), daemon.Fence{Unit: unit0, Generation: 3}), errClosed)
}
