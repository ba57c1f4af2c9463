package sqs_test

import (
	"testing"
	"time"

	"github.com/emitd/emitd/outbox"
	"github.com/emitd/emitd/outbox/sink/internal/amazon/amazontest"
	"github.com/emitd/emitd/outbox/sink/sqs"
)

// destinations are named so.
var destinations = map[amazontest.Destination]string{
	amazontest.Orders:  "http://127.0.0.1/1/orders",
	amazontest.FIFO:    "orders.fifo",
	amazontest.Nowhere: "nowhere",
}

func open(t testing.TB, server *amazontest.Server, to amazontest.Destination, timeout time.Duration) outbox.Sink {
	t.Helper()
	s, err := sqs.New(t.Context(), sqs.Config{
		Login: sqs.Login{Region: "eu-1", Endpoint: server.URL, AccessKey: "AKIA", SecretKey: "hunter2"},
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
