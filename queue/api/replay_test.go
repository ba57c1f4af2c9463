package api_test

import (
	"encoding/json"
	"io"
	"net/http"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/emitd/emitd/internal/storage/mem"
	"github.com/emitd/emitd/queue/api"
)

// exchange is one call of a client and its answer. In both, ID is the job's ID and T a time.
type exchange struct {
	to, sent string
	status   int
	got      string // JSON; the order of names and white space do not matter
}

// replays are the exact calls of osqueue's clients, on each of their three transports: a job from
// its submission to its end, and a worker that does not hold it.
var replays = map[string][]exchange{
	"REST": {
		{"GET /healthz", ``, 200, `{"status":"ok"}`},
		{"POST /v1/jobs/claim", `{"workerId":"w"}`, 200, `{}`},
		{"POST /v1/jobs", `{"payload":{"a":1},"type":"t","maxAttempts":2}`, 200, `{"jobId":"ID"}`},
		{"POST /v1/jobs/claim", `{"workerId":"w","types":["other"]}`, 200, `{}`},
		{"POST /v1/jobs/claim", `{"workerId":"w","types":["other","t"]}`, 200, `{"jobId":"ID","payload":{"a":1},"type":"t"}`},
		{"POST /v1/jobs/ID/heartbeat", `{"workerId":"w"}`, 204, ``},
		{"POST /v1/jobs/ID/heartbeat", `{"workerId":"x"}`, 409, `{"_tag":"StaleClaim"}`},
		{"GET /v1/stats", ``, 200, `{"total":1,"unclaimed":0,"inProgress":1,"completedTotal":0,"brokerAddress":"127.0.0.1:7070"}`},
		{"GET /v1/jobs", ``, 200, `{"total":1,"unclaimed":0,"inProgress":1,"completedTotal":0,"brokerAddress":"127.0.0.1:7070","truncated":false,
			"jobs":[{"id":"ID","status":"in_progress","payload":{"a":1},"type":"t","workerId":"w","createdAt":"T","attempts":1,"maxAttempts":2,"heartbeat":"T"}]}`},
		{"GET /state", ``, 200, `{"broker":"127.0.0.1:7070","brokerHeartbeat":"T","completedTotal":0,"truncated":false,
			"jobs":[{"id":"ID","status":"in_progress","payload":{"a":1},"type":"t","workerId":"w","createdAt":"T","attempts":1,"maxAttempts":2,"heartbeat":"T"}]}`},
		{"POST /v1/jobs/ID/complete", `{"workerId":"x"}`, 409, `{"_tag":"StaleClaim"}`},
		{"POST /v1/jobs/ID/complete", `{"workerId":"w"}`, 204, ``},
		{"POST /v1/jobs/ID/complete", `{"workerId":"w"}`, 204, ``},
		{"POST /v1/jobs/ID/heartbeat", `{"workerId":"w"}`, 409, `{"_tag":"StaleClaim"}`},
		{"GET /v1/stats", ``, 200, `{"total":0,"unclaimed":0,"inProgress":0,"completedTotal":1,"brokerAddress":"127.0.0.1:7070"}`},
		{"POST /v1/jobs", `{"maxAttempts":-5}`, 400, `{"_tag":"BadRequest"}`},
		{"POST /v1/jobs/claim", `{"types":["t"]}`, 400, `{"_tag":"BadRequest"}`},
		{"POST /v1/jobs/none/complete", `{"workerId":"w"}`, 404, `{"_tag":"JobNotFound"}`},
	},
	"Connect": {
		{"ClaimJob", `{"workerId":"w"}`, 200, `{}`},
		{"SubmitJob", `{"payload":"eyJhIjoxfQ==","type":"t","maxAttempts":2}`, 200, `{"jobId":"ID"}`},
		{"ClaimJob", `{"workerId":"w","types":["other"]}`, 200, `{}`},
		{"ClaimJob", `{"workerId":"w","types":["other","t"]}`, 200, `{"jobId":"ID","payload":"eyJhIjoxfQ==","type":"t"}`},
		{"Heartbeat", `{"jobId":"ID","workerId":"w"}`, 200, `{}`},
		{"Heartbeat", `{"jobId":"ID","workerId":"x"}`, 409, `{"code":"aborted"}`},
		{"GetStats", `{}`, 200, `{"total":1,"inProgress":1,"brokerAddress":"127.0.0.1:7070"}`},
		{"ListJobs", `{}`, 200, `{"total":1,"inProgress":1,"brokerAddress":"127.0.0.1:7070",
			"jobs":[{"id":"ID","status":"in_progress","payload":"eyJhIjoxfQ==","type":"t","workerId":"w","createdAt":"T","attempts":1,"maxAttempts":2,"heartbeat":"T"}]}`},
		{"CompleteJob", `{"jobId":"ID","workerId":"x"}`, 409, `{"code":"aborted"}`},
		{"CompleteJob", `{"jobId":"ID","workerId":"w"}`, 200, `{}`},
		{"CompleteJob", `{"jobId":"ID","workerId":"w"}`, 200, `{}`},
		{"Heartbeat", `{"jobId":"ID","workerId":"w"}`, 409, `{"code":"aborted"}`},
		{"ListJobs", `{}`, 200, `{"completedTotal":1,"brokerAddress":"127.0.0.1:7070"}`},
		{"SubmitJob", `{"payload":"MQ==","maxAttempts":-5}`, 400, `{"code":"invalid_argument"}`},
		{"ClaimJob", `{}`, 400, `{"code":"invalid_argument"}`},
		{"CompleteJob", `{"jobId":"none","workerId":"w"}`, 404, `{"code":"not_found"}`},
	},
	"WebSocket": {
		{"claimJob", `{"workerId":"w"}`, 200, `{}`},
		{"submitJob", `{"type":"t","payload":{"a":1},"maxAttempts":2}`, 200, `{"jobId":"ID"}`},
		{"claimJob", `{"workerId":"w","types":["other"]}`, 200, `{}`},
		{"claimJob", `{"workerId":"w","types":["other","t"]}`, 200, `{"jobId":"ID","payload":{"a":1},"type":"t"}`},
		{"heartbeat", `{"jobId":"ID","workerId":"w"}`, 200, `{}`},
		{"heartbeat", `{"jobId":"ID","workerId":"x"}`, 409, `{"_tag":"StaleClaim"}`},
		{"getStats", `{}`, 200, `{"total":1,"unclaimed":0,"inProgress":1,"completedTotal":0,"brokerAddress":"127.0.0.1:7070"}`},
		{"listJobs", `{}`, 200, `{"total":1,"unclaimed":0,"inProgress":1,"completedTotal":0,"brokerAddress":"127.0.0.1:7070","truncated":false,
			"jobs":[{"id":"ID","status":"in_progress","payload":{"a":1},"type":"t","workerId":"w","createdAt":"T","attempts":1,"maxAttempts":2,"heartbeat":"T"}]}`},
		{"completeJob", `{"jobId":"ID","workerId":"x"}`, 409, `{"_tag":"StaleClaim"}`},
		{"completeJob", `{"jobId":"ID","workerId":"w"}`, 200, `{}`},
		{"completeJob", `{"jobId":"ID","workerId":"w"}`, 200, `{}`},
		{"heartbeat", `{"jobId":"ID","workerId":"w"}`, 409, `{"_tag":"StaleClaim"}`},
		{"getStats", `{}`, 200, `{"total":0,"unclaimed":0,"inProgress":0,"completedTotal":1,"brokerAddress":"127.0.0.1:7070"}`},
		{"submitJob", `{"payload":1,"maxAttempts":-5}`, 400, `{"_tag":"BadRequest"}`},
		{"claimJob", `{"types":["t"]}`, 400, `{"_tag":"BadRequest"}`},
		{"completeJob", `{"jobId":"none","workerId":"w"}`, 404, `{"_tag":"JobNotFound"}`},
	},
}

