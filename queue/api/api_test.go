package api_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"

	"github.com/emitd/emitd/internal/queue/wire"
	"github.com/emitd/emitd/internal/queue/wire/refusal"
	"github.com/emitd/emitd/internal/storage/mem"
	"github.com/emitd/emitd/queue"
	"github.com/emitd/emitd/queue/api"
	"github.com/emitd/emitd/queue/queuetest"
)

// quiet discards log lines.
var quiet = slog.New(slog.DiscardHandler)

// newAPI returns the API over a queue in memory.
func newAPI(t *testing.T, o api.Options) (*api.Handler, *queuetest.Queue) {
	t.Helper()
	q := queuetest.New()
	o.Logger = quiet
	h, err := api.New(q, o)
	if err != nil {
		t.Fatal(err)
	}
	return h, q
}

// answer is the answer to a call.
type answer struct {
	status int
	header http.Header
	body   string
}

func (a answer) field(t *testing.T, name string) any {
	t.Helper()
	var m map[string]any
	if err := json.Unmarshal([]byte(a.body), &m); err != nil {
		t.Fatalf("body %q: %v", a.body, err)
	}
	return m[name]
}

// send makes a call; an empty body means none.
func send(h http.Handler, method, path, body string, header ...string) answer {
	r := httptest.NewRequest(method, path, strings.NewReader(body))
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	return record(h, r)
}

// request makes a call with any query.
func request(method, path, query string, body []byte) (*http.Request, error) {
	r, err := http.NewRequest(method, "http://x"+path, bytes.NewReader(body)) // a test
	if err == nil {
		r.URL.RawQuery = query
	}
	return r, err
}

func record(h http.Handler, r *http.Request) answer {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return answer{status: w.Code, header: w.Header(), body: w.Body.String()}
}

// want fails unless the call has the status. A refusal must have the tag and a message, and must
// not be an unexpected 5xx.
func want(t *testing.T, a answer, status int, tag queue.Tag) {
	t.Helper()
	if a.status != status {
		t.Fatalf("status %d, want %d: %s", a.status, status, a.body)
	}
	if tag == "" {
		return
	}
	if got := a.field(t, "_tag"); got != string(tag) {
		t.Errorf("_tag %v, want %s: %s", got, tag, a.body)
	}
	for _, text := range []string{"message", "hint"} {
		if m, _ := a.field(t, text).(string); m == "" {
			t.Errorf("no %s: %s", text, a.body)
		}
	}
	if ct := a.header.Get("Content-Type"); ct != refusal.MediaType {
		t.Errorf("content type %q", ct)
	}
}

// play makes calls one after the other. In a request, … is the token of the newest claim; in an
// answer it replaces what differs between runs: times and tokens.
type play struct {
	h     http.Handler
	token string // of the first job of the newest claim
}

var (
	times  = regexp.MustCompile(`"20\d\d-[^"]+"`)
	tokens = regexp.MustCompile(`"token":"([^"]+)"`)
)

func (p *play) send(method, path, body string) (a answer, masked string) {
	a = send(p.h, method, path, strings.ReplaceAll(body, "…", p.token))
	if m := tokens.FindStringSubmatch(a.body); m != nil {
		p.token = m[1]
	}
	return a, tokens.ReplaceAllString(times.ReplaceAllString(a.body, "…"), `"token":"…"`)
}

