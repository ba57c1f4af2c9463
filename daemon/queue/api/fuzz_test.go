package api_test

import (
	"strings"
	"testing"

	"github.com/emitd/emitd/daemon/queue/api"
	"github.com/emitd/emitd/storage/blob/mem"
)

// FuzzCalls: whatever is sent to whatever path, the answer is no 5xx, and a refusal says what is
// wrong. The queue serves on.
func FuzzCalls(f *testing.F) {
	q := broker(f, mem.Config{})
	h, err := api.New(q, api.Options{Logger: quiet, Queues: directory{q}})
	if err != nil {
		f.Fatal(err)
	}
	var routes []string
	for _, r := range h.Routes() {
		if method, path, ok := strings.Cut(r, " "); ok {
			routes = append(routes, method+" "+strings.NewReplacer("{queue}", "q", "{id}", "a").Replace(path))
		} else {
			for _, rpc := range []string{"Enqueue", "Claim", "Settle", "SubmitJob", "ClaimJob", "CompleteJob"} {
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
			return // no request line can say that
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
			send(h, "PUT", "/v1/queues/q", "") // it may have been taken away
		}
		if a := send(h, "GET", "/v1/stats", ""); a.status != 200 {
			t.Errorf("after %s %s: %s", method, path, a.body)
		}
	})
}
