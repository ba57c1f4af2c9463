package wire_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"net/http"
	"reflect"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/emitd/emitd/internal/queue/wire"
	"github.com/emitd/emitd/internal/queue/wire/batch"
	"github.com/emitd/emitd/internal/queue/wire/limits"
	"github.com/emitd/emitd/internal/queue/wire/queuev1"
	"github.com/emitd/emitd/internal/queue/wire/refusal"
	"github.com/emitd/emitd/queue"
)

// Generators of what a caller may send, within the limits.
var (
	names    = rapid.StringMatching(`[a-zA-Z0-9:ä"\\<>& ]{0,20}`)
	payloads = rapid.OneOf(
		rapid.SliceOf(rapid.Byte()),
		rapid.SampledFrom([][]byte{nil, []byte(`{ "a" : "<ä>" }`), []byte(" 1 "), []byte(`null`), []byte("\xff"), []byte(`"\ud800"`), []byte("\"\xff\"")}),
	)
	spans = rapid.Custom(func(t *rapid.T) time.Duration {
		return time.Duration(rapid.Int64Range(0, 1e9).Draw(t, "ms")) * time.Millisecond
	})
	moments = rapid.Custom(func(t *rapid.T) time.Time {
		return time.UnixMilli(rapid.Int64Range(1, 4e12).Draw(t, "unix")).UTC()
	})
)

func jobs(t *rapid.T) []queue.Job {
	return rapid.SliceOfN(rapid.Custom(func(t *rapid.T) queue.Job {
		j := queue.Job{Type: names.Draw(t, "type"), Group: names.Draw(t, "group"), Payload: payloads.Draw(t, "payload")}
		if rapid.Bool().Draw(t, "named") {
			j.ID = names.Draw(t, "id")
		} else {
			j.Key = names.Draw(t, "key")
		}
		j.Priority, j.TTL = rapid.IntRange(-128, 127).Draw(t, "priority"), spans.Draw(t, "ttl")
		if rapid.Bool().Draw(t, "delayed") {
			j.Delay = spans.Draw(t, "delay")
		} else if rapid.Bool().Draw(t, "at") {
			j.RunAt = moments.Draw(t, "run at")
		}
		if rapid.Bool().Draw(t, "retry") {
			j.Retry = queue.Retry{
				MaxAttempts: rapid.IntRange(0, 1000).Draw(t, "attempts"), Backoff: spans.Draw(t, "backoff"), MaxBackoff: spans.Draw(t, "max"),
				Factor: rapid.Float64Range(1, 10).Draw(t, "factor"), Jitter: rapid.Float64Range(0.01, 1).Draw(t, "jitter"), Back: rapid.Bool().Draw(t, "back"),
			}
		}
		return j
	}), 1, 5).Draw(t, "jobs")
}

// same compares values, treating empty and absent values, and time zones, as equal.
func same(t *rapid.T, what string, got, want any) {
	if a, b := fmt.Sprintf("%+v", normal(got)), fmt.Sprintf("%+v", normal(want)); a != b {
		t.Fatalf("%s:\n got %s\nwant %s", what, a, b)
	}
}

func normal(v any) any {
	switch v := v.(type) {
	case []queue.Settlement:
		out := make([]string, len(v))
		for i, s := range v {
			after := "policy"
			if s.RetryAfter != nil {
				after = s.RetryAfter.String()
			}
			s.RetryAfter = nil
			out[i] = fmt.Sprintf("%+v %s", s, after)
		}
		return out
	case []queue.Outcome:
		out := make([]string, len(v))
		for i, o := range v {
			refusal := ""
			if o.Err != nil {
				refusal = fmt.Sprintf("%s|%s|%s|%v|%s", o.Err.Tag, o.Err.Message, o.Err.Hint, o.Err.RetryAfter, o.Err.Holder)
			}
			o.Err = nil
			out[i] = fmt.Sprintf("%+v %s", o, refusal)
		}
		return out
	}
	return v
}

// TestJobsComeThrough: submitted jobs arrive byte for byte, as JSON and as protobuf.
func TestJobsComeThrough(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		want := jobs(t)
		body := wire.AppendEnqueue(nil, want)
		if !json.Valid(body) {
			t.Fatalf("no JSON: %s", body)
		}
		var req wire.EnqueueRequest
		if err := wire.Decode(body, &req); err != nil {
			t.Fatalf("%v: %s", err, body)
		}
		got, err := req.List()
		if err != nil {
			t.Fatalf("%v: %s", err, body)
		}
		same(t, "json", got, want)

		raw, err := proto.Marshal(batch.EnqueueRequest("q", want))
		if err != nil {
			t.Fatal(err)
		}
		var msg queuev1.EnqueueRequest
		if err := proto.Unmarshal(raw, &msg); err != nil {
			t.Fatal(err)
		}
		if got, err = batch.Jobs(&msg); err != nil {
			t.Fatal(err)
		}
		same(t, "protobuf", got, want)
	})
}

