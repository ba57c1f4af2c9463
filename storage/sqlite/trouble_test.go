package sqlite

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"github.com/emitd/emitd/storage"
)

// onWriter runs a statement on the store's own writing connection.
func onWriter(t testing.TB, s *Store, text string) {
	t.Helper()
	c := <-s.writer
	defer func() { s.writer <- c }()
	_, err := c.conn.ExecContext(context.Background(), text)
	ok(t, err)
}

// A full disk refuses what needs room, says so, changes nothing, and passes by itself.
func TestDiskFull(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	s := mustOpen(t, Config{Path: filepath.Join(t.TempDir(), "store.db")})
	term, _ := runs(t, s, someone("a"))
	onWriter(t, s, "PRAGMA max_page_count = 1") // as many as there are
	before := look(t, s)
	command := storage.Command{ID: "big", Kind: storage.CommandResign, Reason: strings.Repeat("x", 1<<20)}
	for range 2 {
		_, err := s.Submit(ctx, command)
		refused(t, err, storage.ErrUnavailable)
		var file *FileError
		if !errors.As(err, &file) || file.Problem != "the disk is full" {
			t.Fatalf("got %v", err)
		}
	}
	if after := look(t, s); after.Head != before.Head || after.Term.Number != term.Number {
		t.Errorf("refused calls left %+v", after)
	}
	onWriter(t, s, "PRAGMA max_page_count = 1000000")
	_, err := s.Submit(ctx, command)
	ok(t, err)
	if got := look(t, s).Head; got != before.Head+1 {
		t.Errorf("newest event is %d, want %d", got, before.Head+1)
	}
}

// A connection that breaks is replaced at the next call at the latest, for writing and reading.
func TestBrokenConnections(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	s := mustOpen(t, Config{Path: filepath.Join(t.TempDir(), "store.db")})
	runs(t, s, someone("a"))
	for range maxReaders {
		look(t, s) // every reading session has been used
	}
	for range 3 {
		c := <-s.writer
		ok(t, c.conn.Close())
		s.writer <- c
		for range maxReaders {
			c := <-s.readers
			ok(t, c.conn.Close())
			s.readers <- c
		}
		_, _ = s.Acquire(ctx, "lock", "me", 0)
		for range maxReaders {
			_, _ = s.Snapshot(ctx)
		}
		_, err := s.Acquire(ctx, "lock", "me", 0)
		ok(t, err)
		for range maxReaders {
			look(t, s)
		}
	}
}

// What a user's code does inside its fenced transaction does not hang: calls of the store that
// write give up at their deadline and say who is in the way.
func TestCallsInsideAFencedTransaction(t *testing.T) {
	t.Parallel()
	s, f := fenced(t)
	s.cfg.QueryTimeout /= 50
	db := ledger(t, s, "")
	ok(t, s.InTx(context.Background(), db, f, addAnd(func() {
		look(t, s)
		_, err := s.Acquire(context.Background(), "lock", "me", 0)
		refused(t, err, storage.ErrUnavailable)
		if !strings.Contains(err.Error(), "is locked by") {
			t.Errorf("got %v", err)
		}
	})))
}
