package sns_test

import (
	"testing"
	"time"

	"github.com/emitd/emitd/outbox"
	"github.com/emitd/emitd/outbox/sink/internal/amazon/amazontest"
	"github.com/emitd/emitd/outbox/sink/sns"
)

// destinations maps the suite's destinations to ARNs.
var destinations = map[amazontest.Destination]string{
	amazontest.ByTopic: "arn:aws:sns:eu-1:1:{topic}",
	amazontest.Orders:  "arn:aws:sns:eu-1:1:orders",
	amazontest.FIFO:    "arn:aws:sns:eu-1:1:orders.fifo",
	amazontest.Nowhere: "arn:aws:sns:eu-1:1:nowhere",
}

func open(t testing.TB, server *amazontest.Server, to amazontest.Destination, timeout time.Duration) outbox.Sink {
	t.Helper()
	s, err := sns.New(t.Context(), sns.Config{
		Region: "eu-1", Endpoint: server.URL, AccessKey: "AKIA", SecretKey: "hunter2",
		ARN: destinations[to], Timeout: timeout,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func TestSuite(t *testing.T) {
	t.Parallel()
	amazontest.Suite{Open: open, Refuse: amazontest.RefuseXML}.Run(t)
}
