package postgres

import (
	"context"
	"strings"
	"testing"
	"time"
)

// TestNoConnection checks that a call without a connection names the setting that helps: whether the
// log's own pool or the server has none left.
func TestNoConnection(t *testing.T) {
	t.Parallel()
	s := newStage(t)
	cfg := s.config(t, Config{MaxConns: 2, Notify: NotifyPoll})
	w := s.open(t, cfg)
	for range 2 {
		conn, err := w.pool.Acquire(t.Context())
		ok(t, err)
		defer conn.Release()
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := w.Stats(ctx, ""); err == nil || !strings.Contains(err.Error(), "all 2 connections were busy: raise outbox.max_connections") {
		t.Errorf("all connections are busy: %v", err)
	}
	s.exec(t, "alter role "+s.role+" connection limit 0")
	if _, err := Open(t.Context(), cfg); err == nil || !strings.Contains(err.Error(), "lower outbox.max_connections or raise the server's max_connections") {
		t.Errorf("the server has no connection left: %v", err)
	}
}