// TestOwnStory calls each endpoint of the own API once and compares the bodies, with a broker
// behind it. The document has each of the answers.
func TestOwnStory(t *testing.T) {
	t.Parallel()
	checked := newConforming(t, newLiveAPI(t))
	p := play{h: checked}
	const q = "/v1/queues/mail"
	steps := []struct{ method, path, body, answer string }{
		{
			"PUT", "/v1/queues/other", `{"visibility_ms":1000,"dedup_window_ms":2000,"dedup_ids":3,"ttl_ms":4000,"max_jobs":5,"max_bytes":1048576,"retry":{"max_attempts":7}}`,
			`{"name":"other","visibility_ms":1000,"ttl_ms":4000,"dedup_window_ms":2000,"dedup_ids":3,"max_jobs":5,"max_bytes":1048576,"retry":{"max_attempts":7}}`,
		},
		{
			"PATCH", "/v1/queues/other", `{"ttl_ms":0,"claims":"durable","max_jobs":null,"retry":{"backoff_ms":5}}`,
			`{"name":"other","shards":1,"claims":"durable","visibility_ms":1000,"dedup_window_ms":2000,"dedup_ids":3,"max_jobs":5,"max_bytes":1048576,"retry":{"max_attempts":7,"backoff_ms":5}}`,
		},
		{
			"PATCH", "/v1/queues/other", `{"retry":null}`,
			`{"name":"other","shards":1,"claims":"durable","visibility_ms":1000,"dedup_window_ms":2000,"dedup_ids":3,"max_jobs":5,"max_bytes":1048576,"retry":{"max_attempts":7,"backoff_ms":5}}`,
		},
		{"PATCH", "/v1/queues/third", `{"name":"third","retry":{"max_attempts":2}}`, `{"name":"third","retry":{"max_attempts":2}}`},
		{"DELETE", "/v1/queues/third", "", ""},
		{"DELETE", "/v1/queues/other", "", ""},
		{"PUT", q, `{"shards":1,"claims":"durable"}`, `{"name":"mail","shards":1,"claims":"durable"}`},
		{"GET", q, "", `{"name":"mail","shards":1,"claims":"durable"}`},
		{"GET", "/v1/queues", "", `{"queues":[{"name":"mail","shards":1,"claims":"durable"}]}`},
		{"POST", q + "/jobs", `{"id":"a","type":"send","payload":{"to": "<x>"}}`, `{"jobs":[{"id":"a","state":"waiting"}]}`},
		{
			"POST", q + "/jobs", `{"jobs":[{"id":"a"},{"id":"b","payload_base64":"/w==","delay_ms":3600000},{"key":"k","priority":-3}]}`,
			`{"jobs":[{"id":"a","duplicate":true,"state":"waiting"},{"id":"b","state":"delayed"},{"id":"71bd1851-bebe-815d-a5d6-07e0876e5cae","state":"waiting"}]}`,
		},
		{
			"GET", q + "/jobs?state=waiting&limit=1&payload=true", "",
			`{"jobs":[{"id":"a","queue":"mail","type":"send","state":"waiting","attempts":0,"deliveries":0,"max_attempts":3,"created_at":…,"size":13,"payload":{"to": "<x>"}}],"cursor":"MC4y"}`,
		},
		{
			"GET", q + "/jobs?state=waiting&cursor=MC4y", "",
			`{"jobs":[{"id":"71bd1851-bebe-815d-a5d6-07e0876e5cae","queue":"mail","state":"waiting","priority":-3,"attempts":0,"deliveries":0,"max_attempts":3,"created_at":…,"size":0}]}`,
		},
		{
			"GET", q + "/jobs/b", "",
			`{"id":"b","queue":"mail","state":"delayed","attempts":0,"deliveries":0,"max_attempts":3,"created_at":…,"run_at":…,"size":1,"payload_base64":"/w=="}`,
		},
		{
			"POST", q + "/claim", `{"worker":"w","types":["send"],"max":2,"visibility_ms":60000}`,
			`{"jobs":[{"id":"a","queue":"mail","type":"send","state":"active","attempts":0,"deliveries":1,"max_attempts":3,"worker":"w","created_at":…,"until":…,"size":13,"payload":{"to": "<x>"},"token":"…","visibility_ms":60000}]}`,
		},
		{"POST", q + "/claim", `{"types":["send"]}`, `{"jobs":[]}`},
		{"POST", q + "/jobs/a/extend", `{"token":"…","visibility_ms":90000}`, `{"id":"a","state":"active","visibility_ms":90000}`},
		{"POST", q + "/jobs/a/release", `{"token":"…"}`, `{"id":"a","state":"waiting"}`},
		{"POST", q + "/claim", `{"types":["send"]}`, ``},
		{"POST", q + "/jobs/a/fail", `{"token":"…","cause":"smtp down","dead":true}`, `{"id":"a","state":"dead"}`},
		{
			"GET", q + "/dead", "",
			`{"jobs":[{"id":"a","queue":"mail","type":"send","state":"dead","attempts":2,"deliveries":2,"max_attempts":3,"created_at":…,"ended_at":…,"cause":"smtp down","size":13}]}`,
		},
		{"POST", q + "/dead/redrive", "", `{"count":1}`},
		{"POST", q + "/jobs/a/redrive", "", `{"count":0}`},
		{"POST", q + "/retry", `{"ids":["b"]}`, `{"count":1}`},
		{"POST", q + "/pause", "", `{"count":0}`},
		{"POST", q + "/claim", "", `{"jobs":[]}`},
		{"POST", q + "/resume", "{}", `{"count":0}`},
		{"POST", q + "/claim", `{"max":3}`, ``},
		{"POST", q + "/settle", `{"settlements":[{"verb":"complete","id":"a","token":"…","result":[1]},{"verb":"extend","id":"b","token":"no"}]}`, ``},
		{"GET", q + "/jobs/a", "", `{"id":"a","queue":"mail","state":"completed","attempts":0,"deliveries":0,"ended_at":…,"size":0,"result":[1]}`},
		{"POST", q + "/jobs/b/cancel", "", `{"count":1}`},
		{"DELETE", q + "/jobs/71bd1851-bebe-815d-a5d6-07e0876e5cae", "", `{"count":1}`},
		{"POST", q + "/jobs", `{"id":"d","type":"last"}`, ``},
		{"POST", q + "/claim", `{"types":["last"]}`, ``},
		{"POST", q + "/jobs/d/complete", `{"token":"…"}`, `{"id":"d","state":"completed"}`},
		{"POST", q + "/jobs", `{"id":"c"}`, ``},
		{"POST", q + "/purge", `{"state":"waiting"}`, `{"count":1}`},
		{"POST", q + "/redrive", "", `{"count":0}`},
		{"POST", q + "/cancel", "", `{"count":0}`},
		{"POST", q + "/jobs/c/retry", "", `{"count":0}`},
		{"GET", q + "/stats", "", ``},
		{"PUT", q + "/reshard", `{"shards":1}`, `{"name":"mail","shards":1,"claims":"durable"}`},
		{"DELETE", q, "", ``},
		{"GET", "/v1/queues", "", `{"queues":[]}`},
	}
	for i, s := range steps {
		a, got := p.send(s.method, s.path, s.body)
		if a.status/100 != 2 {
			t.Fatalf("step %d, %s %s: %d %s", i, s.method, s.path, a.status, a.body)
		}
		if s.answer != "" && got != s.answer {
			t.Errorf("step %d, %s %s:\n got %s\nwant %s", i, s.method, s.path, got, s.answer)
		}
	}
	for path, methods := range checked.doc.Paths {
		for method := range methods {
			if pattern := strings.ToUpper(method) + " " + path; strings.HasPrefix(path, "/v1/queues") && !checked.seen[pattern] {
				t.Errorf("%s was not called", pattern)
			}
		}
	}
}

