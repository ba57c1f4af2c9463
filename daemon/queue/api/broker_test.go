package api_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/emitd/emitd/daemon"
	"github.com/emitd/emitd/daemon/queue"
	"github.com/emitd/emitd/daemon/queue/api"
	"github.com/emitd/emitd/storage/blob/mem"
)

// broker returns a broker on a bucket in memory, that serves q and default.
func broker(b testing.TB, bucket mem.Config) *queue.Broker {
	b.Helper()
	out, err := queue.NewBroker(queue.Config{
		Bucket: mem.New(bucket), StoreID: "s", Owner: "o", Now: time.Now, Logger: quiet,
	})
	if err != nil {
		b.Fatal(err)
	}
	for _, name := range []string{"q", "default"} {
		set, err := out.Queues().Declare(b.Context(), queue.Settings{Name: name})
		if err != nil {
			b.Fatal(err)
		}
		a := daemon.NewAssignment(daemon.Fence{Unit: daemon.Unit{Daemon: set.Spec().ID}, Generation: 1}, 1, "o", func(int64) {})
		ctx, cancel := context.WithCancel(context.WithoutCancel(b.Context()))
		ended := make(chan error, 1)
		go func() { ended <- out.Run(ctx, a) }()
		b.Cleanup(func() { cancel(); <-ended })
		select {
		case <-a.IsReady():
		case err := <-ended:
			b.Fatalf("the broker ended: %v", err)
		}
	}
	return out
}

// TestBadCallsAtTheBroker: the table of bad calls, and the golden ones of osqueue, against the
// broker itself.
func TestBadCallsAtTheBroker(t *testing.T) {
	t.Parallel()
	q := broker(t, mem.Config{})
	h, err := api.New(q, api.Options{Logger: quiet, Queues: q.Queues()})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range badCalls {
		a := send(h, c.method, c.path, c.body)
		if strings.HasSuffix(c.path, "/jobs/none/complete") { // it looks at the token first
			c.status, c.tag = 409, queue.StaleClaim
		}
		if a.status != c.status || a.field(t, "_tag") != string(c.tag) {
			t.Errorf("%s %.60s %.80s: %d %.300s, want %d %s", c.method, c.path, c.body, a.status, a.body, c.status, c.tag)
		}
	}
	for _, path := range []string{"/v1/queues/unheard-of/jobs", "/v1/queues/unheard-of/stats"} {
		want(t, send(h, "GET", path, ""), 404, queue.QueueNotFound)
	}
	for _, name := range []string{"q", "default"} {
		if s, err := q.Stats(t.Context(), name); err != nil || s.Enqueued != 0 {
			t.Errorf("queue %s kept %d jobs of refused calls, %v", name, s.Enqueued, err)
		}
	}
}

// TestOsqueueAtTheBroker: osqueue's way of a job, and who is stale, against the broker itself.
func TestOsqueueAtTheBroker(t *testing.T) {
	t.Parallel()
	h, err := api.New(broker(t, mem.Config{}), api.Options{Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	a := send(h, "POST", "/v1/jobs", `{"payload":{"a":1},"type":"t","maxAttempts":2}`)
	id, _ := a.field(t, "jobId").(string)
	if a.status != 200 || id == "" {
		t.Fatalf("%d %s", a.status, a.body)
	}
	claim := `{"workerId":"w","types":["t"]}`
	if a = send(h, "POST", "/v1/jobs/claim", claim); a.body != fmt.Sprintf(`{"jobId":%q,"payload":{"a":1},"type":"t"}`, id) {
		t.Fatal(a.body)
	}
	if a = send(h, "POST", "/v1/jobs/claim", claim); a.body != `{}` {
		t.Error(a.body)
	}
	want(t, send(h, "POST", "/v1/jobs/"+id+"/complete", `{"workerId":"other"}`), 409, queue.StaleClaim)
	want(t, send(h, "POST", "/v1/jobs/"+id+"/heartbeat", `{"workerId":"other"}`), 409, queue.StaleClaim)
	if a = send(h, "POST", "/v1/jobs/"+id+"/heartbeat", `{"workerId":"w"}`); a.status != 204 {
		t.Error(a.status, a.body)
	}
	if a = send(h, "GET", "/v1/jobs", ""); !strings.Contains(a.body, `"status":"in_progress"`) || !strings.Contains(a.body, `"workerId":"w"`) {
		t.Error(a.body)
	}
	for range 2 { // the second repeats a complete whose answer was lost
		if a = send(h, "POST", "/v1/jobs/"+id+"/complete", `{"workerId":"w"}`); a.status != 204 {
			t.Error(a.status, a.body)
		}
	}
	want(t, send(h, "POST", "/v1/jobs/"+id+"/heartbeat", `{"workerId":"w"}`), 409, queue.StaleClaim)
	if a = send(h, "GET", "/v1/stats", ""); !strings.HasPrefix(a.body, `{"total":0,"unclaimed":0,"inProgress":0,"completedTotal":1,`) {
		t.Error(a.body)
	}
}
