package amazontest

import (
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/emitd/emitd/outbox"
	"github.com/emitd/emitd/outbox/sink/sinktest"
)

// Destination selects where a sink sends to.
type Destination int

// The destinations.
const (
	ByTopic Destination = iota // the one that the message's topic names
	Orders                     // one named in the configuration
	FIFO                       // a FIFO queue or topic
	Nowhere                    // one that does not exist
)

// Suite holds the tests that the sinks of both services share, with what differs between them.
type Suite struct {
	// Open makes a sink with the credentials AKIA and hunter2 and a timeout, 0 for the default.
	Open func(t testing.TB, server *Server, to Destination, timeout time.Duration) outbox.Sink
	// Refuse answers a call with an error, in the service's format.
	Refuse func(w http.ResponseWriter, status int, code, message string)
}

// Run runs the suite.
func (s Suite) Run(t *testing.T) {
	for _, c := range []struct {
		name string
		run  func(t *testing.T)
	}{
		{"sink", s.sink},
		{"fields", s.fields},
		{"batches are full and bounded", s.batches},
		{"errors of calls", s.errors},
		{"missing destination", s.missing},
		{"forbidden destination", s.forbidden},
		{"unconfirmed is not delivered", s.unconfirmed},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			c.run(t)
		})
	}
}

func (s Suite) deliver(t *testing.T, server *Server, to Destination, rows ...outbox.Row) []error {
	t.Helper()
	return sinktest.Spread(s.Open(t, server, to, 0).Deliver(t.Context(), sinktest.Delivery(rows)), len(rows))
}

func (s Suite) sink(t *testing.T) {
	for name, to := range map[string]Destination{"fifo": FIFO, "standard": ByTopic} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			sinktest.Suite{Dedup: to == FIFO, New: func(t *testing.T) *sinktest.Harness {
				server := New(t)
				return &sinktest.Harness{Sink: s.Open(t, server, to, 0), Received: server.Received, Fail: server.Fail, Secrets: []string{"hunter2"}}
			}}.Run(t)
		})
	}
}

// fields checks the body and attributes of messages as they arrive.
func (s Suite) fields(t *testing.T) {
	server := New(t)
	rows := sinktest.Rows("shop", 4, 0)
	rows[0].Key = "k-1"
	rows[1].Payload = []byte{0xff, 0}
	rows[2].Key = strings.Repeat("long ", 100)
	rows[3].Headers = map[string]string{"a": "1", "b": "2", "c": "3", "d": "4", "e": "5"}
	for i, err := range s.deliver(t, server, FIFO, rows...) {
		if err != nil {
			t.Fatalf("row %d: %v", i, err)
		}
	}
	arrived := map[string]Entry{}
	for _, e := range server.Entries() {
		arrived[e.Dedup] = e
	}
	for i, row := range rows {
		e := arrived[row.ID.String()]
		a := e.Attributes
		if a["emitd-id"] != row.ID.String() || a["emitd-generation"] != "7" || a["emitd-topic"] != "shop" || a["emitd-subscription"] != "billing" {
			t.Errorf("row %d: %v", i, e)
		}
		ok := false
		switch i {
		case 0:
			ok = e.Group == "k-1" && e.Body == `{"n":0}` && a["tenant"] == "acme" && a["emitd-key"] == "k-1"
		case 1: // binary
			ok = e.Group == row.ID.String() && e.Body == "/wA=" && a["emitd-encoding"] == "base64"
		case 2: // a key that is not a valid group
			ok = strings.HasPrefix(e.Group, "emitd:") && len(e.Group) <= 128 && a["emitd-key"] == row.Key
		case 3: // more headers than attributes
			ok = a["emitd-headers"] == `{"a":"1","b":"2","c":"3","d":"4","e":"5"}`
		}
		if !ok {
			t.Errorf("row %d: %v", i, e)
		}
	}
}