// TestSettleAnswersEach: a stale settlement does not affect the others of the call.
func TestSettleAnswersEach(t *testing.T) {
	t.Parallel()
	h, _ := newAPI(t, api.Options{})
	send(h, "POST", "/v1/queues/q/jobs", `{"jobs":[{"id":"a"},{"id":"b"}]}`)
	send(h, "POST", "/v1/queues/q/claim", `{"max":2}`)
	a := send(h, "POST", "/v1/queues/q/settle", `{"settlements":[
		{"verb":"complete","id":"a","token":"forged"},{"verb":"complete","id":"b","token":"token-2"},{"verb":"fail","id":"c","worker":"w"}]}`)
	var got wire.SettleResponse
	if err := json.Unmarshal([]byte(a.body), &got); err != nil || len(got.Outcomes) != 3 {
		t.Fatalf("%d %s: %v", a.status, a.body, err)
	}
	if e := got.Outcomes[0].Error; e == nil || e.Tag != queue.StaleClaim || e.Status != 409 || e.Hint == "" {
		t.Errorf("forged: %+v", e)
	}
	if o := got.Outcomes[1]; o.Error != nil || o.State != queue.Completed {
		t.Errorf("held: %+v", o)
	}
	if e := got.Outcomes[2].Error; e == nil || e.Tag != queue.JobNotFound {
		t.Errorf("unknown: %+v", e)
	}
}

