package host

import (
	"bytes"
	"context"
	"database/sql"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/emitd/emitd/cmd/emitd/internal/backend"
	"github.com/emitd/emitd/cmd/emitd/internal/config"
	"github.com/emitd/emitd/cmd/emitd/internal/telemetry"
	"github.com/emitd/emitd/internal/admin/fault"
	"github.com/emitd/emitd/outbox"
	"github.com/emitd/emitd/outbox/sink/webhook"
)

// outboxRig returns a host with one subscription, hooks, that delivers to a receiver.
func outboxRig(t *testing.T, answer http.HandlerFunc, change func(*config.Subscription, *Options)) (o Options, path string) {
	t.Helper()
	receiver := httptest.NewServer(answer)
	t.Cleanup(receiver.Close)
	path = filepath.Join(t.TempDir(), "app.db")
	return rig(t, func(c *config.Config, o *Options) {
		c.Outbox.URL = config.SQLiteURL(path)
		s := config.Subscription{Name: "hooks", Sink: &config.Sink{Kind: "webhook", Settings: &webhook.Config{URL: receiver.URL}}}
		o.OpenOutbox = func(ctx context.Context, tel *telemetry.Telemetry) (*backend.Outbox, error) {
			return backend.OpenOutbox(ctx, backend.Options{Config: *c, Policy: backend.Auto, Logger: tel.Logger})
		}
		if change != nil {
			change(&s, o)
		}
		c.Outbox.Subscriptions = []config.Subscription{s}
	}), path
}

// eventually repeats yes until it returns true.
func eventually(ctx context.Context, t *testing.T, what string, yes func() bool) {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !yes() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("%s: never", what)
		}
	}
}

func publish(ctx context.Context, t *testing.T, r *Running, key, payload string) {
	t.Helper()
	if err := r.Outbox().Publish(ctx, outbox.Message{Topic: "t", Key: key, Payload: []byte(payload)}); err != nil {
		t.Fatal(err)
	}
}

func taken(ctx context.Context, t *testing.T, got <-chan string, want string) {
	t.Helper()
	for {
		select {
		case payload := <-got:
			if payload == want {
				return
			}
		case <-ctx.Done():
			t.Fatalf("%q was not delivered", want)
		}
	}
}

// TestWhateverTheReceiverDoes tests a receiver that hangs, fails, sends garbage, hangs up, or refuses.
// Each such message must become a dead letter with its cause, and the others must be delivered.
func TestWhateverTheReceiverDoes(t *testing.T) {
	t.Parallel()
	got, end := make(chan string, 100), make(chan struct{})
	answer := func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		switch text := string(body); text {
		case "hangs":
			select {
			case <-end:
			case <-r.Context().Done():
			}
		case "fails":
			http.Error(w, "out of order", http.StatusInternalServerError)
		case "refuses":
			http.Error(w, "no such customer", http.StatusNotFound)
		case "talks nonsense", "hangs up", "hangs up midway":
			conn, _, err := http.NewResponseController(w).Hijack()
			if err != nil {
				t.Error(err)
				return
			}
			send := map[string]string{"talks nonsense": "SSH-2.0-x\r\n", "hangs up midway": "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nab"}
			_, _ = io.WriteString(conn, send[text])
			_ = conn.Close()
		default:
			got <- text
		}
	}
	o, _ := outboxRig(t, answer, func(s *config.Subscription, _ *Options) {
		s.Policy, s.Retry.MaxAttempts, s.Retry.Backoff = "skip", 2, config.Duration(time.Millisecond)
		s.Sink.Settings.(*webhook.Config).Timeout = 3 * time.Second //nolint:errcheck // made above
	})
	causes := map[string]string{
		"hangs": "did not answer", "fails": "out of order", "refuses": "no such customer", "talks nonsense": "malformed", "hangs up": "EOF",
	}
	err := started(t, o, func(ctx context.Context, r *Running) {
		defer close(end)
		for kind := range causes {
			publish(ctx, t, r, kind, kind)
		}
		publish(ctx, t, r, "midway", "hangs up midway") // the answer says 200: the receiver has the message
		publish(ctx, t, r, "fine", "fine")
		taken(ctx, t, got, "fine")
		for kind := range causes {
			publish(ctx, t, r, kind, "after "+kind)
			taken(ctx, t, got, "after "+kind)
		}
		var dead []outbox.Entry
		eventually(ctx, t, "all of them are dead letters", func() (all bool) {
			var err error
			if dead, err = r.Outbox().List(ctx, outbox.Filter{Kind: outbox.Dead}); err != nil {
				t.Fatal(err)
			}
			return len(dead) >= len(causes)
		})
		for _, e := range dead {
			want, refused := causes[string(e.Payload)]
			if !refused || !strings.Contains(e.Cause, want) {
				t.Errorf("%q is dead because %q, want %q", e.Payload, e.Cause, want)
			}
		}
	})
	if err != nil {
		t.Error(err)
	}
}

// buffer is a log that can be read while it is written.
type buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *buffer) has(text string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return strings.Contains(b.b.String(), text)
}

