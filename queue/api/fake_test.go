package api_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/emitd/emitd/internal/storage/mem"
	"github.com/emitd/emitd/queue"
	"github.com/emitd/emitd/queue/api"
	"github.com/emitd/emitd/queue/queuetest"
)

// TestFakeAgrees: the in-memory queue for tests gives the same answers as a broker.
func TestFakeAgrees(t *testing.T) {
	t.Parallel()
	var players [2]play
	for i, svc := range []queue.Service{startBroker(t, mem.Config{}), queuetest.New()} {
		h, err := api.New(svc, api.Options{Logger: quiet})
		if err != nil {
			t.Fatal(err)
		}
		players[i].h = h
	}
	same := func(method, path, body string) {
		t.Helper()
		var got [2]string
		for i := range players {
			a, masked := players[i].send(method, path, body)
			got[i] = fmt.Sprint(a.status, " ", unixMS.ReplaceAllString(masked, "…"))
		}
		if got[0] != got[1] {
			t.Errorf("%s %.60s %.80s:\nbroker %.600s\n  fake %.600s", method, path, body, got[0], got[1])
		}
	}
	for _, c := range badCalls {
		if c.tag != queue.QueueNotFound && c.method != "PUT" && !strings.Contains(c.path, "cursor") {
			same(c.method, c.path, c.body)
		}
	}
	const q = "/v1/queues/q"
	for _, c := range []struct{ method, path, body string }{
		{"POST", q + "/jobs", `{"jobs":[{"id":"a","type":"t","payload":{"x": 1}},{"id":"b","type":"t","priority":5},{"id":"c","delay_ms":3600000,"type":"u"}]}`},
		{"POST", q + "/jobs", `{"jobs":[{"id":"a"},{"id":"d","type":"u","retry":{"max_attempts":2,"jitter":-1}}]}`},
		{"GET", q + "/jobs?payload=true", ""},
		{"POST", q + "/jobs/a/complete", `{"token":"forged"}`},
		{"POST", q + "/claim", `{"types":["t"]}`},
		{"POST", q + "/jobs/b/extend", `{"token":"…","visibility_ms":45000}`},
		{"GET", q + "/jobs/b", ""},
		{"POST", q + "/jobs/b/extend", `{"token":"…"}`},
		{"POST", q + "/jobs/b/release", `{"token":"…"}`},
		{"POST", q + "/jobs/b/release", `{"token":"…"}`},
		{"GET", q + "/jobs/b", ""},
		{"POST", q + "/claim", `{"types":["t"],"worker":"w"}`},
		{"POST", q + "/jobs/b/complete", `{"token":"…","result":[1]}`},
		{"POST", q + "/jobs/b/complete", `{"token":"…","result":[1]}`},
		{"POST", q + "/jobs/b/extend", `{"token":"…"}`},
		{"GET", q + "/jobs/b", ""},
		{"POST", q + "/claim", `{"types":["t"]}`},
		{"POST", q + "/jobs/a/fail", `{"token":"…","cause":"no","dead":true}`},
		{"POST", q + "/jobs/a/fail", `{"token":"…"}`},
		{"GET", q + "/dead?payload=true", ""},
		{"POST", q + "/cancel", ""}, // not the dead ones
		{"POST", q + "/jobs/a/redrive", ""},
		{"GET", q + "/jobs?state=waiting", ""},
		{"POST", q + "/jobs", `{"jobs":[{"id":"e"},{"id":"f","delay_ms":3600000}]}`},
		{"POST", q + "/claim", `{"max":1}`},
		{"POST", q + "/jobs/a/cancel", ""},
		{"POST", q + "/jobs/a/complete", `{"token":"…"}`},
		{"GET", q + "/jobs/a", ""},
		{"POST", q + "/retry", ""},
		{"POST", q + "/purge", `{"state":"waiting"}`},
		{"GET", q + "/jobs", ""},
		{"POST", q + "/pause", ""},
		{"POST", q + "/claim", ""},
	} {
		same(c.method, c.path, c.body)
	}
	for _, c := range []struct{ method, path, body string }{
		{"POST", q + "/resume", ""},
		{"POST", "/v1/queues/default/jobs", `{"jobs":[{"id":"x","type":"t","payload":{"a":1}},{"id":"y","payload":2}]}`},
		{"POST", "/v1/jobs/claim", `{"workerId":"w","types":["t"]}`},
		{"GET", "/v1/jobs", ""},
		{"POST", "/v1/jobs/x/heartbeat", `{"workerId":"other"}`},
		{"POST", "/v1/jobs/x/heartbeat", `{"workerId":"w"}`},
		{"GET", "/v1/jobs", ""},
		{"POST", "/v1/jobs/x/complete", `{"workerId":"w"}`},
		{"POST", "/v1/jobs/x/complete", `{"workerId":"w"}`},
		{"POST", "/v1/jobs/x/complete", `{"workerId":"other"}`},
		{"POST", "/v1/jobs/y/complete", `{"workerId":"w"}`},
		{"POST", "/v1/jobs/none/heartbeat", `{"workerId":"w"}`},
		{"GET", "/v1/stats", ""},
		{"GET", "/state", ""},
	} {
		same(c.method, c.path, c.body)
	}
}