// badCalls has, for each endpoint, the mistakes that a caller may make.
var badCalls = []struct {
	method, path, body string
	status             int
	tag                queue.Tag
	contains           string // in the message
}{
	{"GET", "/v1/openapi.json?limit=1", "", 400, queue.BadRequest, "unknown parameter"},
	{"POST", "/v1/queues/q/jobs", "", 400, queue.BadRequest, "missing"},
	{"POST", "/v1/queues/q/jobs", "  \n", 400, queue.BadRequest, "missing"},
	{"POST", "/v1/queues/q/jobs", "null", 400, queue.BadRequest, "object"},
	{"POST", "/v1/queues/q/jobs", "[]", 400, queue.BadRequest, "object"},
	{"POST", "/v1/queues/q/jobs", `{"payload":`, 400, queue.BadRequest, "byte"},
	{"POST", "/v1/queues/q/jobs", `{"payload":1} {}`, 400, queue.BadRequest, "more than one"},
	{"POST", "/v1/queues/q/jobs", `{payload:1}`, 400, queue.BadRequest, "no JSON"},
	{"POST", "/v1/queues/q/jobs", `{"payload":1,"max_atempts":2}`, 400, queue.BadRequest, "max_atempts"},
	{"POST", "/v1/queues/q/jobs", `{"retry":{"max":2}}`, 400, queue.BadRequest, `"max"`},
	{"POST", "/v1/queues/q/jobs", `{"priority":"high"}`, 400, queue.BadRequest, "priority: a string where a whole number"},
	{"POST", "/v1/queues/q/jobs", `{"priority":1.5}`, 400, queue.BadRequest, "priority: the number 1.5"},
	{"POST", "/v1/queues/q/jobs", `{"priority":128}`, 400, queue.BadRequest, "-128 and 127"},
	{"POST", "/v1/queues/q/jobs", `{"type":7}`, 400, queue.BadRequest, "type"},
	{"POST", "/v1/queues/q/jobs", `{"id":"` + strings.Repeat("x", 65) + `"}`, 400, queue.BadRequest, "id: 65 bytes"},
	{"POST", "/v1/queues/q/jobs", `{"id":"a\u0000b"}`, 400, queue.BadRequest, "control"},
	{"POST", "/v1/queues/q/jobs", `{"id":"a","key":"b"}`, 400, queue.BadRequest, "both"},
	{"POST", "/v1/queues/q/jobs", `{"run_at":"tomorrow"}`, 400, queue.BadRequest, "moment"},
	{"POST", "/v1/queues/q/jobs", `{"run_at":5}`, 400, queue.BadRequest, ""},
	{"POST", "/v1/queues/q/jobs", `{"run_at":"2027-01-01T00:00:00Z","delay_ms":5}`, 400, queue.BadRequest, "both"},
	{"POST", "/v1/queues/q/jobs", `{"delay_ms":-5}`, 400, queue.BadRequest, "delay_ms"},
	{"POST", "/v1/queues/q/jobs", `{"delay_ms":9223372036854775807}`, 400, queue.BadRequest, "delay_ms"},
	{"POST", "/v1/queues/q/jobs", `{"ttl_ms":-1}`, 400, queue.BadRequest, "ttl_ms"},
	{"POST", "/v1/queues/q/jobs", `{"retry":{"max_attempts":-5}}`, 400, queue.BadRequest, "max_attempts: -5"},
	{"POST", "/v1/queues/q/jobs", `{"retry":{"factor":0.5}}`, 400, queue.BadRequest, "factor"},
	{"POST", "/v1/queues/q/jobs", `{"retry":{"jitter":2}}`, 400, queue.BadRequest, "jitter"},
	{"POST", "/v1/queues/q/jobs", `{"payload":1,"payload_base64":"AA=="}`, 400, queue.BadRequest, "both"},
	{"POST", "/v1/queues/q/jobs", `{"payload_base64":"*"}`, 400, queue.BadRequest, "base64"},
	{"POST", "/v1/queues/q/jobs", `{"jobs":[]}`, 400, queue.BadRequest, "empty"},
	{"POST", "/v1/queues/q/jobs", `{"jobs":[{"id":"a"},{"id":"b","priority":999}]}`, 400, queue.BadRequest, "jobs[1].priority"},
	{"POST", "/v1/queues/q/jobs", `{"jobs":[{}],"type":"x"}`, 400, queue.BadRequest, "beside"},
	{"POST", "/v1/queues/q/jobs", `{"jobs":[` + strings.Repeat(`{},`, 1000) + `{}]}`, 400, queue.TooManyJobs, "jobs"},
	{"POST", "/v1/queues/q/jobs", `{"payload":"` + strings.Repeat("x", 16<<20) + `"}`, 413, queue.PayloadTooLarge, "payload"},
	{"POST", "/v1/queues/q/jobs", `{"payload":"` + strings.Repeat("x", 33<<20) + `"}`, 413, queue.PayloadTooLarge, "body"},
	{"POST", "/v1/queues/Bad%20Name/jobs", `{}`, 400, queue.BadRequest, "queue"},
	{"POST", "/v1/queues/" + strings.Repeat("q", 65) + "/jobs", `{}`, 400, queue.BadRequest, "queue"},
	{"GET", "/v1/queues/q/jobs?limit=0", "", 400, queue.BadRequest, "limit"},
	{"GET", "/v1/queues/q/jobs?limit=1001", "", 400, queue.BadRequest, "limit"},
	{"GET", "/v1/queues/q/jobs?limit=x", "", 400, queue.BadRequest, "limit"},
	{"GET", "/v1/queues/q/jobs?state=lost", "", 400, queue.BadRequest, "state"},
	{"GET", "/v1/queues/q/jobs?payload=maybe", "", 400, queue.BadRequest, "payload"},
	{"GET", "/v1/queues/q/jobs?sort=asc", "", 400, queue.BadRequest, "sort"},
	{"GET", "/v1/queues/q/jobs?limit=1&limit=2", "", 400, queue.BadRequest, "2 times"},
	{"GET", "/v1/queues/q/jobs?cursor=zzz", "", 400, queue.BadRequest, "cursor"},
	{"GET", "/v1/queues/q/dead?state=dead", "", 400, queue.BadRequest, "state"},
	{"GET", "/v1/queues/q/jobs/none", "", 404, queue.JobNotFound, "none"},
	{"GET", "/v1/queues/q/jobs/" + strings.Repeat("x", 65), "", 400, queue.BadRequest, "id"},
	{"POST", "/v1/queues/q/claim", `{"max":-1}`, 400, queue.BadRequest, "max"},
	{"POST", "/v1/queues/q/claim", `{"max":1001}`, 400, queue.TooManyJobs, "max"},
	{"POST", "/v1/queues/q/claim", `{"wait_ms":60001}`, 400, queue.BadRequest, "wait_ms"},
	{"POST", "/v1/queues/q/claim", `{"types":"a"}`, 400, queue.BadRequest, "types: a string where a list"},
	{"POST", "/v1/queues/q/claim", `{"types":["` + strings.Repeat("x", 65) + `"]}`, 400, queue.BadRequest, "types[0]"},
	{"POST", "/v1/queues/q/claim", `{"visibility_ms":-1}`, 400, queue.BadRequest, "visibility_ms"},
	{"POST", "/v1/queues/q/claim", `{"tokenless":true}`, 400, queue.BadRequest, "worker"},
	{"POST", "/v1/queues/q/claim", `{"workerId":"w"}`, 400, queue.BadRequest, "workerId"},
	{"POST", "/v1/queues/q/settle", `{"settlements":[]}`, 400, queue.BadRequest, "empty"},
	{"POST", "/v1/queues/q/settle", `{"settlements":[{"id":"a","token":"t"}]}`, 400, queue.BadRequest, "verb"},
	{"POST", "/v1/queues/q/settle", `{"settlements":[{"verb":"nack","id":"a","token":"t"}]}`, 400, queue.BadRequest, "verb"},
	{"POST", "/v1/queues/q/settle", `{"settlements":[{"verb":"fail","token":"t"}]}`, 400, queue.BadRequest, "id is missing"},
	{"POST", "/v1/queues/q/settle", `{"settlements":[{"verb":"fail","id":"a"}]}`, 400, queue.BadRequest, "token is missing"},
	{"POST", "/v1/queues/q/settle", `{"settlements":[{"verb":"fail","id":"a","token":"t","retry_after_ms":-1}]}`, 400, queue.BadRequest, "retry_after_ms"},
	{"POST", "/v1/queues/q/jobs/a/complete", "", 400, queue.BadRequest, "missing"},
	{"POST", "/v1/queues/q/jobs/a/complete", `{}`, 400, queue.BadRequest, "token is missing"},
	{"POST", "/v1/queues/q/jobs/a/complete", `{"token":"` + strings.Repeat("t", 2000) + `"}`, 400, queue.BadRequest, "token"},
	{"POST", "/v1/queues/q/jobs/a/complete", `{"token":"t","cause":"x"}`, 400, queue.BadRequest, "cause"},
	{"POST", "/v1/queues/q/jobs/a/complete", `{"token":"t","id":"a"}`, 400, queue.BadRequest, "path"},
	{"POST", "/v1/queues/q/jobs/a/complete", `{"token":"t","result":"` + strings.Repeat("r", 64<<10) + `"}`, 413, queue.PayloadTooLarge, "result"},
	{"POST", "/v1/queues/q/jobs/a/fail", `{"token":"t","result":1}`, 400, queue.BadRequest, "result"},
	{"POST", "/v1/queues/q/jobs/none/complete", `{"token":"t"}`, 409, queue.StaleClaim, "not a token"},
	{"GET", "/v1/queues/unheard-of/jobs", "", 404, queue.QueueNotFound, "unheard-of"},
	{"GET", "/v1/queues/unheard-of/stats", "", 404, queue.QueueNotFound, "unheard-of"},
	{"POST", "/v1/queues/unheard-of/jobs", `{}`, 404, queue.QueueNotFound, "unheard-of"},
	{"POST", "/v1/queues/unheard-of/claim", "", 404, queue.QueueNotFound, "unheard-of"},
	{"POST", "/v1/queues/unheard-of/jobs/a/complete", `{"token":"t"}`, 404, queue.QueueNotFound, "unheard-of"},
	{"POST", "/v1/queues/unheard-of/pause", "", 404, queue.QueueNotFound, "unheard-of"},
	{"GET", "/v1/queues/q/jobs?cursor=MS4x", "", 400, queue.BadRequest, "cursor"}, // of shard 1
	{"GET", "/v1/queues/q/jobs?state=completed", "", 400, queue.BadRequest, "completed"},
	{"POST", "/v1/queues/q/purge", `{"state":"completed"}`, 400, queue.BadRequest, "completed"},
	{"POST", "/v1/queues/q/pause", `{"ids":["a"]}`, 400, queue.BadRequest, "ids"},
	{"POST", "/v1/queues/q/purge", `{"state":"gone"}`, 400, queue.BadRequest, "state"},
	{"POST", "/v1/queues/q/purge", `{"ids":["a"]}`, 400, queue.BadRequest, "ids"},
	{"POST", "/v1/queues/q/cancel", `{"ids":[]}`, 400, queue.BadRequest, "ids"},
	{"POST", "/v1/queues/q/cancel", `{"state":"dead"}`, 400, queue.BadRequest, "state"},
	{"POST", "/v1/queues/q/redrive", `{"ids":[""]}`, 400, queue.BadRequest, "ids[0]"},
	{"POST", "/v1/queues/q/jobs/a/cancel", `{"ids":["a"]}`, 400, queue.BadRequest, "ids"},
	{"PUT", "/v1/queues/q", `{"shards":-1}`, 400, queue.BadRequest, "shards"},
	{"PUT", "/v1/queues/q", `{"claims":"hard"}`, 400, queue.BadRequest, "claims"},
	{"PUT", "/v1/queues/q", `{"name":"other"}`, 400, queue.BadRequest, "name"},
	{"PUT", "/v1/queues/q", `{"retry":{"max_attempts":-1}}`, 400, queue.BadRequest, "max_attempts"},
	{"PUT", "/v1/queues/q", `{"visibility_ms":-1}`, 400, queue.BadRequest, "visibility_ms"},
	{"PATCH", "/v1/queues/q", `{"shards":3}`, 400, queue.BadRequest, "does not change their number"},
	{"PUT", "/v1/queues/q/reshard", `{"shards":0}`, 400, queue.BadRequest, "want 1 to 256"},
	{"PUT", "/v1/queues/q/reshard", `{"shards":10000}`, 400, queue.BadRequest, "want 1 to 256"},
	{"PUT", "/v1/queues/q/reshard", `{"shard":2}`, 400, queue.BadRequest, `"shard"`},
	{"PUT", "/v1/queues/none/reshard", `{"shards":2}`, 404, queue.QueueNotFound, "none"},
	{"PATCH", "/v1/queues/q", `{"claim":"soft"}`, 400, queue.BadRequest, `"claim"`},
	{"PATCH", "/v1/queues/q", `[]`, 400, queue.BadRequest, "object"},
	{"PATCH", "/v1/queues/q", `{"name":"other"}`, 400, queue.BadRequest, "name"},
	{"PATCH", "/v1/queues/none", `{"max_bytes":-1}`, 400, queue.BadRequest, "max_bytes"},
	{"GET", "/v1/queues/none", "", 404, queue.QueueNotFound, "none"},
	{"DELETE", "/v1/queues/none", "", 404, queue.QueueNotFound, "none"},
	{"GET", "/v1/queues/q/nothing", "", 404, refusal.NotFound, ""},
	{"PATCH", "/v1/queues/q/jobs", "", 405, refusal.MethodNotAllowed, "PATCH"},
	{"GET", "/v1/jobs/claim", "", 405, refusal.MethodNotAllowed, "GET"},

	{"POST", "/v1/jobs", "", 400, queue.BadRequest, "missing"},
	{"POST", "/v1/jobs", `{}`, 400, queue.BadRequest, "payload"},
	{"POST", "/v1/jobs", `{"payload":1,"maxAttempts":-5}`, 400, queue.BadRequest, "maxAttempts: -5"},
	{"POST", "/v1/jobs", `{"payload":1,"maxAttempts":"3"}`, 400, queue.BadRequest, "maxAttempts"},
	{"POST", "/v1/jobs", `{"payload":1,"type":3}`, 400, queue.BadRequest, "type"},
	{"POST", "/v1/jobs", `{"payload":1,"max_attempts":3}`, 400, queue.BadRequest, "max_attempts"},
	{"POST", "/v1/jobs/claim", "", 400, queue.BadRequest, "missing"},
	{"POST", "/v1/jobs/claim", `{}`, 400, queue.BadRequest, "workerId"},
	{"POST", "/v1/jobs/claim", `{"workerId":7}`, 400, queue.BadRequest, "workerId"},
	{"POST", "/v1/jobs/x/heartbeat", `{}`, 400, queue.BadRequest, "workerId"},
	{"POST", "/v1/jobs/x/complete", `{"workerId":"w"}`, 404, queue.JobNotFound, "x"},
	{"GET", "/v1/jobs?limit=5", "", 400, queue.BadRequest, "limit"},
	{"GET", "/v1/ws", "", 400, queue.BadRequest, "WebSocket"},
}

