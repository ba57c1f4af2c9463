package api_test

import (
	"fmt"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/emitd/emitd/internal/storage/mem"
	"github.com/emitd/emitd/queue"
	"github.com/emitd/emitd/queue/api"
	"github.com/emitd/emitd/queue/queuetest"
)

var unixMS = regexp.MustCompile(`\b1[0-9]{12}\b|\b946[0-9]{9}\b`)

// TestOsqueueGoldenBodies compares the 2xx bodies that osqueue's REST client reads, byte by byte.
func TestOsqueueGoldenBodies(t *testing.T) {
	t.Parallel()
	h, _ := newAPI(t, api.Options{})
	for i, s := range []struct {
		method, path, body string
		status             int
		answer             string
	}{
		{"GET", "/healthz", "", 200, `{"status":"ok"}`},
		{"GET", "/v1/stats", "", 200, `{"total":0,"unclaimed":0,"inProgress":0,"completedTotal":0,"brokerAddress":"127.0.0.1:7070"}`},
		{"GET", "/v1/jobs", "", 200, `{"total":0,"unclaimed":0,"inProgress":0,"completedTotal":0,"brokerAddress":"127.0.0.1:7070","jobs":[],"truncated":false}`},
		{"GET", "/state", "", 200, `{"broker":"127.0.0.1:7070","brokerHeartbeat":T,"jobs":[],"completedTotal":0,"truncated":false}`},
		{"GET", "/v1/throttle-stats", "", 200, `{"totalReads":0,"totalWrites":0,"throttledReads":0,"throttledWrites":0,"totalReadDelayMs":0,"totalWriteDelayMs":0,"dailyWriteCount":0,"dailyBudgetExceeded":false}`},
		{"POST", "/v1/jobs/claim", `{"workerId":"w"}`, 200, `{}`},
		{"POST", "/v1/jobs", `{"payload":{"to":"a"},"type":"email:send","maxAttempts":5}`, 200, `{"jobId":"job-1"}`},
		{"POST", "/v1/jobs", `{"payload":null}`, 200, `{"jobId":"job-2"}`},
		{"POST", "/v1/jobs/claim", `{"workerId":"w","types":["other"]}`, 200, `{}`},
		{"POST", "/v1/jobs/claim", `{"workerId":"w","types":["email:send"]}`, 200, `{"jobId":"job-1","payload":{"to":"a"},"type":"email:send"}`},
		{"POST", "/v1/jobs/job-1/heartbeat", `{"workerId":"w"}`, 204, ``},
		{"GET", "/v1/jobs", "", 200, `{"total":2,"unclaimed":1,"inProgress":1,"completedTotal":0,"brokerAddress":"127.0.0.1:7070","jobs":[` +
			`{"id":"job-1","status":"in_progress","payload":{"to":"a"},"type":"email:send","workerId":"w","createdAt":T,"attempts":1,"maxAttempts":5,"heartbeat":T},` +
			`{"id":"job-2","status":"unclaimed","payload":null,"createdAt":T,"attempts":0,"maxAttempts":3,"heartbeat":0}],"truncated":false}`},
		{"POST", "/v1/jobs/job-1/complete", `{"workerId":"w"}`, 204, ``},
		{"POST", "/v1/jobs/job-1/complete", `{"workerId":"w"}`, 204, ``}, // its answer may have been lost
		{"POST", "/v1/jobs/claim", `{"workerId":"w","types":[]}`, 200, `{"jobId":"job-2","payload":null}`},
		{"GET", "/v1/stats", "", 200, `{"total":1,"unclaimed":0,"inProgress":1,"completedTotal":1,"brokerAddress":"127.0.0.1:7070"}`},
	} {
		a := send(h, s.method, s.path, s.body)
		if got := unixMS.ReplaceAllString(a.body, "T"); a.status != s.status || got != s.answer {
			t.Errorf("step %d, %s %s: %d\n got %s\nwant %s", i, s.method, s.path, a.status, got, s.answer)
		}
	}
}