// TestSettlementsComeThrough: settlements arrive unchanged, too.
func TestSettlementsComeThrough(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		s := queue.Settlement{ID: "i" + names.Draw(t, "id"), Token: names.Draw(t, "token"), Worker: "w" + names.Draw(t, "worker")}
		switch s.Verb = rapid.SampledFrom([]queue.Verb{queue.Extend, queue.Complete, queue.Fail, queue.Release}).Draw(t, "verb"); s.Verb {
		case queue.Extend:
			s.Visibility = spans.Draw(t, "visibility")
		case queue.Complete:
			s.Result = payloads.Draw(t, "result")
		case queue.Fail:
			s.Cause, s.Dead = names.Draw(t, "cause"), rapid.Bool().Draw(t, "dead")
			if rapid.Bool().Draw(t, "after") {
				d := spans.Draw(t, "retry after")
				s.RetryAfter = &d
			}
		}
		want := []queue.Settlement{s}
		var req wire.SettleRequest
		body := wire.AppendSettle(nil, want)
		if err := wire.Decode(body, &req); err != nil {
			t.Fatalf("%v: %s", err, body)
		}
		got, err := req.List()
		if err != nil {
			t.Fatal(err)
		}
		same(t, "json", got, want)
		raw, _ := proto.Marshal(batch.SettleRequest("q", want))
		var msg queuev1.SettleRequest
		if err := proto.Unmarshal(raw, &msg); err != nil {
			t.Fatal(err)
		}
		if got, err = batch.Settlements(&msg); err != nil {
			t.Fatal(err)
		}
		same(t, "protobuf", got, want)
	})
}

// TestAnswersComeThrough: receipts, claims, outcomes and pages arrive unchanged in both encodings.
func TestAnswersComeThrough(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		state := rapid.SampledFrom([]queue.State{queue.Waiting, queue.Delayed, queue.Active, queue.Completed, queue.Dead, queue.Cancelled})
		rs := []queue.Receipt{{ID: names.Draw(t, "id"), Duplicate: rapid.Bool().Draw(t, "duplicate"), State: state.Draw(t, "state")}}
		var er wire.EnqueueResponse
		decode(t, wire.AppendReceipts(nil, rs), &er)
		same(t, "receipts", queue.Receipt(er.Jobs[0]), rs[0])
		same(t, "receipts", batch.Receipts(batch.EnqueueResponse(rs)), rs)

		refusal := queue.Refuse(queue.StaleClaim, "%s", names.Draw(t, "message")+"!").WithHint("%s", names.Draw(t, "hint"))
		refusal.Holder = names.Draw(t, "holder")
		os := []queue.Outcome{{ID: "a", State: state.Draw(t, "state"), For: spans.Draw(t, "for")}, {ID: "b", Err: refusal}}
		var sr wire.SettleResponse
		decode(t, wire.AppendOutcomes(nil, os), &sr)
		same(t, "outcomes", []queue.Outcome{sr.Outcomes[0].Outcome(), sr.Outcomes[1].Outcome()}, os)
		same(t, "outcomes", batch.Outcomes(batch.SettleResponse(os)), os)

		i := queue.Info{
			ID: names.Draw(t, "id"), Queue: "q", Type: names.Draw(t, "type"), Group: names.Draw(t, "group"), State: queue.Active,
			Priority: rapid.IntRange(-128, 127).Draw(t, "priority"), Attempts: 1, Deliveries: 2, MaxAttempts: 3, Worker: "w",
			CreatedAt: moments.Draw(t, "created"), Until: moments.Draw(t, "until"), ExpiresAt: moments.Draw(t, "expires"), Cause: names.Draw(t, "cause"),
		}
		cs := []queue.Claimed{{Job: i, Payload: payloads.Draw(t, "payload"), Token: "t", Until: i.Until, For: spans.Draw(t, "for")}}
		cs[0].Job.Size = len(cs[0].Payload)
		var cr wire.ClaimResponse
		decode(t, wire.AppendClaims(nil, cs), &cr)
		same(t, "claims", cr.Jobs[0].Claimed(), cs[0])
		same(t, "claims", batch.Claims("q", "w", batch.ClaimResponse(cs)), cs)

		i.EndedAt, i.RunAt, i.Result = moments.Draw(t, "ended"), moments.Draw(t, "run"), payloads.Draw(t, "result")
		var lr wire.ListResponse
		decode(t, wire.AppendPage(nil, &queue.Page{Jobs: []queue.Info{i, i}, Payloads: [][]byte{cs[0].Payload}, Cursor: "c"}), &lr)
		same(t, "page", lr.Jobs[0].Info.Info(), i)
		if !bytes.Equal(lr.Jobs[0].Bytes(), cs[0].Payload) || lr.Cursor != "c" || lr.Jobs[1].Bytes() != nil {
			t.Fatalf("page %+v", lr)
		}
	})
}