// TestHole16BadInputIsA4xx: invalid input is never a 5xx. The refusal says what is wrong and what
// to do, and the call has no effect.
func TestHole16BadInputIsA4xx(t *testing.T) {
	t.Parallel()
	q := startBroker(t, mem.Config{})
	h, err := api.New(q, api.Options{Queues: directory{q}, Logger: quiet})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range badCalls {
		a := send(h, c.method, c.path, c.body)
		name := fmt.Sprintf("%s %.60s %.80s", c.method, c.path, c.body)
		if a.status != c.status {
			t.Errorf("%s: status %d, want %d: %.300s", name, a.status, c.status, a.body)
			continue
		}
		if got := a.field(t, "_tag"); got != string(c.tag) {
			t.Errorf("%s: tag %v, want %s", name, got, c.tag)
		}
		if m, _ := a.field(t, "message").(string); !strings.Contains(m, c.contains) || m == "" || len(m) > 400 {
			t.Errorf("%s: message %.200q does not say %q", name, m, c.contains)
		}
		if hint, _ := a.field(t, "hint").(string); hint == "" {
			t.Errorf("%s: no hint: %.300s", name, a.body)
		}
	}
	for _, name := range []string{"q", "default"} {
		if s, err := q.Stats(t.Context(), name); err != nil || s.Enqueued != 0 {
			t.Errorf("queue %s kept %d jobs of refused calls, %v", name, s.Enqueued, err)
		}
	}
}