// TestHole08StaleWorkerIsRefused: a worker whose claim has ended gets 409 on heartbeat and complete,
// and cannot complete the attempt of another worker.
func TestHole08StaleWorkerIsRefused(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h, q := newAPI(t, api.Options{})
		send(h, "POST", "/v1/jobs", `{"payload":1}`)
		send(h, "POST", "/v1/jobs/claim", `{"workerId":"one"}`)
		time.Sleep(31 * time.Second) // of the bubble's clock
		want(t, send(h, "POST", "/v1/jobs/job-1/heartbeat", `{"workerId":"one"}`), 409, queue.StaleClaim)
		want(t, send(h, "POST", "/v1/jobs/job-1/complete", `{"workerId":"one"}`), 409, queue.StaleClaim)
		if a := send(h, "POST", "/v1/jobs/claim", `{"workerId":"two"}`); !strings.Contains(a.body, "job-1") {
			t.Fatalf("not handed out again: %s", a.body)
		}
		want(t, send(h, "POST", "/v1/jobs/job-1/complete", `{"workerId":"one"}`), 409, queue.StaleClaim)
		want(t, send(h, "POST", "/v1/jobs/job-1/heartbeat", `{"workerId":"forged"}`), 409, queue.StaleClaim)
		want(t, send(h, "POST", "/v1/queues/default/jobs/job-1/complete", `{"token":"forged"}`), 409, queue.StaleClaim)
		if i, _, _ := q.Get(t.Context(), "default", "job-1"); i.State != queue.Active || i.Worker != "two" {
			t.Errorf("the second attempt was harmed: %+v", i)
		}
		if a := send(h, "POST", "/v1/jobs/job-1/complete", `{"workerId":"two"}`); a.status != 204 {
			t.Errorf("holder: %d %s", a.status, a.body)
		}
	})
}

// TestHole08TokensDistinguishAttempts: the token of a worker's first attempt cannot complete its
// second one.
func TestHole08TokensDistinguishAttempts(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		h, _ := newAPI(t, api.Options{})
		send(h, "POST", "/v1/queues/q/jobs", `{"id":"a"}`)
		send(h, "POST", "/v1/queues/q/claim", `{"worker":"w"}`)
		time.Sleep(31 * time.Second)
		send(h, "POST", "/v1/queues/q/claim", `{"worker":"w"}`)
		want(t, send(h, "POST", "/v1/queues/q/jobs/a/complete", `{"token":"token-1"}`), 409, queue.StaleClaim)
		want(t, send(h, "POST", "/v1/queues/q/jobs/a/complete", `{"token":"token-2"}`), 200, "")
	})
}

// TestHole13ListsAreBounded: the size of an answer does not grow with the queue.
func TestHole13ListsAreBounded(t *testing.T) {
	t.Parallel()
	h, q := newAPI(t, api.Options{})
	var jobs []queue.Job
	for i := range 2500 {
		jobs = append(jobs, queue.Job{ID: fmt.Sprintf("j%04d", i), Payload: []byte(`{}`)})
	}
	if _, err := q.Enqueue(t.Context(), "default", jobs); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"/v1/jobs", "/state"} {
		a := send(h, "GET", path, "")
		list, _ := a.field(t, "jobs").([]any)
		if len(list) != 1000 || a.field(t, "truncated") != true {
			t.Errorf("%s: %d jobs, truncated %v", path, len(list), a.field(t, "truncated"))
		}
	}
	// The limit is for the whole list, not for each state in it.
	if _, err := q.Claim(t.Context(), "default", queue.ClaimRequest{Max: 600, Worker: "w"}); err != nil {
		t.Fatal(err)
	}
	if a := send(h, "GET", "/v1/jobs", ""); len(a.field(t, "jobs").([]any)) != 1000 || !strings.Contains(a.body, "in_progress") { // a test
		t.Errorf("%.200s", a.body)
	}
	if a := send(h, "GET", "/v1/jobs", ""); a.field(t, "total") != 2500.0 {
		t.Errorf("total %v", a.field(t, "total"))
	}
	seen := 0
	for cursor := ""; ; {
		a := send(h, "GET", "/v1/queues/default/jobs?limit=900&cursor="+cursor, "")
		list, _ := a.field(t, "jobs").([]any)
		seen += len(list)
		if cursor, _ = a.field(t, "cursor").(string); cursor == "" {
			break
		}
	}
	if seen != 2500 {
		t.Errorf("pages have %d jobs", seen)
	}
}

