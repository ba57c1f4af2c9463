package client_test

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"testing"

	"github.com/emitd/emitd/queue"
	"github.com/emitd/emitd/queue/client"
)

// answered is a server that gives every call the same answer.
type answered struct {
	status int
	body   []byte
}

func (a answered) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Body != nil {
		_, _ = io.Copy(io.Discard, r.Body)
		r.Body.Close()
	}
	return &http.Response{
		StatusCode: a.status, Header: http.Header{}, Request: r, Body: io.NopCloser(bytes.NewReader(a.body)), ContentLength: int64(len(a.body)),
	}, nil
}

// FuzzAnswers: whatever the answer, a call ends with as many results as it asked for, or with a
// refusal that has a tag.
func FuzzAnswers(f *testing.F) {
	f.Add(uint16(0), []byte(`{"jobs":[{"id":"a","state":"waiting","payload":1,"token":"t"}],"cursor":"c"}`))
	f.Add(uint16(0), []byte(`{"outcomes":[{"id":"a","error":{"_tag":"StaleClaim","message":"m"}}]}`))
	f.Add(uint16(0), []byte("\x0a\x05\x0a\x01a\x18\x01"))
	f.Add(uint16(409-200), []byte(`{"_tag":"StaleClaim","message":"m","hint":"h","retry_after_ms":5,"holder":"h:1"}`))
	f.Add(uint16(400-200), []byte(`{"code":"invalid_argument","message":"m","details":[{"type":"emitd.queue.v1.Refusal","value":"CgFh"}]}`))
	f.Add(uint16(409-200), []byte(`{"details":[{"type":"emitd.queue.v1.Refusal"}]}`))
	f.Add(uint16(502-200), []byte("<html>"))
	f.Add(uint16(302-200), []byte(nil))
	f.Fuzz(func(t *testing.T, status uint16, body []byte) {
		for _, json := range []bool{false, true} {
			c, err := client.New(client.Config{
				Addresses: []string{"node.test:1"}, Transport: answered{200 + int(status)%400, body}, JSON: json, NoRetry: true,
			})
			if err != nil {
				t.Fatal(err)
			}
			everyCall(t, c)
			c.Close()
		}
	})
}

func everyCall(t *testing.T, c *client.Client) {
	t.Helper()
	ctx := context.Background()
	receipts, err := c.Enqueue(ctx, "q", []queue.Job{{ID: "a"}})
	ended(t, "enqueue", len(receipts) == 1, err)
	_, err = c.Claim(ctx, "q", queue.ClaimRequest{Worker: "w"})
	ended(t, "claim", true, err)
	outcomes, err := c.Settle(ctx, "q", []queue.Settlement{{Verb: queue.Complete, ID: "a", Token: "t"}})
	ended(t, "settle", len(outcomes) == 1, err)
	info, _, err := c.Get(ctx, "q", "a")
	ended(t, "get", info != nil, err)
	page, err := c.List(ctx, "q", queue.Query{Payload: true})
	ended(t, "list", page != nil && len(page.Payloads) == len(page.Jobs), err)
	stats, err := c.Stats(ctx, "q")
	ended(t, "stats", stats != nil, err)
	_, err = c.Do(ctx, "q", queue.Command{Act: queue.Pause})
	ended(t, "pause", true, err)
	_, err = c.Queues(ctx)
	ended(t, "queues", true, err)
	_, err = c.Amend(ctx, "q", nil)
	ended(t, "amend", true, err)
}

func ended(t *testing.T, call string, whole bool, err error) {
	t.Helper()
	if err == nil && !whole || err != nil && queue.TagOf(err) == "" {
		t.Errorf("%s: %v", call, err)
	}
}