// TestEveryRouteIsTested compares the tables above with the mux.
func TestEveryRouteIsTested(t *testing.T) {
	t.Parallel()
	h, _ := newAPI(t, api.Options{})
	tested := map[string]bool{}
	for _, c := range badCalls {
		if c.status != 405 {
			tested[routeOf(c.method, c.path)] = true
		}
	}
	// Routes that cannot be called wrongly are tested in the stories.
	for _, r := range []string{"GET /v1/queues", "GET /v1/stats", "GET /v1/throttle-stats", "GET /state", "GET /healthz"} {
		tested[r] = true
	}
	for _, r := range h.Routes() {
		if strings.HasSuffix(r, "Service/") {
			continue // TestConnect…
		}
		if !tested[r] && !strings.Contains(r, "{id}/") && !strings.HasPrefix(r, "DELETE") && !strings.HasSuffix(r, "/stats") &&
			!strings.HasSuffix(r, "/resume") && !strings.HasSuffix(r, "/retry") && !strings.HasSuffix(r, "/dead/redrive") {
			t.Errorf("%s has no bad call in the table", r)
		}
	}
}

// routeOf returns the pattern of a path.
func routeOf(method, path string) string {
	path, _, _ = strings.Cut(path, "?")
	parts := strings.Split(strings.Trim(path, "/"), "/")
	switch {
	case len(parts) > 2 && parts[1] == "queues":
		parts[2] = "{queue}"
		if len(parts) > 4 && parts[3] == "jobs" {
			parts[4] = "{id}"
		}
	case len(parts) == 4 && parts[1] == "jobs":
		parts[2] = "{id}"
	}
	return method + " /" + strings.Join(parts, "/")
}

