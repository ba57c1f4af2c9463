package host

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/emitd/emitd/cmd/emitd/internal/backend"
	"github.com/emitd/emitd/cmd/emitd/internal/config"
	"github.com/emitd/emitd/cmd/emitd/internal/telemetry"
	"github.com/emitd/emitd/internal/admin/fault"
	"github.com/emitd/emitd/queue"
	"github.com/emitd/emitd/storage"
)

// errRefused is the error for a server that is down, errWrong one that waiting does not cure.
var (
	errRefused = fmt.Errorf("%w: %w", storage.ErrUnavailable, &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED})
	errWrong   = fault.New(fault.NoRight, "the server refuses the password")
)

// lines collects the messages of a log.
type lines struct {
	slog.Handler
	mu      sync.Mutex
	answer  []string
	address chan string // receives the first logged address; may be nil
}

func (l *lines) Enabled(context.Context, slog.Level) bool { return true }

func (l *lines) WithAttrs([]slog.Attr) slog.Handler { return l }

func (l *lines) WithGroup(string) slog.Handler { return l }

func (l *lines) Handle(_ context.Context, r slog.Record) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.answer = append(l.answer, r.Message)
	r.Attrs(func(a slog.Attr) bool {
		if a.Key == "address" {
			select {
			case l.address <- a.Value.String():
			default:
			}
		}
		return true
	})
	return nil
}

// waiter returns a waiting with the test's Open.
func waiter(t *testing.T, open func() error) (*waiting, *lines) {
	t.Helper()
	log := &lines{Handler: slog.DiscardHandler}
	c := &config.Loaded{Config: config.Defaults("")}
	return &waiting{h: &host{log: slog.New(log), Options: Options{Config: c, Open: func(context.Context, *telemetry.Telemetry) (*backend.Store, error) {
		if err := open(); err != nil {
			return nil, backend.Fault(err)
		}
		return backend.Memory(), nil
	}}}}, log
}

// TestStoreIsWaitedFor checks that a store that is away for ten minutes is tried every few seconds, and
// logged at once and then once a minute.
func TestStoreIsWaitedFor(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		begun, tries := time.Now(), 0
		w, log := waiter(t, func() error {
			if tries++; time.Since(begun) < 10*time.Minute {
				return errRefused
			}
			return nil
		})
		done := make(chan error, 1)
		go func() {
			_, err := w.open(t.Context(), nil)
			done <- err
		}()
		synctest.Wait()
		if len(log.answer) != 1 || !strings.Contains(w.why().Error(), "E5101") {
			t.Errorf("after the first attempt: %q, %v", log.answer, w.why())
		}
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		if took := time.Since(begun); took > 10*time.Minute+retries.Limit {
			t.Errorf("the store was open after %v", took)
		}
		if n := len(log.answer); n < 9 || n > 12 || !strings.Contains(log.answer[n-1], "answers") {
			t.Errorf("ten minutes made %d lines: %q", n, log.answer)
		}
		if tries < 120 || tries > 260 {
			t.Errorf("ten minutes made %d attempts", tries)
		}
	})
}

// TestWaitingEnds checks that waiting ends at the first mistake that needs a correction, at a stop, when
// the listener fails, and at once if store.wait is false.
func TestWaitingEnds(t *testing.T) {
	t.Parallel()
	down := func() error { return errRefused }
	for name, c := range map[string]struct {
		open func() error
		wait bool
		want error
	}{
		"wrong at once":   {func() error { return errWrong }, true, errWrong},
		"no waiting":      {down, false, errRefused},
		"stopped":         {down, true, context.Canceled},
		"listener broken": {down, true, net.ErrClosed},
		"wrong later": {func() func() error {
			tries := 0
			return func() error {
				if tries++; tries > 3 {
					return errWrong
				}
				return errRefused
			}
		}(), true, errWrong},
	} {
		synctest.Test(t, func(t *testing.T) {
			w, _ := waiter(t, c.open)
			w.h.Config.Store.Wait = c.wait
			ctx, cancel := context.WithCancel(t.Context())
			broken, done := make(chan error, 1), make(chan error, 1)
			go func() {
				_, err := w.open(ctx, broken)
				done <- err
			}()
			switch name {
			case "stopped":
				time.Sleep(time.Minute)
				cancel()
			case "listener broken":
				time.Sleep(time.Minute)
				broken <- net.ErrClosed
			}
			if err := <-done; !errors.Is(err, c.want) {
				t.Errorf("%s: %v, want %v", name, err, c.want)
			}
			cancel()
		})
	}
}

// TestListenerWhileTheStoreIsAway checks that the process is live and says why it is not ready, that
// everything starts once the store answers, and that a stop before that is clean.
func TestListenerWhileTheStoreIsAway(t *testing.T) {
	t.Parallel()
	for _, comes := range []bool{true, false} {
		var up sync.Mutex // held while the store is away
		up.Lock()
		log := &lines{Handler: slog.DiscardHandler, address: make(chan string, 1)}
		ready := make(chan struct{})
		o := rig(t, func(c *config.Config, o *Options) {
			c.API.TokensFile = write(t, "tokens", token+"\n")
			open := o.Open
			o.Open = func(ctx context.Context, tel *telemetry.Telemetry) (*backend.Store, error) {
				if !up.TryLock() {
					return nil, backend.Fault(errRefused)
				}
				return open(ctx, tel)
			}
			o.Handler, o.Started = log, func(*Running) { close(ready) }
		})
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		done := make(chan error, 1)
		go func() { done <- Run(ctx, o) }()
		var url string
		select {
		case address := <-log.address:
			url = "http://" + address
		case err := <-done:
			t.Fatal(err)
		}
		if s := send(ctx, t, "GET", url+"/readyz", ""); s.status != 503 || !strings.Contains(s.body, "E5101: ") || !strings.Contains(s.body, "connection refused") {
			t.Errorf("/readyz: %d %s", s.status, s.body)
		}
		for path, want := range map[string]int{"/livez": 200, "/startupz": 503, "/leaderz": 503, "/healthz": 503, "/metrics": 401} {
			if s := send(ctx, t, "GET", url+path, ""); s.status != want {
				t.Errorf("%s: %d %s, want %d", path, s.status, s.body, want)
			}
		}
		if s := send(ctx, t, "GET", url+"/metrics", "", "Authorization", "Bearer "+token); s.status != 200 {
			t.Errorf("/metrics: %d %s", s.status, s.body)
		}
		send(ctx, t, "GET", url+"/v1/queues", "", "Authorization", "Bearer "+token).problem(t, 503, queue.Unavailable)
		send(ctx, t, "GET", url+"/v1/queues", "").problem(t, 401, queue.Unauthorized)
		if comes {
			up.Unlock()
			select {
			case <-ready:
			case err := <-done:
				t.Fatal(err)
			}
			eventually(ctx, t, "it is ready", func() bool { return send(ctx, t, "GET", url+"/readyz", "").status == 200 })
		}
		http.DefaultClient.CloseIdleConnections()
		cancel()
		if err := <-done; err != nil {
			t.Errorf("the store came: %t; stopped: %v", comes, err)
		}
	}
}
