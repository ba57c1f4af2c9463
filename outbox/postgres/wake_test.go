package postgres

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/emitd/emitd/internal/pgerror"
)

// listening returns the wake-ups of a log that listens, so that a later notification is not lost.
func (w *world) listening(t *testing.T) <-chan struct{} {
	t.Helper()
	woken := w.WakeUps(t.Context())
	<-woken // the one of the connection
	return woken
}

// mustWake waits for a wake-up.
func mustWake(t *testing.T, woken <-chan struct{}) {
	t.Helper()
	select {
	case <-woken:
	case <-time.After(time.Minute):
		t.Fatal("no wake-up came")
	}
}

// TestWakeByFunction checks that a program in any language wakes relays by the function that the documentation
// gives it.
func TestWakeByFunction(t *testing.T) {
	t.Parallel()
	if name := (names{"emitd", ""}).channel(); name != "emitd.emitd.outbox" {
		t.Errorf("the channel is %s", name)
	}
	w := newWorld(t, Config{Prefix: "its_"})
	woken := w.listening(t)
	for range 3 {
		_, err := w.app.Exec(t.Context(), w.names.q("select ~outbox_wake()"))
		ok(t, err)
		mustWake(t, woken)
	}
}

// TestWakeNeedsACommit checks that relays cannot be woken within a transaction that publishes, and that the error
// says what to do.
func TestWakeNeedsACommit(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Config{})
	tx := w.begin()
	_, err := tx.Exec(t.Context(), w.names.q("select ~outbox_publish('t', 'x')"))
	ok(t, err)
	_, err = tx.Exec(t.Context(), w.names.q("select ~outbox_wake()"))
	if pgerror.Code(err) != "P0001" || !strings.Contains(err.Error(), "in a transaction that has written") {
		t.Errorf("a wake-up before the commit: %v", err)
	}
}

// TestWakesShareANotification checks that a wake-up waits for no other one, and that one that did not notify
// because another was under way is not lost.
func TestWakesShareANotification(t *testing.T) {
	t.Parallel()
	w := newWorld(t, Config{})
	woken := w.listening(t)
	first := w.begin()
	_, err := first.Exec(t.Context(), w.names.q("select ~outbox_wake()"))
	ok(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	for range 100 { // with a commit that is under way
		_, err = w.app.Exec(ctx, w.names.q("select ~outbox_wake()"))
		ok(t, err)
	}
	select {
	case <-woken:
		t.Error("a wake-up beside one that is under way has notified, too")
	default:
	}
	ok(t, first.Commit(t.Context()))
	mustWake(t, woken)
}

// TestWakeIsNotShadowed checks that the function calls none that stand first in the session's search path.
func TestWakeIsNotShadowed(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	w := s.world(t, Config{})
	s.exec(t, `create schema if not exists wakeless; grant usage on schema wakeless to public;
		create or replace function wakeless.pg_notify(text, text) returns void language plpgsql as 'begin raise exception ''shadow''; end'`)
	woken := w.listening(t)
	ok(t, pgx.BeginFunc(t.Context(), w.app, func(tx pgx.Tx) error {
		_, err := tx.Exec(t.Context(), "set local search_path = wakeless, pg_catalog")
		if err == nil {
			_, err = tx.Exec(t.Context(), w.names.q("select ~outbox_wake()"))
		}
		return err
	}))
	mustWake(t, woken)
}