// TestTablesDroppedUnderTheRelay checks that the log says what is missing, with code and what to do. Once
// the tables are there again, messages are delivered again, without a restart.
func TestTablesDroppedUnderTheRelay(t *testing.T) {
	t.Parallel()
	got, log := make(chan string, 10), &buffer{}
	take := func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		got <- string(body)
	}
	o, path := outboxRig(t, take, func(_ *config.Subscription, o *Options) {
		o.Handler = telemetry.WithCodes(slog.NewTextHandler(log, nil), func(err error) string { return string(backend.Fault(err).Code) })
	})
	err := started(t, o, func(ctx context.Context, r *Running) {
		publish(ctx, t, r, "a", "1")
		taken(ctx, t, got, "1")
		db, err := sql.Open("sqlite", "file:"+path+"?_pragma=busy_timeout(10000)")
		if err != nil {
			t.Fatal(err)
		}
		defer db.Close()
		for _, table := range []string{"migration", "delayed", "subscription", "cursor", "lane", "parked", "dead"} {
			if _, err := db.ExecContext(ctx, "DROP TABLE emitd_outbox_"+table); err != nil {
				t.Fatal(err)
			}
		}
		if _, err := db.ExecContext(ctx, "DROP TABLE emitd_outbox"); err != nil {
			t.Fatal(err)
		}
		eventually(ctx, t, "the log says so", func() bool {
			return log.has("outbox relay is interrupted") && log.has("code=E4104") && log.has("emitd migrate up")
		})
		if err := r.Outbox().Publish(ctx, outbox.Message{Topic: "t"}); backend.OutboxFault(err).Code != fault.OutboxSchema {
			t.Errorf("publishing meanwhile: %v", err)
		}
		if _, err := backend.MigrateOutbox(ctx, backend.Options{Config: o.Config.Config}); err != nil {
			t.Fatal(err)
		}
		publish(ctx, t, r, "a", "2")
		taken(ctx, t, got, "2")
	})
	if err != nil {
		t.Error(err)
	}
}

// TestADatabaseThatComesLater checks that the node runs without the outbox's database, and relays once
// the database answers.
func TestADatabaseThatComesLater(t *testing.T) {
	t.Parallel()
	got := make(chan string, 10)
	entered := make(chan struct{}, 10)
	var tries int
	o, _ := outboxRig(t, func(_ http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		got <- string(body)
	}, func(_ *config.Subscription, o *Options) {
		open := o.OpenOutbox
		o.OpenOutbox = func(ctx context.Context, tel *telemetry.Telemetry) (*backend.Outbox, error) {
			if tries++; tries == 1 {
				return nil, fault.New(fault.Unreachable, "connection refused")
			}
			return open(ctx, tel)
		}
		o.Extra = []Daemon{active(entered)}
	})
	err := started(t, o, func(ctx context.Context, r *Running) {
		if r.Outbox() != nil {
			t.Error("the outbox is open")
		}
		<-entered
		eventually(ctx, t, "the outbox is opened", func() bool { return r.Outbox() != nil })
		publish(ctx, t, r, "a", "1")
		taken(ctx, t, got, "1")
	})
	if err != nil {
		t.Error(err)
	}
}

// TestABadSinkEndsTheStart checks that a bad sink fails the start, and that nothing is left running.
func TestABadSinkEndsTheStart(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(*config.Subscription, *Options){
		"url":    func(s *config.Subscription, _ *Options) { s.Sink.Settings = &webhook.Config{} },
		"policy": func(s *config.Subscription, _ *Options) { s.Policy = "explode" },
	} {
		o, _ := outboxRig(t, nil, change)
		if f := fault.Of(Run(t.Context(), o)); len(f) != 1 || f[0].Code != fault.BadOutbox {
			t.Errorf("%s: %v", name, f)
		}
	}
	o, _ := outboxRig(t, nil, func(_ *config.Subscription, o *Options) {
		o.OpenOutbox = func(context.Context, *telemetry.Telemetry) (*backend.Outbox, error) {
			return nil, fmt.Errorf("wrapped: %w", outbox.ErrSchema)
		}
	})
	if f := fault.Of(backend.OutboxFault(Run(t.Context(), o))); len(f) != 1 || f[0].Code != fault.OutboxSchema {
		t.Errorf("a schema that does not fit: %v", f)
	}
}

// TestDisabledSubscriptions checks that disabled subscriptions are neither made nor offered, and that the
// log is swept all the same.
func TestDisabledSubscriptions(t *testing.T) {
	t.Parallel()
	for disabled, want := range map[string]string{
		"":                    "emit:sweeper emit:outbox/hooks emit:sweeper/outbox",
		"emit:outbox":         "emit:sweeper emit:sweeper/outbox",
		"emit:outbox/hooks":   "emit:sweeper emit:sweeper/outbox",
		"emit:sweeper/outbox": "emit:sweeper emit:outbox/hooks",
	} {
		o, _ := outboxRig(t, nil, nil)
		if disabled != "" {
			o.Config.Daemons.Disabled = []string{disabled}
		}
		err := started(t, o, func(_ context.Context, r *Running) {
			var ids []string
			for _, s := range r.Daemons {
				ids = append(ids, string(s.ID))
			}
			if got := strings.Join(ids, " "); got != want {
				t.Errorf("without %q: %s, want %s", disabled, got, want)
			}
		})
		if err != nil {
			t.Error(err)
		}
	}
}
