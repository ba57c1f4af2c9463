package api_test

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/coder/websocket"

	"github.com/emitd/emitd/internal/queue/wire/refusal"
	"github.com/emitd/emitd/internal/storage/mem"
	"github.com/emitd/emitd/queue/api"
	"github.com/emitd/emitd/queue/queuetest"
)

// FuzzCalls: whatever is sent to any path, the answer is no 5xx, and a refusal says what is wrong.
// The queue still works afterwards.
func FuzzCalls(f *testing.F) {
	q := startBroker(f, mem.Config{})
	h, err := api.New(q, api.Options{Logger: quiet, Queues: directory{q}})
	if err != nil {
		f.Fatal(err)
	}
	var routes []string
	for _, r := range h.Routes() {
		if method, path, ok := strings.Cut(r, " "); ok {
			routes = append(routes, method+" "+strings.NewReplacer("{queue}", "q", "{id}", "a").Replace(path))
		} else {
			for _, rpc := range []string{"Enqueue", "Claim", "Settle", "SubmitJob", "ClaimJob", "Heartbeat", "CompleteJob", "GetStats", "ListJobs"} {
				routes = append(routes, "POST "+r+rpc)
			}
		}
	}
	for i := range routes {
		f.Add(uint8(i), "", []byte(`{"payload":1,"workerId":"w"}`), i%2 == 0)
		f.Add(uint8(i), "cursor=MC4x&limit=1", []byte(`{}`), true) // of shard 0, job 1
		f.Add(uint8(i), "limit=1&cursor=a&state=dead", []byte("\x0a\x01q\x12\x04\x0a\x02id"), i%2 == 1)
	}
	f.Fuzz(func(t *testing.T, route uint8, query string, body []byte, json bool) {
		method, path, _ := strings.Cut(routes[int(route)%len(routes)], " ")
		kind := "application/proto"
		if json {
			kind = "application/json"
		}
		r, err := request(method, path, query, body)
		if err != nil {
			return // not possible in a request line
		}
		r.Header.Set("Content-Type", kind)
		a := record(h, r)
		if a.status >= 500 {
			t.Errorf("%s %s?%s %q: %d %s", method, path, query, body, a.status, a.body)
		}
		if a.status >= 400 && a.header.Get("Content-Type") == "application/problem+json" {
			if tag, _ := a.field(t, "_tag").(string); tag == "" || a.field(t, "message") == "" || a.field(t, "hint") == nil {
				t.Errorf("%s %s %q: %s", method, path, body, a.body)
			}
		}
		if method == "DELETE" {
			send(h, "PUT", "/v1/queues/q", "") // it may have been removed
		}
		if a := send(h, "GET", "/v1/stats", ""); a.status != 200 {
			t.Errorf("after %s %s: %s", method, path, a.body)
		}
	})
}

// FuzzSocket: whatever is sent over a WebSocket, the answer is JSON, says what is wrong if anything
// is, and is no 5xx. The connection still works afterwards.
func FuzzSocket(f *testing.F) {
	q := startBroker(f, mem.Config{})
	h, err := api.New(q, api.Options{Logger: quiet})
	if err != nil {
		f.Fatal(err)
	}
	c, err := socket(f, listen(f, h).URL, nil)
	if err != nil {
		f.Fatal(err)
	}
	c.SetReadLimit(-1)
	for _, method := range []string{"submitJob", "claimJob", "heartbeat", "completeJob", "getStats", "listJobs", "x"} {
		f.Add([]byte(`{"id":"1","method":"`+method+`","params":{"payload":{"a":1},"type":"t","maxAttempts":2}}`), true)
		f.Add([]byte(`{"id":2,"method":"`+method+`","params":{"jobId":"a","workerId":"w"}}`), true)
		f.Add([]byte(`{"id":null,"method":"`+method+`","params":null}`), false)
		f.Add([]byte(`{"id":[{}],"method":"`+method+`","params":{"workerId":"w","types":["t"]}}`), true)
	}
	f.Fuzz(func(t *testing.T, text []byte, isText bool) {
		kind := websocket.MessageBinary
		if isText {
			kind = websocket.MessageText
		}
		if err := c.Write(t.Context(), kind, text); err != nil {
			t.Fatal(err)
		}
		_, out, err := c.Read(t.Context())
		if err != nil {
			t.Fatalf("%q: %v", text, err)
		}
		var got struct {
			ID     json.RawMessage
			OK     *bool
			Result json.RawMessage
			Error  *refusal.Problem
		}
		err = json.Unmarshal(out, &got)
		if err != nil || got.ID == nil || got.OK == nil || *got.OK != (got.Error == nil) || *got.OK != (got.Result != nil) {
			t.Fatalf("%q: %s, %v", text, out, err)
		}
		if e := got.Error; e != nil && (e.Status < 400 || e.Status >= 500 || e.Tag == "" || e.Message == "" || e.Hint == "") {
			t.Errorf("%q: %s", text, out)
		}
	})
}

// FuzzShards: whatever shards a forwarded call names, and whatever cursor is given for a queue on
// several nodes, the answer is a page or a refusal, and listing ends.
func FuzzShards(f *testing.F) {
	forward, even, odd, _ := sharded(f)
	for _, q := range []*queuetest.Queue{even, odd} {
		if _, err := q.Enqueue(f.Context(), "q", ids(5)); err != nil {
			f.Fatal(err)
		}
	}
	h, err := api.New(forward, api.Options{Logger: quiet})
	if err != nil {
		f.Fatal(err)
	}
	f.Add("0~", "")
	f.Add("1~j1", "")
	f.Add("2~", "0,1")
	f.Add("-1~j1", "0,")
	f.Add("1~1~j1", "-1,99999999999999999999")
	f.Fuzz(func(t *testing.T, cursor, shards string) {
		for _, forwarded := range []string{"", "7"} {
			for next, n := cursor, 0; n == 0 || next != ""; n++ {
				r := httptest.NewRequest(http.MethodGet, "/v1/queues/q/jobs?limit=2&cursor="+url.QueryEscape(next), nil)
				r.Header["Emitd-Forwarded"], r.Header[api.HeaderShards] = []string{forwarded}, []string{shards}
				a := record(h, r)
				if a.status >= 500 && a.status != 503 || a.status == 503 && forwarded == "" || n > 10 {
					t.Fatalf("cursor %q, shards %q, page %d: %d %s", next, shards, n, a.status, a.body)
				}
				next, _ = a.field(t, "cursor").(string)
			}
		}
	})
}
