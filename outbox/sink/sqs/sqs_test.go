package sqs_test

import (
	"context"
	"database/sql"
	"fmt"
	"log/slog"
	"net/http"
	"path/filepath"
	"testing"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/outbox"
	"github.com/emitd/emitd/outbox/sink/internal/amazon/amazontest"
	"github.com/emitd/emitd/outbox/sink/sqs"
	"github.com/emitd/emitd/outbox/sqlite"
)

// destinations maps the suite's destinations to queues.
var destinations = map[amazontest.Destination]string{
	amazontest.Orders:  "http://127.0.0.1/1/orders",
	amazontest.FIFO:    "orders.fifo",
	amazontest.Nowhere: "nowhere",
}

func open(t testing.TB, server *amazontest.Server, to amazontest.Destination, timeout time.Duration) outbox.Sink {
	t.Helper()
	s, err := sqs.New(t.Context(), sqs.Config{
		Region: "eu-1", Endpoint: server.URL, AccessKey: "AKIA", SecretKey: "hunter2",
		Queue: destinations[to], Timeout: timeout,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func TestSuite(t *testing.T) {
	t.Parallel()
	amazontest.Suite{Open: open, Refuse: amazontest.Refuse}.Run(t)
}

// TestForbiddenQueueThroughARelay checks that a queue that this account may not use holds up only its own
// messages.
func TestForbiddenQueueThroughARelay(t *testing.T) {
	t.Parallel()
	server := amazontest.New(t)
	server.Forbid("forbidden", func(w http.ResponseWriter) {
		amazontest.Refuse(w, http.StatusBadRequest, "com.amazonaws.sqs#AccessDeniedException", "no")
	})
	path, quiet := filepath.Join(t.TempDir(), "outbox.db"), slog.New(slog.DiscardHandler)
	l, err := sqlite.Open(t.Context(), sqlite.Config{Path: path, Logger: quiet})
	must(t, err)
	defer l.Close()
	db, err := sql.Open("sqlite", "file:"+path+"?_pragma=busy_timeout(10000)")
	must(t, err)
	defer db.Close()
	pub, err := sqlite.New(db, sqlite.Config{Logger: quiet})
	must(t, err)
	defer pub.Close(context.Background())

	const good = 200
	messages := []outbox.Message{{Topic: "forbidden", Key: "forbidden"}}
	for i := range good {
		messages = append(messages, outbox.Message{Topic: "orders", Key: fmt.Sprint("k", i)})
	}
	must(t, pub.InTx(t.Context(), db, func(tx *sqlite.Tx) error { return pub.Publish(t.Context(), tx, messages...) }))

	arrived, failed := make(chan outbox.Row, good), make(chan error, 100)
	r, err := outbox.NewRelay(outbox.Config{Name: "s", Log: l, Sink: open(t, server, amazontest.ByTopic, 0), Logger: quiet, Hooks: outbox.Hooks{
		OnDelivered: func(_ string, rows []outbox.Row) {
			for _, row := range rows {
				arrived <- row
			}
		},
		OnFailed: func(_ string, _ outbox.Row, err error) { failed <- err },
	}})
	must(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		done <- r.Run(ctx, daemon.NewAssignment(daemon.Fence{Unit: daemon.Unit{Daemon: outbox.ID("s")}, Generation: 1}, 1, "n", nil))
	}()
	defer func() { cancel(); <-done }()
	late := time.After(30 * time.Second)
	for n := range good {
		select {
		case <-arrived:
		case <-late:
			t.Fatalf("%d of %d messages of a queue that takes them were delivered", n, good)
		}
	}
	select {
	case <-failed: // a counted attempt
	case <-late:
		t.Error("the message of the other queue did not fail")
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
