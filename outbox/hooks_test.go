package outbox

import (
	"context"
	"log/slog"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"weak"
)

// TestHookKeepsOnlyItsRows checks that an event which waits for its hook keeps no rows of its page but its own.
func TestHookKeepsOnlyItsRows(t *testing.T) {
	t.Parallel()
	block := make(chan struct{})
	h := newHooks(Hooks{OnDelivered: func(string, []Row) { <-block }}, slog.New(slog.DiscardHandler), func(string) { t.Error("an event was dropped") })
	other := new([1 << 20]byte)
	kept := weak.Make(other)
	page := []Row{{Message: Message{Key: "a"}}, {Message: Message{Key: "b", Payload: other[:]}}}
	h.delivered("s", []Row{{}}) // blocks
	h.delivered("s", page[:1])
	for range 3 {
		runtime.GC()
	}
	if kept.Value() != nil {
		t.Error("the event of one row keeps the other row of its page")
	}
	close(block)
	if err := h.close(context.Background()); err != nil {
		t.Error(err)
	}
}

// TestHookCountsHeaders checks that headers count, too, in the bytes that a buffer holds.
func TestHookCountsHeaders(t *testing.T) {
	t.Parallel()
	block := make(chan struct{})
	var dropped atomic.Int64
	h := newHooks(Hooks{OnFailed: func(string, Row, error) { <-block }}, slog.New(slog.DiscardHandler), func(string) { dropped.Add(1) })
	large := Row{Message: Message{Headers: map[string]string{"h": strings.Repeat("x", 4<<20)}}}
	for range 100 {
		h.failed("s", large, nil)
	}
	if n := dropped.Load(); n < 84 || n > 92 {
		t.Errorf("%d of 100 events with 4 MiB were dropped, want those that do not fit into 64 MiB", n)
	}
	close(block)
	if err := h.close(context.Background()); err != nil {
		t.Error(err)
	}
}
