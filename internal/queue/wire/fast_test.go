package wire

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/emitd/emitd/queue"
)

// bodies are those that decodeStrict decodes, and those that it must leave to decode.
var bodies = []string{
	`{}`, ` { } `, `{"payload":1}`, `{"payload":{"a":[1,-2.5e+7,true,false,null,"\u00e4\n\"",{}],"":[]}}`,
	`{"id":"a","key":"b","type":"t","group":"g","payload":"x","priority":-3,"delay_ms":5,"ttl_ms":7}`,
	`{"payload_base64":"aGk=","run_at":"2026-01-02T03:04:05.678Z"}`, `{"payload_base64":""}`, `{"payload_base64":"aG\nk="}`, `{"payload_base64":"?"}`,
	`{"retry":{"max_attempts":3,"backoff_ms":1,"max_backoff_ms":2,"factor":1.5,"jitter":-1,"back":true}}`,
	`{"jobs":[]}`, `{"jobs":[{}]}`, ` {"jobs" : [ {"payload" : [1, 2] } , {"id":"ä"} ] } `, `{"jobs":[{"payload":1}],"id":"x"}`,
	`{"worker":"w","types":["a","b"],"max":3,"wait_ms":1,"visibility_ms":2,"request_id":"r","tokenless":true}`, `{"types":[]}`, `{"tokenless":false}`,
	`{"settlements":[{"verb":"complete","id":"i","token":"t","result":{"a":1}},{"verb":"fail","cause":"c","retry_after_ms":0,"dead":true}]}`,
	`{"payload":[1, 2],"type":"t","maxAttempts":3}`, `{"workerId":"w","types":["a"]}`, `{"maxAttempts":null,"payload":null}`, `{"maxAttempts":"3"}`, `{"workerId":1}`, `{"workerID":"w"}`,
	`{"verb":"extend","visibility_ms":1}`, `{"verb":"dance"}`, `{"token":"t","result_base64":"AA=="}`, `{"worker":"w"}`,
	// These must be declined or refused.
	``, `null`, `[]`, `1`, `"x"`, `{`, `}`, `{}}`, `{} {}`, `{"id"}`, `{"id":}`, `{"id":"a",}`, `{,}`, `{"id":"a""key":"b"}`,
	`{"ID":"a"}`, `{"Id":"a"}`, `{"id":"a","id":"b"}`, `{"retry":{"factor":2},"retry":{"back":true}}`, `{"jobs":[{}],"jobs":[{},{}]}`,
	`{"id":null}`, `{"payload":null}`, `{"jobs":null}`, `{"jobs":[null]}`, `{"retry":null}`, `{"types":null}`, `{"result":null}`, `{"retry_after_ms":null}`,
	`{"id":"\u0061"}`, "{\"id\":\"\xff\"}", "{\"payload\":\"\xff\"}", "{\"id\":\"\t\"}", `{"id":1}`, `{"priority":"1"}`, `{"priority":1.0}`, `{"priority":1e2}`,
	`{"priority":01}`, `{"priority":-}`, `{"priority":-0}`, `{"delay_ms":9223372036854775807}`, `{"delay_ms":9223372036854775808}`, `{"delay_ms":999999999999999999}`,
	`{"retry":{"factor":1e999}}`, `{"retry":{"factor":.5}}`, `{"retry":{"factor":5.}}`, `{"retry":{"factor":1e}}`, `{"retry":{"back":1}}`, `{"retry":{"extra":1}}`,
	`{"run_at":"yesterday"}`, `{"run_at":5}`, `{"extra":1}`, `{"jobs":[{"extra":1}]}`, `{"payload":tru}`, `{"payload":truex}`, `{"payload":"\x"}`, `{"payload":"\u00g0"}`,
	`{"payload":{1:2}}`, `{"payload":[1,]}`, `{"payload":[1 2]}`, `{"payload":{"a":1,}}`, `{"payload":{"a" 1}}`, "{\"payload\":\"\n\"}", `{"payload":+1}`,
	`{"payload":` + strings.Repeat("[", 101) + strings.Repeat("]", 101) + `}`, `{"payload":` + strings.Repeat("[", 20_000) + strings.Repeat("]", 20_000) + `}`,
}

// targets returns one of each frequent body.
func targets() []any {
	return []any{&EnqueueRequest{}, &ClaimRequest{}, &SettleRequest{}, &Settlement{}, &OsqueueSubmit{}, &OsqueueClaim{}, &OsqueueWorker{}}
}

// compare compares decodeStrict with decode, and reports whether it decoded the body.
func compare(t *testing.T, body []byte, fast, slow any) bool {
	t.Helper()
	before := string(body)
	read := decodeStrict(body, fast)
	if string(body) != before {
		t.Fatalf("%q was changed to %q", before, body)
	}
	if !read {
		return false
	}
	if err := decode(body, slow); err != nil {
		t.Fatalf("%T: decodeStrict reads %q, which is refused: %v", slow, body, err)
	}
	if !reflect.DeepEqual(fast, slow) {
		t.Fatalf("%T of %q:\nstrictly %+v\nby encoding/json %+v", slow, body, fast, slow)
	}
	return true
}