var (
	moments = regexp.MustCompile(`"?\b1[0-9]{12}\b"?`) // also in quotes: protobuf's JSON writes large numbers as strings
	jobIDs  = regexp.MustCompile(`"jobId":\s*"([^"]+)"`)
)

// TestOsqueueReplay: the calls of osqueue's clients, over the network and to a real broker, get the
// expected answers on each transport. Of refusals, the tag or code is compared.
func TestOsqueueReplay(t *testing.T) {
	t.Parallel()
	for name, exchanges := range replays {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h, err := api.New(startBroker(t, mem.Config{}), api.Options{Logger: quiet})
			if err != nil {
				t.Fatal(err)
			}
			report := transportOf(t, name, listen(t, h).URL)
			job := "ID"
			for i, x := range exchanges {
				status, body := report(strings.ReplaceAll(x.to, "ID", job), strings.ReplaceAll(x.sent, `"ID"`, `"`+job+`"`))
				if m := jobIDs.FindStringSubmatch(body); m != nil {
					job = m[1]
				}
				body = strings.ReplaceAll(moments.ReplaceAllString(body, `"T"`), job, "ID")
				if status != x.status || !matches(t, x.got, body, status < 300) {
					t.Errorf("step %d, %s %s:\n got %d %s\nwant %d %s", i, x.to, x.sent, status, body, x.status, x.got)
				}
			}
		})
	}
}

// transportOf returns a function that makes calls over one of osqueue's transports.
func transportOf(t *testing.T, name, url string) func(to, body string) (int, string) {
	post := func(method, path, body string) (int, string) {
		r, err := http.NewRequestWithContext(t.Context(), method, url+path, strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Content-Type", "application/json")
		resp, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		text, err := io.ReadAll(resp.Body)
		if err != nil {
			t.Fatal(err)
		}
		return resp.StatusCode, string(text)
	}
	switch name {
	case "REST":
		return func(to, body string) (int, string) {
			method, path, _ := strings.Cut(to, " ")
			return post(method, path, body)
		}
	case "Connect":
		return func(to, body string) (int, string) {
			return post(http.MethodPost, "/osqueue.v1.QueueService/"+to, body)
		}
	}
	c, err := socket(t, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	return func(to, body string) (int, string) {
		var got struct {
			ID            string
			OK            bool
			Result, Error json.RawMessage
		}
		text := roundTrip(t, c, `{"id":"7","method":"`+to+`","params":`+body+`}`)
		var e struct{ Status int }
		if err := json.Unmarshal([]byte(text), &got); err != nil || got.ID != "7" {
			t.Fatalf("%s: %v", text, err)
		}
		if got.OK {
			return http.StatusOK, string(got.Result)
		}
		if err := json.Unmarshal(got.Error, &e); err != nil {
			t.Fatal(err)
		}
		return e.Status, string(got.Error)
	}
}

// matches reports whether a body has the wanted content: exactly, or at least.
func matches(t *testing.T, want, got string, whole bool) bool {
	t.Helper()
	if want == "" || got == "" {
		return want == got
	}
	var w, g map[string]any
	if err := json.Unmarshal([]byte(want), &w); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal([]byte(got), &g); err != nil {
		return false
	}
	if whole {
		return reflect.DeepEqual(w, g)
	}
	for k, v := range w {
		if !reflect.DeepEqual(g[k], v) {
			return false
		}
	}
	return g["message"] != nil
}
