package sqlite

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/emitd/emitd/outbox"
)

// TestPublishIsPartOfTheTransaction checks that a business row and its message are committed or rolled
// back together.
func TestPublishIsPartOfTheTransaction(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Config{})
	_, err := w.db.Exec("CREATE TABLE orders (id INTEGER PRIMARY KEY)")
	ok(t, err)
	ctx, full := context.Background(), errors.New("no room")
	for i := range 4 {
		err := w.pub.InTx(ctx, w.db, func(tx *Tx) error {
			if _, err := tx.ExecContext(ctx, "INSERT INTO orders VALUES (?)", i); err != nil {
				return err
			}
			if err := w.pub.Publish(ctx, tx, text("k", fmt.Sprint(i))); err != nil {
				return err
			}
			if i%2 == 1 {
				return full
			}
			return nil
		})
		if i%2 == 1 != errors.Is(err, full) {
			t.Fatalf("transaction %d: %v", i, err)
		}
	}
	var orders int
	ok(t, w.db.QueryRow("SELECT sum(id * 10 + 1) FROM orders").Scan(&orders))
	if got := drain(t, w.claim(t, "s", 1)); orders != 22 || !slices.Equal(got, []string{"0", "2"}) {
		t.Errorf("orders %d, messages %v", orders, got)
	}
}

// TestPanicRollsBack checks that a panic of the caller leaves neither an open transaction nor the write
// lock.
func TestPanicRollsBack(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Config{})
	func() {
		defer func() { _ = recover() }()
		_ = w.pub.InTx(context.Background(), w.db, func(tx *Tx) error {
			ok(t, w.pub.Publish(context.Background(), tx, text("k", "gone")))
			panic("caller")
		})
	}()
	w.publish(t, text("k", "there"))
	if got := drain(t, w.claim(t, "s", 1)); !slices.Equal(got, []string{"there"}) {
		t.Errorf("messages %v", got)
	}
}

// TestPublishInEveryTransaction checks that every kind of transaction in database/sql works, and that a
// handle is refused.
func TestPublishInEveryTransaction(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Config{})
	ctx := context.Background()
	plain, err := w.db.Begin()
	ok(t, err)
	ok(t, w.pub.PublishTx(ctx, plain, text("k", "plain")))
	ok(t, plain.Commit())
	conn, err := w.db.Conn(ctx)
	ok(t, err)
	_, err = conn.ExecContext(ctx, "BEGIN IMMEDIATE")
	ok(t, err)
	ok(t, w.pub.Publish(ctx, conn, text("k", "connection")))
	_, err = conn.ExecContext(ctx, "COMMIT")
	ok(t, err)
	ok(t, conn.Close())
	if err := w.pub.Publish(ctx, w.db, text("k", "handle")); err == nil {
		t.Error("published by a handle, outside of any transaction")
	}
	if got := drain(t, w.claim(t, "s", 1)); !slices.Equal(got, []string{"plain", "connection"}) {
		t.Errorf("messages %v", got)
	}
}

// TestSavepoint checks that an undone savepoint removes its messages from the log and from the hook.
func TestSavepoint(t *testing.T) {
	t.Parallel()
	reported := make(chan []outbox.Message, 1)
	w := newWorld(t, Config{OnPublished: func(m []outbox.Message) { reported <- m }})
	ctx, undo := context.Background(), errors.New("undo")
	put := func(tx *Tx, s string) error { return w.pub.Publish(ctx, tx, text("k", s)) }
	ok(t, w.pub.InTx(ctx, w.db, func(tx *Tx) error {
		ok(t, put(tx, "1"))
		err := tx.Savepoint(ctx, func() error {
			ok(t, put(tx, "undone"))
			ok(t, tx.Savepoint(ctx, func() error { return put(tx, "undone too") }))
			return undo
		})
		if !errors.Is(err, undo) {
			t.Errorf("got %v", err)
		}
		return tx.Savepoint(ctx, func() error { return put(tx, "2") })
	}))
	var got []string
	for _, m := range <-reported {
		got = append(got, string(m.Payload))
	}
	if want := []string{"1", "2"}; !slices.Equal(got, want) || !slices.Equal(drain(t, w.claim(t, "s", 1)), want) {
		t.Errorf("the hook was told of %v", got)
	}
}

// TestOnPublished checks that hooks get only whole commits, in order, and that a hook that panics gets
// the next one.
func TestOnPublished(t *testing.T) {
	t.Parallel()
	var mu sync.Mutex
	var reported []string
	w := newWorld(t, Config{Logger: slog.New(slog.DiscardHandler), OnPublished: func(m []outbox.Message) {
		mu.Lock()
		defer mu.Unlock()
		reported = append(reported, fmt.Sprint(len(m), string(m[0].Payload)))
		if m[0].ID.Version() == 0 {
			t.Error("the hook is told of a message without ID")
		}
		if len(reported) == 1 {
			panic("hook")
		}
	}})
	ctx := context.Background()
	w.publish(t, text("k", "a"), text("k", "b"))
	_ = w.pub.InTx(ctx, w.db, func(tx *Tx) error {
		ok(t, w.pub.Publish(ctx, tx, text("k", "undone")))
		return errors.New("undo")
	})
	w.publish(t)
	plain, err := w.db.Begin()
	ok(t, err)
	wrapped := w.pub.Wrap(plain)
	ok(t, w.pub.Publish(ctx, wrapped, text("k", "c")))
	mu.Lock()
	before := len(reported)
	mu.Unlock()
	ok(t, wrapped.Commit())
	if err := wrapped.Commit(); !errors.Is(err, sql.ErrTxDone) {
		t.Errorf("a second commit: %v", err)
	}
	ok(t, w.pub.Close(ctx)) // reports the remaining commits
	if want := []string{"2a", "1c"}; !slices.Equal(reported, want) || before > 1 {
		t.Errorf("the hook was told of %v, want %v (%d before the commit)", reported, want, before)
	}
}