// broken is a service that returns a given error.
type broken struct {
	queue.Service
	err error
}

func (b broken) Stats(context.Context, string) (*queue.Stats, error) { return nil, b.err }

func (b broken) Enqueue(context.Context, string, []queue.Job) ([]queue.Receipt, error) {
	return nil, b.err
}

// TestRefusalsOfTheService: tags become statuses, waits become Retry-After, and an error without a
// tag is hidden.
func TestRefusalsOfTheService(t *testing.T) {
	t.Parallel()
	wait := queue.Refuse(queue.QueueFull, "no room")
	wait.RetryAfter = 2500e6
	holder := queue.Refuse(queue.QueueNotOwner, "moved")
	holder.Holder = "10.0.0.2:7070"
	for _, c := range []struct {
		err    error
		status int
		tag    queue.Tag
		retry  string
	}{
		{wait, 429, queue.QueueFull, "3"},
		{holder, 503, queue.QueueNotOwner, "1"},
		{queue.Refuse(queue.Unavailable, "none"), 503, queue.Unavailable, "1"},
		{queue.Refuse(queue.UnknownOutcome, "?"), 503, queue.UnknownOutcome, "1"},
		{fmt.Errorf("enqueue: %w", queue.Refuse(queue.QueueNotFound, "no")), 404, queue.QueueNotFound, ""},
		{context.DeadlineExceeded, 503, queue.UnknownOutcome, "1"},
		{errors.New("password=hunter2"), 500, refusal.Internal, ""},
	} {
		h, err := api.New(broken{err: c.err}, api.Options{Logger: quiet})
		if err != nil {
			t.Fatal(err)
		}
		a := send(h, "POST", "/v1/queues/q/jobs", `{"payload":1}`)
		want(t, a, c.status, c.tag)
		if got := a.header.Get("Retry-After"); got != c.retry {
			t.Errorf("%v: Retry-After %q, want %q", c.err, got, c.retry)
		}
		if strings.Contains(a.body, "hunter2") {
			t.Errorf("an internal error is told: %s", a.body)
		}
	}
}

