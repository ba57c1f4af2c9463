package api_test

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/coder/websocket"

	"github.com/emitd/emitd/queue"
	"github.com/emitd/emitd/queue/api"
)

// TestNamesAreText: names that are not UTF-8 are refused in every encoding; two of them would be
// one job, with U+FFFD in its name. A payload keeps its bytes, and U+FFFD itself is text.
func TestNamesAreText(t *testing.T) {
	t.Parallel()
	h, _ := newAPI(t, api.Options{})
	for _, bad := range []string{"\xff", "\xfe", "a\xc3", `\ud800`, `\udfff`, `\ud800\u0041`, `\uD83D\uD83D`} {
		for _, c := range []struct{ path, body string }{
			{"/v1/queues/q/jobs", `{"id":"` + bad + `"}`},
			{"/v1/queues/q/jobs", `{"key":"` + bad + `"}`},
			{"/v1/queues/q/jobs", `{"type":"` + bad + `"}`},
			{"/v1/queues/q/jobs", `{"group":"` + bad + `"}`},
			{"/v1/queues/q/jobs", `{"jobs":[{"id":"a"},{"id":"` + bad + `"}]}`},
			{"/v1/queues/q/claim", `{"worker":"` + bad + `"}`},
			{"/v1/queues/q/claim", `{"request_id":"` + bad + `"}`},
			{"/v1/queues/q/claim", `{"types":["` + bad + `"]}`},
			{"/v1/queues/q/settle", `{"settlements":[{"verb":"complete","id":"` + bad + `","token":"t"}]}`},
			{"/v1/queues/q/cancel", `{"ids":["` + bad + `"]}`},
			{"/v1/jobs/claim", `{"workerId":"` + bad + `"}`},
			{enqueuePath, `{"jobs":[{"id":"` + bad + `"}]}`},
			{"/osqueue.v1.QueueService/ClaimJob", `{"workerId":"` + bad + `"}`},
		} {
			if a := send(h, "POST", c.path, c.body, "Content-Type", "application/json"); a.status != 400 || !strings.Contains(a.body, "BadRequest") {
				t.Errorf("%s %q: %d %s", c.path, c.body, a.status, a.body)
			}
		}
	}
	for _, c := range []struct{ method, path, kind, body string }{
		{"GET", "/v1/queues/q/jobs/%ff", "", ""},
		{"POST", "/v1/queues/%ff/jobs", "", `{}`},
		{"POST", enqueuePath, "application/proto", "\x12\x03\x0a\x01\xff"},
		{"POST", "/osqueue.v1.QueueService/ClaimJob", "application/proto", "\x0a\x01\xff"},
	} {
		if a := send(h, c.method, c.path, c.body, "Content-Type", c.kind); a.status != 400 {
			t.Errorf("%s %q: %d %s", c.path, c.body, a.status, a.body)
		}
	}
	want(t, send(h, "POST", "/v1/jobs", `{"payload":1}`, "Idempotency-Key", "\xff"), 400, queue.BadRequest)
	c, err := socket(t, listen(t, h).URL, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Write(t.Context(), websocket.MessageText, []byte("{\"id\":1,\"method\":\"claimJob\",\"params\":{\"workerId\":\"\xff\"}}")); err == nil {
		if _, text, err := c.Read(t.Context()); err == nil && !strings.Contains(string(text), "no UTF-8") {
			t.Errorf("WebSocket: %s", text)
		}
	}
	for _, good := range []string{
		`{"id":"�"}`, `{"id":"\ufffd2"}`, `{"id":"\ud83d\ude00"}`, `{"id":"\\ud800"}`,
		"{\"id\":\"p\",\"payload\":{\"x\":\"\xff\"}}", `{"id":"q","payload":"\ud800"}`,
	} {
		if a := send(h, "POST", "/v1/queues/q/jobs", good); a.status != 200 {
			t.Errorf("%q: %d %s", good, a.status, a.body)
		}
	}
}

// TestPayloadThatIsNotUTF8: a payload that looks like JSON and is not UTF-8 reaches osqueue's clients as base64. A text
// message with such bytes ends the connection of a WebSocket client, again and again.
func TestPayloadThatIsNotUTF8(t *testing.T) {
	t.Parallel()
	h, q := newAPI(t, api.Options{})
	if _, err := q.Enqueue(t.Context(), "default", []queue.Job{{ID: "a", Payload: []byte("\"\xff\"")}}); err != nil {
		t.Fatal(err)
	}
	for _, c := range [][3]string{{"GET", "/v1/jobs", ""}, {"GET", "/state", ""}, {"POST", "/v1/jobs/claim", `{"workerId":"w"}`}} {
		if a := send(h, c[0], c[1], c[2]); !utf8.ValidString(a.body) || !strings.Contains(a.body, `"payload":"Iv8i"`) {
			t.Errorf("%s: %q", c[1], a.body)
		}
	}
}