// batches counts calls, and sends one message above the limit among large ones.
func (s Suite) batches(t *testing.T) {
	server := New(t)
	for _, err := range s.deliver(t, server, ByTopic, sinktest.Rows("orders", 100, 0)...) {
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
	for i, err := range s.deliver(t, server, ByTopic, rows...) {
		if (err != nil) != (i == 7) || i == 7 && !errors.Is(err, outbox.ErrPermanent) {
			t.Errorf("row %d of %d bytes: %v", i, len(rows[i].Payload), err)
		}
	}
}

func (s Suite) errors(t *testing.T) {
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
			server := New(t)
			server.Answer(func(w http.ResponseWriter) bool { s.Refuse(w, c.status, c.code, "no"); return true })
			for i, err := range s.deliver(t, server, Orders, sinktest.Rows("orders", 3, 0)...) {
				if !errors.Is(err, c.kind) || strings.Contains(err.Error(), "hunter2") {
					t.Errorf("row %d: %v, want %v", i, err, c.kind)
				}
			}
		})
	}
}

func (s Suite) missing(t *testing.T) {
	server := New(t)
	if err := s.deliver(t, server, ByTopic, sinktest.Rows("nowhere", 1, 0)...)[0]; !errors.Is(err, outbox.ErrMissing) {
		t.Errorf("the message's: %v, want permanent", err)
	}
	if err := s.deliver(t, server, Nowhere, sinktest.Rows("orders", 1, 0)...)[0]; !errors.Is(err, outbox.ErrSinkDown) {
		t.Errorf("the configuration's: %v, want that the sink is down", err)
	}
}

// forbidden refuses every call about a topic of that name, with each error of the services. If messages
// choose their topic, only those of this topic may be affected.
func (s Suite) forbidden(t *testing.T) {
	for _, c := range []struct {
		code   string
		status int
		down   bool // for either kind of topic
	}{
		{"AccessDeniedException", 400, false},
		{"AccessDenied", 403, false},
		{"AuthorizationError", 403, false},
		{"KmsAccessDenied", 400, false},
		{"KMSThrottling", 400, false},
		{"NobodyKnows", 403, false},
		{"InvalidClientTokenId", 403, true},
		{"SignatureDoesNotMatch", 403, true},
		{"ExpiredToken", 403, true},
	} {
		t.Run(c.code, func(t *testing.T) {
			t.Parallel()
			for to, fixed := range map[Destination]bool{ByTopic: false, Orders: true} {
				server := New(t)
				server.Forbid("orders", func(w http.ResponseWriter) { s.Refuse(w, c.status, c.code, "no") })
				rows := sinktest.Rows("elsewhere", 4, 4)
				rows[0].Topic = "orders"
				errs := s.deliver(t, server, to, rows...)
				if err := errs[0]; err == nil || errors.Is(err, outbox.ErrPermanent) || errors.Is(err, outbox.ErrSinkDown) != (fixed || c.down) {
					t.Errorf("fixed %v: %v", fixed, err)
				}
				for i, err := range errs {
					if err != nil && i > 0 && !fixed && !c.down {
						t.Errorf("row %d of another topic: %v", i, err)
					}
				}
			}
		})
	}
}

// unconfirmed answers with success but without naming any message.
func (s Suite) unconfirmed(t *testing.T) {
	for _, body := range []string{"", "{}", "garbage", "<PublishBatchResponse><PublishBatchResult></PublishBatchResult></PublishBatchResponse>"} {
		server := New(t)
		server.Answer(func(w http.ResponseWriter) bool { _, _ = w.Write([]byte(body)); return true })
		rows := sinktest.Rows("orders", 3, 0)
		errs := s.Open(t, server, Orders, 5*time.Second).Deliver(t.Context(), sinktest.Delivery(rows))
		for i, err := range sinktest.Spread(errs, len(rows)) {
			if err == nil || errors.Is(err, outbox.ErrPermanent) {
				t.Errorf("answer %q, row %d: %v", body, i, err)
			}
		}
	}
}