// TestHole13AnswersAreBounded: the size of an answer does not grow with the payloads either.
func TestHole13AnswersAreBounded(t *testing.T) {
	t.Parallel()
	q := queuetest.New()
	h, err := api.New(q, api.Options{Limiter: limiter(t, api.Limits{MaxBody: 1 << 20}), Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	for i := range 20 {
		job := queue.Job{ID: fmt.Sprint("j", i), Payload: []byte(`"` + strings.Repeat("x", 200<<10) + `"`)}
		if _, err := q.Enqueue(t.Context(), "default", []queue.Job{job}); err != nil {
			t.Fatal(err)
		}
	}
	for _, path := range []string{"/v1/jobs", "/state", "/v1/queues/default/jobs?payload=true"} {
		a := send(h, "GET", path, "")
		if jobs, _ := a.field(t, "jobs").([]any); len(jobs) != 20 || len(a.body) > 1200<<10 {
			t.Errorf("%s: %d jobs in %d bytes", path, len(jobs), len(a.body))
		}
		if a.field(t, "truncated") == false {
			t.Errorf("%s does not say so", path)
		}
	}
}

// TestPayloadsLeftOutAreReported: a payload that is an object of its own is not in osqueue's lists, and
// they say "truncated".
func TestPayloadsLeftOutAreReported(t *testing.T) {
	t.Parallel()
	h, err := api.New(startBroker(t, mem.Config{}), api.Options{Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	server := listen(t, h).URL
	c, err := socket(t, server, nil)
	if err != nil {
		t.Fatal(err)
	}
	c.SetReadLimit(-1)
	for n, size := range []int{queue.InlinePayload - 2, queue.InlinePayload - 1} { // with two quotes
		if a := send(h, "POST", "/v1/jobs", `{"payload":"`+strings.Repeat("x", size)+`"}`); a.status != 200 {
			t.Fatal(a.body)
		}
		whole := map[string]string{"WebSocket": roundTrip(t, c, `{"id":1,"method":"listJobs"}`)}
		for _, path := range []string{"/v1/jobs", "/state"} {
			whole[path] = send(h, "GET", path, "").body
		}
		for from, list := range whole {
			reported, left := strings.Contains(list, `"truncated":true`), strings.Contains(list, `"payload":null`)
			if reported != (n == 1) || left != reported {
				t.Errorf("%s, a payload of %d bytes: truncated %v, left out %v", from, size+2, reported, left)
			}
		}
	}
}

// TestHole16HealthIsOfTheQueue: a broker that may not answer is not healthy.
func TestHole16HealthIsOfTheQueue(t *testing.T) {
	t.Parallel()
	for _, err := range []error{queue.Refuse(queue.QueueNotOwner, "deposed"), fmt.Errorf("no store")} {
		h, e := api.New(broken{err: err}, api.Options{Logger: quiet})
		if e != nil {
			t.Fatal(e)
		}
		if a := send(h, "GET", "/healthz", ""); a.status != 503 {
			t.Errorf("%v: %d %s", err, a.status, a.body)
		}
	}
}

// TestHole16NoOriginIsReflected: a browser may read an answer only for a page of a configured
// origin.
func TestHole16NoOriginIsReflected(t *testing.T) {
	t.Parallel()
	h, _ := newAPI(t, api.Options{})
	for _, origin := range []string{"https://evil.example.org", "null"} {
		a := send(h, "GET", "/v1/jobs", "", "Origin", origin)
		if v := a.header.Get("Access-Control-Allow-Origin"); v != "" {
			t.Errorf("%s is reflected as %q", origin, v)
		}
	}
}

// TestHole03KeysStopDuplicates: a client that does not support IDs can still repeat a submit
// safely.
func TestHole03KeysStopDuplicates(t *testing.T) {
	t.Parallel()
	h, q := newAPI(t, api.Options{})
	first := send(h, "POST", "/v1/jobs", `{"payload":1}`, "Idempotency-Key", "order-7")
	again := send(h, "POST", "/v1/jobs", `{"payload":1}`, "Idempotency-Key", "order-7")
	if s, _ := q.Stats(t.Context(), "default"); s.Enqueued != 1 || first.body != again.body || first.status != 200 {
		t.Errorf("%d jobs: %s %s", s.Enqueued, first.body, again.body)
	}
	want(t, send(h, "POST", "/v1/jobs", `{"payload":1}`, "Idempotency-Key", strings.Repeat("k", 65)), 400, queue.BadRequest)
}

// TestOsqueueSeesOtherPayloads: bytes that are not JSON reach osqueue's clients as text.
func TestOsqueueSeesOtherPayloads(t *testing.T) {
	t.Parallel()
	h, _ := newAPI(t, api.Options{})
	send(h, "POST", "/v1/queues/default/jobs", `{"id":"b","payload_base64":"/w=="}`)
	if a := send(h, "POST", "/v1/jobs/claim", `{"workerId":"w"}`); a.body != `{"jobId":"b","payload":"/w=="}` {
		t.Error(a.body)
	}
}
