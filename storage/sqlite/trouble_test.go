package sqlite

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/storage"
)

// onWriter runs a statement on the store's own writing connection.
func onWriter(t testing.TB, s *Store, text string) {
	t.Helper()
	c := <-s.writer
	defer func() { s.writer <- c }()
	_, err := c.Conn.ExecContext(context.Background(), text)
	ok(t, err)
}

// A full disk refuses calls that need space. Their errors say so, nothing changes, and the state
// passes by itself.
func TestDiskFull(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	s := mustOpen(t, Config{Path: filepath.Join(t.TempDir(), "store.db")})
	term, _ := runs(t, s, someone("a"))
	onWriter(t, s, "PRAGMA max_page_count = 1") // SQLite raises it to the number of pages in use
	before := snapshot(t, s)
	command := storage.Command{ID: "big", Kind: daemon.CommandResign, Reason: strings.Repeat("x", 1<<20)}
	for range 2 {
		_, err := s.Submit(ctx, command)
		refused(t, err, storage.ErrUnavailable)
		var file *FileError
		if !errors.As(err, &file) || file.Problem != "the disk is full" {
			t.Fatalf("got %v", err)
		}
	}
	if after := snapshot(t, s); after.Head != before.Head || after.Term.Number != term.Number {
		t.Errorf("refused calls left %+v", after)
	}
	onWriter(t, s, "PRAGMA max_page_count = 1000000")
	_, err := s.Submit(ctx, command)
	ok(t, err)
	if got := snapshot(t, s).Head; got != before.Head+1 {
		t.Errorf("newest event is %d, want %d", got, before.Head+1)
	}
}

// A read that is interrupted costs only its connection: the next one works, and no connection is
// left behind.
func TestInterruptedReads(t *testing.T) {
	t.Parallel()
	s := mustOpen(t, Config{Path: filepath.Join(t.TempDir(), "store.db")})
	term, _ := runs(t, s, someone("a"))
	var changes []storage.Change
	for i := range storage.MaxChanges {
		changes = append(changes, storage.Change{Unit: daemon.Unit{Daemon: "acme:many", Index: i}})
	}
	_, err := s.Commit(context.Background(), storage.Commit{Term: term.Ref(), Changes: changes})
	ok(t, err)
	cut := 0
	for i := range 60 {
		ctx, cancel := context.WithTimeout(context.Background(), time.Duration(i)*100*time.Microsecond)
		if _, err := s.Snapshot(ctx); err != nil {
			cut++
			if !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, storage.ErrUnavailable) {
				t.Errorf("cut after %d00 µs: %v", i, err)
			}
		}
		cancel()
		if got := len(snapshot(t, s).Units); got != storage.MaxChanges+1 {
			t.Fatalf("%d units", got)
		}
	}
	if n := s.db.Stats().OpenConnections; cut == 0 || n > 1+maxReaders {
		t.Errorf("%d reads were cut, %d connections are open", cut, n)
	}
}

// If a transaction cannot be ended, its connection is closed with it.
func TestBrokenWriter(t *testing.T) {
	t.Parallel()
	s := mustOpen(t, Config{Path: filepath.Join(t.TempDir(), "store.db")})
	runs(t, s, someone("a"))
	c := <-s.writer
	ok(t, c.Run(context.Background(), "BEGIN IMMEDIATE")) // and nobody ends it
	s.writer <- c
	if _, err := s.Acquire(context.Background(), "lock", "me", 0, storage.Lock{}); err == nil {
		t.Error("a transaction began within another")
	}
	_, err := s.Acquire(context.Background(), "lock", "me", 0, storage.Lock{})
	ok(t, err)
	if n := s.db.Stats().OpenConnections; n > 1+maxReaders {
		t.Errorf("%d connections are open", n)
	}
}

// A user's code inside its fenced transaction does not hang: calls of the store that write give up
// at their deadline, and the error says what blocks them.
func TestCallsInsideAFencedTransaction(t *testing.T) {
	t.Parallel()
	s, f := fenced(t)
	s.cfg.QueryTimeout /= 50
	db := ledger(t, s, "")
	ok(t, s.InTx(context.Background(), db, f, addAnd(func() {
		snapshot(t, s)
		_, err := s.Acquire(context.Background(), "lock", "me", 0, storage.Lock{})
		refused(t, err, storage.ErrUnavailable)
		if !strings.Contains(err.Error(), "is locked by") {
			t.Errorf("got %v", err)
		}
	})))
}