func decode(t *rapid.T, body []byte, v any) {
	if err := wire.Decode(body, v); err != nil {
		t.Fatalf("%v: %s", err, body)
	}
}

// TestEveryFieldIsWritten: the hand-written encoders write every field that the bodies declare.
func TestEveryFieldIsWritten(t *testing.T) {
	t.Parallel()
	after := time.Second
	at := time.UnixMilli(5).UTC()
	info := queue.Info{
		ID: "a", Queue: "q", Type: "t", Group: "g", State: "s", Priority: 1, Attempts: 1, Deliveries: 1, MaxAttempts: 1, Worker: "w",
		CreatedAt: at, RunAt: at, Until: at, ExpiresAt: at, EndedAt: at, Cause: "c", Size: 1, Result: []byte("1"),
	}
	for what, c := range map[string]struct {
		body   []byte
		list   string
		fields any
	}{
		"job": {wire.AppendEnqueue(nil, []queue.Job{{
			ID: "a", Key: "k", Type: "t", Group: "g", Payload: []byte("1"), Priority: 1, Delay: 1, RunAt: at, TTL: 1, Retry: queue.Retry{Back: true},
		}}), "jobs", wire.Job{}},
		"receipt": {wire.AppendReceipts(nil, []queue.Receipt{{ID: "a", Duplicate: true, State: "s"}}), "jobs", wire.Receipt{}},
		"claimed": {wire.AppendClaims(nil, []queue.Claimed{{Job: info, Payload: []byte("1"), Token: "t", Until: at, For: 1}}), "jobs", wire.Claimed{}},
		"settlement": {wire.AppendSettle(nil, []queue.Settlement{{
			Verb: "v", ID: "a", Token: "t", Worker: "w", Visibility: 1, Result: []byte("1"), Cause: "c", RetryAfter: &after, Dead: true,
		}}), "settlements", wire.Settlement{}},
		"outcome": {wire.AppendOutcomes(nil, []queue.Outcome{{ID: "a", State: "s", For: 1, Err: queue.Refuse("x", "y")}}), "outcomes", wire.Outcome{}},
		"view":    {wire.AppendPage(nil, &queue.Page{Jobs: []queue.Info{info}, Payloads: [][]byte{[]byte("1")}}), "jobs", wire.JobView{}},
	} {
		var body map[string][]map[string]any
		if err := json.Unmarshal(c.body, &body); err != nil {
			t.Fatalf("%s: %v: %s", what, err, c.body)
		}
		for _, name := range members(reflect.TypeOf(c.fields)) {
			if _, ok := body[c.list][0][name]; !ok && !strings.HasSuffix(name, "_base64") {
				t.Errorf("%s: %s is not written: %s", what, name, c.body)
			}
		}
	}
}

func members(t reflect.Type) []string {
	var out []string
	for i := range t.NumField() {
		f := t.Field(i)
		if f.Anonymous {
			out = append(out, members(f.Type)...)
			continue
		}
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		out = append(out, name)
	}
	return out
}

// TestStats: statistics are the same after encoding and decoding.
func TestStats(t *testing.T) {
	t.Parallel()
	var want queue.Stats
	v := reflect.ValueOf(&want).Elem()
	for i := range v.NumField() {
		switch f := v.Field(i); f.Kind() {
		case reflect.Int, reflect.Int64:
			f.SetInt(int64(i+1) * 1e6)
		case reflect.Float64:
			f.SetFloat(float64(i))
		case reflect.String:
			f.SetString(fmt.Sprint("s", i))
		case reflect.Bool:
			f.SetBool(true)
		default:
			t.Fatalf("field %d", i)
		}
	}
	s := wire.StatsOf(&want)
	if got := s.Stats(); *got != want {
		t.Errorf("got %+v\nwant %+v", *got, want)
	}
}