func TestStrictlyDecodedIsTheSame(t *testing.T) {
	t.Parallel()
	read := 0
	for _, body := range bodies {
		fast, slow, whole := targets(), targets(), targets()
		for i := range fast {
			if compare(t, []byte(body), fast[i], slow[i]) {
				read++
			}
			// What is declined leaves no trace.
			errWhole, errSlow := Decode([]byte(body), whole[i]), decode([]byte(body), targets()[i])
			if (errWhole == nil) != (errSlow == nil) || errWhole != nil && errWhole.Error() != errSlow.Error() {
				t.Errorf("%T of %q: %v, by encoding/json %v", whole[i], body, errWhole, errSlow)
			}
		}
	}
	if read < 20 {
		t.Errorf("only %d bodies were decoded strictly", read)
	}
}

// TestWhatProgramsWriteIsDecodedStrictly: the usual bodies are not declined; otherwise they would be decoded twice.
func TestWhatProgramsWriteIsDecodedStrictly(t *testing.T) {
	t.Parallel()
	after := time.Second
	job := queue.Job{
		ID: "i", Type: "t", Group: "g", Payload: []byte(`{"a": "\u00e4"}`), Priority: 1, Delay: 1, TTL: 1,
		Retry: queue.Retry{MaxAttempts: 1, Factor: 1.5},
	}
	at := queue.Job{Payload: []byte{0xff}, RunAt: time.UnixMilli(1)}
	claim, _ := json.Marshal(ClaimRequest{Worker: "w", Types: []string{"a"}, Max: 1, WaitMS: 1, VisibilityMS: 1, RequestID: "r", Tokenless: true})
	for _, c := range []struct {
		body []byte
		v    any
	}{
		{AppendEnqueue(nil, []queue.Job{job, at}), &EnqueueRequest{}},
		{AppendSettle(nil, []queue.Settlement{{Verb: queue.Fail, ID: "i", Token: "t", Worker: "w", Cause: "c", RetryAfter: &after, Dead: true}}), &SettleRequest{}},
		{claim, &ClaimRequest{}},
		{[]byte(`{"payload":{"a":1},"type":"t","maxAttempts":3}`), &OsqueueSubmit{}},
		{[]byte(`{"workerId":"w","types":["a"]}`), &OsqueueClaim{}},
		{[]byte(`{"workerId":"w"}`), &OsqueueWorker{}},
	} {
		if !decodeStrict(c.body, c.v) {
			t.Errorf("declined: %s", c.body)
		}
	}
}

// TestDecodedBytesAreCopies: the buffer of a body is reused.
func TestDecodedBytesAreCopies(t *testing.T) {
	t.Parallel()
	body := []byte(`{"jobs":[{"id":"a","payload":[1]},{"payload":{"b":2}}]}`)
	var r EnqueueRequest
	if !decodeStrict(body, &r) {
		t.Fatal("declined")
	}
	clear(body)
	if r.Jobs[0].ID != "a" || string(r.Jobs[0].Payload) != `[1]` || string(r.Jobs[1].Payload) != `{"b":2}` {
		t.Errorf("%+v", r)
	}
	r.Jobs[0].Payload = append(r.Jobs[0].Payload, "XXXXXXXXXXXXXXXXXXXXXXXXXXXXX"...)
	if string(r.Jobs[1].Payload) != `{"b":2}` {
		t.Errorf("%s grew into the next payload", r.Jobs[0].Payload)
	}
}

func FuzzDecodeStrict(f *testing.F) {
	for _, body := range bodies {
		f.Add([]byte(body))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		fast, slow := targets(), targets()
		for i := range fast {
			compare(t, body, fast[i], slow[i])
		}
	})
}

func BenchmarkDecodeEnqueue(b *testing.B) {
	jobs := make([]queue.Job, 100)
	for i := range jobs {
		jobs[i] = queue.Job{Type: "t", Payload: []byte(`"` + strings.Repeat("x", 98) + `"`)}
	}
	benchmarkDecode(b, AppendEnqueue(nil, jobs), func() any { return &EnqueueRequest{} })
}

func BenchmarkDecodeSettle(b *testing.B) {
	what := make([]queue.Settlement, 100)
	for i := range what {
		what[i] = queue.Settlement{Verb: queue.Complete, ID: strings.Repeat("i", 36), Token: strings.Repeat("t", 40)}
	}
	benchmarkDecode(b, AppendSettle(nil, what), func() any { return &SettleRequest{} })
}

// benchmarkDecode alternates between both, so that they run under the same conditions.
func benchmarkDecode(b *testing.B, body []byte, target func() any) {
	b.ReportAllocs()
	var fast, slow time.Duration
	for b.Loop() {
		begun := time.Now()
		if !decodeStrict(body, target()) {
			b.Fatal("declined")
		}
		half := time.Now()
		if err := decode(body, target()); err != nil {
			b.Fatal(err)
		}
		fast, slow = fast+half.Sub(begun), slow+time.Since(half)
	}
	b.ReportMetric(float64(fast.Nanoseconds())/float64(b.N)/100, "ns/element")
	b.ReportMetric(float64(slow)/float64(fast), "x-encoding/json")
}
