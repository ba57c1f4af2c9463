package sns_test

import (
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/emitd/emitd/outbox"
	"github.com/emitd/emitd/outbox/sink/internal/amazon/amazontest"
	"github.com/emitd/emitd/outbox/sink/sinktest"
	"github.com/emitd/emitd/outbox/sink/sns"
)

func open(t *testing.T, server *amazontest.Server, cfg sns.Config) *sns.Sink {
	t.Helper()
	cfg.Login = sns.Login{Region: "eu-1", Endpoint: server.URL, AccessKey: "AKIA", SecretKey: "hunter2"}
	s, err := sns.New(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func TestSuite(t *testing.T) {
	t.Parallel()
	for name, cfg := range map[string]sns.Config{"fifo": {ARN: "arn:aws:sns:eu-1:1:orders.fifo"}, "standard": {ARN: "arn:aws:sns:eu-1:1:{topic}"}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			sinktest.Suite{Dedup: name == "fifo", New: func(t *testing.T) *sinktest.Harness {
				server := amazontest.New(t)
				return &sinktest.Harness{
					Sink: open(t, server, cfg), Received: server.Received, Fail: server.Fail, Secrets: []string{"hunter2"},
				}
			}}.Run(t)
		})
	}
}

func deliver(t *testing.T, s outbox.Sink, rows ...outbox.Row) []error {
	t.Helper()
	return sinktest.Spread(s.Deliver(t.Context(), sinktest.Delivery(rows)), len(rows))
}

func TestFields(t *testing.T) {
	t.Parallel()
	server := amazontest.New(t)
	s := open(t, server, sns.Config{ARN: "arn:aws:sns:eu-1:1:orders.fifo"})
	rows := sinktest.Rows("shop", 4, 0)
	rows[0].Key = "k-1"
	rows[1].Payload = []byte{0xff, 0}
	rows[2].Key = strings.Repeat("long ", 100)
	rows[3].Headers = map[string]string{"a": "1", "b": "2", "c": "3", "d": "4", "e": "5"}
	for i, err := range deliver(t, s, rows...) {
		if err != nil {
			t.Fatalf("row %d: %v", i, err)
		}
	}
	for i, row := range rows {
		var e amazontest.Entry
		for _, one := range server.Entries() {
			if one.Dedup == row.ID.String() {
				e = one
			}
		}
		a := e.Attributes
		if a["emitd-id"] != row.ID.String() || a["emitd-generation"] != "7" || a["emitd-topic"] != "shop" || a["emitd-subscription"] != "billing" {
			t.Errorf("row %d: %v", i, e)
		}
		switch i {
		case 0:
			if e.Group != "k-1" || e.Body != `{"n":0}` || a["tenant"] != "acme" || a["emitd-key"] != "k-1" {
				t.Errorf("keyed: %v", e)
			}
		case 1:
			if e.Group != row.ID.String() || e.Body != "/wA=" || a["emitd-encoding"] != "base64" {
				t.Errorf("binary: %v", e)
			}
		case 2:
			if !strings.HasPrefix(e.Group, "emitd:") || len(e.Group) > 128 || a["emitd-key"] != row.Key {
				t.Errorf("long key: %v", e)
			}
		case 3:
			if a["emitd-headers"] != `{"a":"1","b":"2","c":"3","d":"4","e":"5"}` {
				t.Errorf("many headers: %v", e)
			}
		}
	}
}

func TestBatchesAreFullAndBounded(t *testing.T) {
	t.Parallel()
	server := amazontest.New(t)
	s := open(t, server, sns.Config{ARN: "arn:aws:sns:eu-1:1:{topic}"})
	for _, err := range deliver(t, s, sinktest.Rows("orders", 100, 0)...) {
		if err != nil {
			t.Fatal(err)
		}
	}
	if n := server.Calls(); n != 10 {
		t.Errorf("%d calls for 100 messages, want 10", n)
	}
	rows := sinktest.Rows("orders", 12, 0)
	for i := range rows {
		rows[i].Payload = []byte(strings.Repeat("x", 100<<10))
	}
	rows[7].Payload = []byte(strings.Repeat("x", 300<<10))
	for i, err := range deliver(t, s, rows...) {
		if (err != nil) != (i == 7) || i == 7 && !errors.Is(err, outbox.ErrPermanent) {
			t.Errorf("row %d of %d bytes: %v", i, len(rows[i].Payload), err)
		}
	}
}

func TestErrorsOfCalls(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, code string
		status     int
		kind       error
	}{
		{"throttled", "ThrottlingException", 400, outbox.ErrSinkDown},
		{"wrong key", "InvalidClientTokenId", 403, outbox.ErrSinkDown},
		{"not allowed", "AccessDeniedException", 400, outbox.ErrSinkDown},
		{"broken", "InternalError", 500, outbox.ErrSinkDown},
		{"refused", "InvalidParameterValue", 400, outbox.ErrPermanent},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			server := amazontest.New(t)
			server.Answer(func(w http.ResponseWriter) bool { amazontest.RefuseXML(w, c.status, c.code, "no"); return true })
			for i, err := range deliver(t, open(t, server, sns.Config{ARN: "arn:aws:sns:eu-1:1:orders"}), sinktest.Rows("orders", 3, 0)...) {
				if !errors.Is(err, c.kind) || strings.Contains(err.Error(), "hunter2") {
					t.Errorf("row %d: %v, want %v", i, err, c.kind)
				}
			}
		})
	}
}

func TestMissingDestination(t *testing.T) {
	t.Parallel()
	server := amazontest.New(t)
	if err := deliver(t, open(t, server, sns.Config{ARN: "arn:aws:sns:eu-1:1:{topic}"}), sinktest.Rows("nowhere", 1, 0)...)[0]; !errors.Is(err, outbox.ErrPermanent) {
		t.Errorf("the message's: %v, want permanent", err)
	}
	if err := deliver(t, open(t, server, sns.Config{ARN: "arn:aws:sns:eu-1:1:nowhere"}), sinktest.Rows("orders", 1, 0)...)[0]; !errors.Is(err, outbox.ErrSinkDown) {
		t.Errorf("the configuration's: %v, want that the sink is down", err)
	}
}

// What the answer does not confirm was not taken, whatever its status.
func TestUnconfirmedIsNotDelivered(t *testing.T) {
	t.Parallel()
	for _, body := range []string{"", "{}", "garbage", "<PublishBatchResponse><PublishBatchResult></PublishBatchResult></PublishBatchResponse>"} {
		server := amazontest.New(t)
		server.Answer(func(w http.ResponseWriter) bool { _, _ = w.Write([]byte(body)); return true })
		for i, err := range deliver(t, open(t, server, sns.Config{ARN: "arn:aws:sns:eu-1:1:orders", Timeout: 5 * time.Second}), sinktest.Rows("orders", 3, 0)...) {
			if err == nil || errors.Is(err, outbox.ErrPermanent) {
				t.Errorf("answer %q, row %d: %v", body, i, err)
			}
		}
	}
}