// TestInTxWakes checks that a commit wakes the relays of the process at once, without watching the file;
// a rollback does not.
func TestInTxWakes(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Config{WatchInterval: -1})
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	wake := w.WakeUps(ctx)
	_ = w.pub.InTx(ctx, w.db, func(tx *Tx) error {
		return errors.Join(w.pub.Publish(ctx, tx, text("k", "undone")), errors.New("undo"))
	})
	select {
	case <-wake:
		t.Error("a rollback woke")
	default:
	}
	w.publish(t, text("k", "1"))
	select {
	case <-wake:
	case <-ctx.Done():
		t.Fatal("a commit did not wake")
	}
	gone, end := context.WithCancel(ctx)
	w.WakeUps(gone)
	end()
	eventually(t, "a channel of an ended context is let go", func() bool {
		commits.mu.Lock()
		defer commits.mu.Unlock()
		return len(commits.listeners[w.cfg.Path]) == 1
	})
}

// TestBareTransactionIsFound checks that the commit of any other transaction is found by watching the
// file, even in the same process.
func TestBareTransactionIsFound(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Config{WatchInterval: 2 * time.Millisecond})
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	wake := w.WakeUps(ctx)
	plain, err := w.db.Begin()
	ok(t, err)
	ok(t, w.pub.PublishTx(ctx, plain, text("k", "1")))
	ok(t, plain.Commit())
	select {
	case <-wake:
	case <-ctx.Done():
		t.Fatal("nothing woke")
	}
}

// TestInTxWaitsForTheLock checks that InTx waits for the write lock as long as its context allows, and
// says what it waited for.
func TestInTxWaitsForTheLock(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Config{})
	db, err := sql.Open("sqlite", "file:"+w.cfg.Path) // without a busy timeout
	ok(t, err)
	defer db.Close()
	blocker, err := w.pub.begin(context.Background(), db)
	ok(t, err)
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	err = w.pub.InTx(ctx, db, func(*Tx) error { t.Error("it ran"); return nil })
	if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "another transaction writes") {
		t.Errorf("got %v", err)
	}
	done := make(chan error, 1)
	go func() { done <- w.pub.InTx(context.Background(), db, func(*Tx) error { return nil }) }()
	ok(t, blocker.Rollback())
	ok(t, <-done)
}

// TestReadBeforeWrite checks a transaction that reads before it publishes while another one writes: the
// error says how to begin it, and nothing is published.
func TestReadBeforeWrite(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Config{})
	tx, err := w.db.Begin()
	ok(t, err)
	var n int
	ok(t, tx.QueryRow("SELECT count(*) FROM emitd_outbox").Scan(&n))
	w.publish(t, text("k", "between"))
	err = w.pub.PublishTx(context.Background(), tx, text("k", "late"))
	if err == nil || !strings.Contains(err.Error(), "InTx") {
		t.Errorf("got %v", err)
	}
	ok(t, tx.Rollback())
}

// TestConfigIsValidated checks that all mistakes in a configuration are named at once.
func TestConfigIsValidated(t *testing.T) {
	t.Parallel()
	_, err := New(nil, Config{Prefix: "x; drop", Sync: "off", OnLag: "panic", MaxConns: -1, QueryTimeout: 1, WatchInterval: 1, MaxRetained: -1})
	for _, want := range []string{"prefix", "sync", "on_lag", "max connections", "query_timeout", "watch_interval", "max_retained"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not in %v", want, err)
		}
	}
	for _, path := range []string{"", ":memory:", t.TempDir(), t.TempDir() + "/no/such/dir/app.db"} {
		if l, err := Open(context.Background(), Config{Path: path}); err == nil {
			l.Close()
			t.Errorf("opened %q", path)
		}
	}
}

// eventually waits until a condition holds.
func eventually(t testing.TB, what string, cond func() bool) {
	t.Helper()
	deadline := time.After(20 * time.Second)
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !cond() {
		select {
		case <-tick.C:
		case <-deadline:
			t.Fatalf("waited in vain: %s", what)
		}
	}
}

// TestTransactionKeepsNoPayloads checks that a transaction does not hold what was published in it if there is no hook that
// would get it.
func TestTransactionKeepsNoPayloads(t *testing.T) {
	t.Parallel()
	w, ctx := newWorld(t, Config{}), context.Background()
	ok(t, w.pub.InTx(ctx, w.db, func(tx *Tx) error {
		ok(t, w.pub.Publish(ctx, tx, text("k", "1")))
		ok(t, tx.Savepoint(ctx, func() error { return w.pub.Publish(ctx, tx, text("k", "2")) }))
		if len(tx.published) > 0 || !tx.wrote {
			t.Errorf("%d messages are kept, and that there are any: %v", len(tx.published), tx.wrote)
		}
		return nil
	}))
}
