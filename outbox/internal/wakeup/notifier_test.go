package wakeup_test

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/emitd/emitd/outbox"
	"github.com/emitd/emitd/outbox/internal/wakeup"
)

func message(topic string) []outbox.Message { return []outbox.Message{{Topic: topic}} }

// TestRing checks that the first commit rings at once, that those of a pause ring together, and that none
// rings after Close.
func TestRing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var rings atomic.Int64
		h := wakeup.New(wakeup.Config{WakeRelays: func(context.Context) { rings.Add(1) }, Pause: time.Second, Logger: slog.Default()})
		for i, want := range []int64{1, 1, 1, 2} {
			h.Committed(nil)
			synctest.Wait()
			if n := rings.Load(); n != want {
				t.Errorf("%d rings after commit %d, want %d", n, i, want)
			}
			time.Sleep(400 * time.Millisecond)
		}
		if err := h.Close(t.Context()); err != nil {
			t.Error(err)
		}
		h.Committed(nil)
		synctest.Wait()
		if n := rings.Load(); n != 2 {
			t.Errorf("%d rings", n)
		}
	})
}

// TestHook checks that the hook gets all commits in their order, including those still buffered at Close,
// and that a panic ends nothing.
func TestHook(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var log strings.Builder
		var heard []string
		h := wakeup.New(wakeup.Config{Logger: slog.New(slog.NewTextHandler(&log, nil)), OnPublished: func(m []outbox.Message) {
			heard = append(heard, m[0].Topic)
			time.Sleep(time.Second)
			if m[0].Topic == "b" {
				panic("oh")
			}
		}})
		const all = "abcdefghijklmnopqrst"
		for _, topic := range all {
			h.Committed(message(string(topic)))
		}
		if err := h.Close(t.Context()); err != nil {
			t.Error(err)
		}
		if strings.Join(heard, "") != all || !strings.Contains(log.String(), "panic=oh") {
			t.Errorf("heard %v, logged %q", heard, log.String())
		}
	})
}

// TestHookThatHangs checks that a hook that hangs delays nothing else, and Close only until its context
// ends. Commits that it misses are logged.
func TestHookThatHangs(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var log strings.Builder
		hang := make(chan struct{})
		var rings atomic.Int64
		h := wakeup.New(wakeup.Config{
			Logger:     slog.New(slog.NewTextHandler(&log, nil)),
			WakeRelays: func(context.Context) { rings.Add(1) }, OnPublished: func([]outbox.Message) { <-hang },
		})
		for range 2000 {
			h.Committed(message("t"))
		}
		synctest.Wait()
		if n := rings.Load(); n == 0 || !strings.Contains(log.String(), "a commit was not passed") {
			t.Errorf("%d rings, logged %q", n, log.String())
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := h.Close(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("closed: %v", err)
		}
		close(hang)
	})
}

// TestHookKeepsLittle checks that a hook which does not keep up with large messages holds no more of them than its buffer
// may, that there is room again once it has handled them, and that one commit is passed to it however large it is. It makes no
// difference whether payloads or headers are large.
func TestHookKeepsLittle(t *testing.T) {
	t.Parallel()
	hookKeepsLittle(t, outbox.Message{Topic: "t", Payload: make([]byte, 4<<20)})
	hookKeepsLittle(t, outbox.Message{Topic: "t", Headers: map[string]string{"h": strings.Repeat("x", 4<<20)}})
}

func hookKeepsLittle(t *testing.T, m outbox.Message) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		block := make(chan struct{})
		var heard atomic.Int64
		h := wakeup.New(wakeup.Config{Logger: slog.New(slog.DiscardHandler), OnPublished: func([]outbox.Message) { <-block; heard.Add(1) }})
		large := []outbox.Message{m}
		for range 2 {
			for range 100 {
				h.Committed(large)
				synctest.Wait()
			}
			for range 16 {
				select {
				case block <- struct{}{}:
					synctest.Wait()
				default:
				}
			}
			if n := heard.Swap(0); n < 8 || n > 16 {
				t.Errorf("%d of 100 commits with 4 MiB were kept, want what fits into 64 MiB", n)
			}
		}
		close(block)
		h.Committed(slices.Repeat(large, 20))
		if err := h.Close(t.Context()); err != nil {
			t.Error(err)
		}
		if n := heard.Load(); n != 1 {
			t.Errorf("%d commits of 80 MiB were kept, want the one", n)
		}
	})
}