// TestOtherOriginsAreRefused: a page of another origin cannot write, one of a configured origin
// can.
func TestOtherOriginsAreRefused(t *testing.T) {
	t.Parallel()
	const good, evil = "https://queue.example.org", "https://evil.example.org"
	h, _ := newAPI(t, api.Options{Origins: []string{good}})
	a := send(h, "POST", "/v1/jobs", `{"payload":1}`, "Origin", evil, "Sec-Fetch-Site", "cross-site")
	want(t, a, 403, refusal.Forbidden)
	if v := a.header.Get("Access-Control-Allow-Origin"); v != "" {
		t.Errorf("reflected %q", v)
	}
	a = send(h, "POST", "/osqueue.v1.QueueService/ListJobs", `{}`, "Origin", evil, "Sec-Fetch-Site", "cross-site", "Content-Type", "application/json")
	if e := detail(t, a.body); a.status != 403 || a.header.Get("Emitd-Tag") != "Forbidden" || e.GetHint() == "" {
		t.Errorf("a service: %d %v %s", a.status, a.header, a.body)
	}
	want(t, send(h, "OPTIONS", "/v1/jobs", "", "Origin", evil, "Access-Control-Request-Method", "POST"), 403, refusal.Forbidden)
	a = send(h, "OPTIONS", "/v1/jobs", "", "Origin", good, "Access-Control-Request-Method", "POST")
	if a.status != 204 || a.header.Get("Access-Control-Allow-Origin") != good {
		t.Errorf("preflight: %d %v", a.status, a.header)
	}
	a = send(h, "POST", "/v1/jobs", `{"payload":1}`, "Origin", good, "Sec-Fetch-Site", "cross-site")
	if a.status != 200 || a.header.Get("Access-Control-Allow-Origin") != good || a.header.Get("Vary") != "Origin" {
		t.Errorf("named: %d %v %s", a.status, a.header, a.body)
	}
	if _, err := api.New(nil, api.Options{Origins: []string{"*"}}); err == nil {
		t.Error("a wildcard was taken")
	}
}

// TestBodiesAreBounded: calls beyond MaxInFlight are told to come back, on every transport.
func TestBodiesAreBounded(t *testing.T) {
	t.Parallel()
	h := limited(t, api.Limits{MaxBody: 1 << 20, MaxInFlight: 1 << 20})
	want(t, send(h, "POST", "/v1/jobs", `{"payload":"`+strings.Repeat("x", 2<<20)+`"}`), 413, queue.PayloadTooLarge)
	stall := &stalled{left: 900 << 10, inside: make(chan struct{}), leave: make(chan struct{})}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodPost, "/v1/jobs", stall))
	}()
	<-stall.inside
	body := `{"payload":"` + strings.Repeat("x", 500<<10) + `"}`
	a := send(h, "POST", "/v1/jobs", body)
	want(t, a, 429, queue.QueueFull)
	if a.header.Get("Retry-After") == "" {
		t.Error("no Retry-After")
	}
	if a := send(h, "POST", "/emitd.queue.v1.QueueService/Enqueue", body, "Content-Type", "application/proto"); a.status != 429 {
		t.Errorf("rpc: %d %s", a.status, a.body)
	}
	want(t, send(h, "POST", "/v1/jobs", `{"payload":1}`), 200, "") // small calls are still answered
	close(stall.leave)
	<-ended
	want(t, send(h, "POST", "/v1/jobs", body), 200, "")
}

// stalled is a body that stops in the middle.
type stalled struct {
	left          int
	inside, leave chan struct{}
}

func (s *stalled) Read(p []byte) (int, error) {
	if s.left > 0 {
		n := min(len(p), s.left)
		for i := range p[:n] {
			p[i] = ' '
		}
		s.left -= n
		return n, nil
	}
	close(s.inside)
	<-s.leave
	return 0, errors.New("reset")
}