// TestProblems: a refusal is the same after encoding and decoding, and another body becomes a
// refusal.
func TestProblems(t *testing.T) {
	t.Parallel()
	for _, tag := range []queue.Tag{
		queue.BadRequest, queue.Unauthorized, queue.JobNotFound, queue.QueueNotFound, queue.StaleClaim, queue.PayloadTooLarge,
		queue.TooManyJobs, queue.QueueFull, queue.QueueNotOwner, queue.Unavailable, queue.UnknownOutcome,
	} {
		if s := refusal.HTTPStatus(tag); s == http.StatusInternalServerError {
			t.Errorf("%s has no status", tag)
		}
		e := queue.Refuse(tag, "m").WithHint("h")
		body, _ := json.Marshal(refusal.ProblemOf(e))
		got := refusal.ParseProblem(refusal.HTTPStatus(tag), body)
		if got.Tag != tag || got.Message != "m" || got.Hint != "h" {
			t.Errorf("%s: %+v", body, got)
		}
		if _, again := refusal.Retryable(e); again != (got.RetryAfter > 0) {
			t.Errorf("%s: retry after %v", tag, got.RetryAfter)
		}
	}
	for status, tag := range map[int]queue.Tag{
		401: queue.Unauthorized, 403: refusal.Forbidden, 404: refusal.NotFound, 413: queue.PayloadTooLarge, 418: refusal.Internal,
		500: refusal.Internal, 502: queue.Unavailable, 503: queue.Unavailable, 504: queue.Unavailable,
	} {
		if got := refusal.ParseProblem(status, []byte("<html>")); got.Tag != tag {
			t.Errorf("%d: %v", status, got)
		}
	}
	if refusal.HTTPStatus("Unheard") != 500 {
		t.Error("an unknown tag is no mistake of the caller")
	}
}

// TestNumbersThatAreNone: numbers that JSON cannot represent are refused before they are encoded.
func TestNumbersThatAreNone(t *testing.T) {
	t.Parallel()
	for _, r := range []queue.Retry{{Factor: math.NaN()}, {Jitter: math.NaN()}, {Factor: math.Inf(1)}, {Jitter: math.Inf(-1)}, {MaxAttempts: 1 << 40}} {
		if err := limits.Job(&queue.Job{Retry: r}); queue.TagOf(err) != queue.BadRequest {
			t.Errorf("%+v: %v", r, err)
		}
	}
}

// TestQueueNames tests the limits of queue names.
func TestQueueNames(t *testing.T) {
	t.Parallel()
	for name, ok := range map[string]bool{
		"a": true, "0": true, "a-b_c.d": true, strings.Repeat("x", 64): true,
		"": false, "A": false, "-a": false, "a-": false, ".": false, "..": false, "a/b": false, "ä": false, strings.Repeat("x", 65): false,
	} {
		if err := limits.Queue(name); (err == nil) != ok {
			t.Errorf("%q: %v", name, err)
		}
	}
}

// FuzzDecode: no body crashes the decoder, and its errors are refusals with a message.
func FuzzDecode(f *testing.F) {
	for _, s := range []string{
		`{"jobs":[{"id":"a","payload":{"x":[1,2]},"run_at":"2027-01-01T00:00:00Z","retry":{"max_attempts":2}}]}`,
		`{"payload_base64":"AA==","delay_ms":5}`, `{"settlements":[{"verb":"fail","id":"a","token":"t","retry_after_ms":0}]}`,
		`null`, `{}`, `{"priority":1e99}`, "{\"id\":\"\xff\"}", `{"run_at":"x"}`,
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		check := func(err error) {
			if err != nil && (queue.TagOf(err) == "" || refusal.HTTPStatus(queue.TagOf(err)) >= 500 || err.Error() == "") {
				t.Errorf("%q: %v", body, err)
			}
		}
		var e wire.EnqueueRequest
		err := wire.Decode(body, &e)
		check(err)
		if err == nil {
			list, err := e.List()
			check(err)
			if err == nil { // what was accepted can be encoded again
				var again wire.EnqueueRequest
				if err := wire.Decode(wire.AppendEnqueue(nil, list), &again); err != nil {
					t.Errorf("%q: %v", body, err)
				}
			}
		}
		var s wire.SettleRequest
		if err = wire.Decode(body, &s); err == nil {
			_, err = s.List()
		}
		check(err)
		var c wire.ClaimRequest
		if err = wire.Decode(body, &c); err == nil {
			_, err = c.Request()
		}
		check(err)
		_ = refusal.ParseProblem(400, body)
	})
}
