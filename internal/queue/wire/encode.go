package wire

import (
	"encoding/base64"
	"encoding/json"
	"strconv"
	"time"
	"unicode/utf8"

	"github.com/emitd/emitd/internal/queue/wire/limits"
	"github.com/emitd/emitd/internal/queue/wire/refusal"
	"github.com/emitd/emitd/queue"
)

// Bodies with payloads are encoded by hand. encoding/json would change a payload (white space,
// escapes), and these are the frequent bodies.

// AppendEnqueue appends the body of an EnqueueRequest.
func AppendEnqueue(b []byte, jobs []queue.Job) []byte {
	b = append(b, `{"jobs":[`...)
	for i := range jobs {
		b = appendJob(comma(b, i), &jobs[i])
	}
	return append(b, "]}"...)
}

func appendJob(b []byte, j *queue.Job) []byte {
	o := object{b: append(b, '{')}
	o.text("id", j.ID)
	o.text("key", j.Key)
	o.text("type", j.Type)
	o.text("group", j.Group)
	o.bytes("payload", j.Payload)
	o.int("priority", int64(j.Priority))
	o.int("delay_ms", limits.ToMillis(j.Delay))
	o.time("run_at", j.RunAt)
	o.int("ttl_ms", limits.ToMillis(j.TTL))
	if r := j.Retry; r != (queue.Retry{}) {
		o.name("retry")
		raw, err := json.Marshal(RetryOf(r))
		if err != nil { // not a finite number: refused by limits.Job
			raw = []byte("null")
		}
		o.b = append(o.b, raw...)
	}
	return o.end()
}

// AppendReceipts appends the body of an EnqueueResponse.
func AppendReceipts(b []byte, rs []queue.Receipt) []byte {
	b = append(b, `{"jobs":[`...)
	for i, r := range rs {
		o := object{b: append(comma(b, i), '{')}
		o.text("id", r.ID)
		o.bool("duplicate", r.Duplicate)
		o.text("state", string(r.State))
		b = o.end()
	}
	return append(b, "]}"...)
}

// AppendClaims appends the body of a ClaimResponse.
func AppendClaims(b []byte, cs []queue.Claimed) []byte {
	b = append(b, `{"jobs":[`...)
	for i := range cs {
		c := &cs[i]
		o := object{b: append(comma(b, i), '{')}
		o.info(&c.Job)
		if c.Job.Until.IsZero() {
			o.time("until", c.Until)
		}
		o.bytes("payload", c.Payload)
		o.text("token", c.Token)
		o.always("visibility_ms", limits.ToMillis(c.For))
		b = o.end()
	}
	return append(b, "]}"...)
}

// AppendSettle appends the body of a SettleRequest.
func AppendSettle(b []byte, ss []queue.Settlement) []byte {
	b = append(b, `{"settlements":[`...)
	for i := range ss {
		b = appendSettlement(comma(b, i), &ss[i])
	}
	return append(b, "]}"...)
}

func appendSettlement(b []byte, s *queue.Settlement) []byte {
	o := object{b: append(b, '{')}
	o.text("verb", string(s.Verb))
	o.text("id", s.ID)
	o.text("token", s.Token)
	o.text("worker", s.Worker)
	o.int("visibility_ms", limits.ToMillis(s.Visibility))
	o.bytes("result", s.Result)
	o.text("cause", s.Cause)
	if s.RetryAfter != nil {
		o.always("retry_after_ms", limits.ToMillis(*s.RetryAfter))
	}
	o.bool("dead", s.Dead)
	return o.end()
}

// AppendOutcomes appends the body of a SettleResponse.
func AppendOutcomes(b []byte, os []queue.Outcome) []byte {
	b = append(b, `{"outcomes":[`...)
	for i := range os {
		b = AppendOutcome(comma(b, i), &os[i])
	}
	return append(b, "]}"...)
}

// AppendOutcome appends an Outcome.
func AppendOutcome(b []byte, outcome *queue.Outcome) []byte {
	o := object{b: append(b, '{')}
	o.text("id", outcome.ID)
	o.text("state", string(outcome.State))
	o.int("visibility_ms", limits.ToMillis(outcome.For))
	if e := outcome.Err; e != nil {
		o.name("error")
		raw, _ := json.Marshal(refusal.ProblemOf(e)) // cannot fail: only strings and numbers
		o.b = append(o.b, raw...)
	}
	return o.end()
}

// AppendJob appends a JobView.
func AppendJob(b []byte, info *queue.Info, payload []byte) []byte {
	o := object{b: append(b, '{')}
	o.info(info)
	o.bytes("payload", payload)
	return o.end()
}

// AppendPage appends the body of a ListResponse.
func AppendPage(b []byte, p *queue.Page) []byte {
	b = append(b, `{"jobs":[`...)
	for i := range p.Jobs {
		var payload []byte
		if i < len(p.Payloads) {
			payload = p.Payloads[i]
		}
		b = AppendJob(comma(b, i), &p.Jobs[i], payload)
	}
	o := object{b: append(b, ']'), some: true}
	o.text("cursor", p.Cursor)
	return o.end()
}

// object appends the members of a JSON object; zero values are omitted.
type object struct {
	b    []byte
	some bool
}

func (o *object) info(i *queue.Info) {
	o.text("id", i.ID)
	o.text("queue", i.Queue)
	o.text("type", i.Type)
	o.text("group", i.Group)
	o.text("state", string(i.State))
	o.int("priority", int64(i.Priority))
	o.always("attempts", int64(i.Attempts))
	o.always("deliveries", int64(i.Deliveries))
	o.int("max_attempts", int64(i.MaxAttempts))
	o.text("worker", i.Worker)
	o.time("created_at", i.CreatedAt)
	o.time("run_at", i.RunAt)
	o.time("until", i.Until)
	o.time("expires_at", i.ExpiresAt)
	o.time("ended_at", i.EndedAt)
	o.text("cause", i.Cause)
	o.always("size", int64(i.Size))
	o.bytes("result", i.Result)
}

// name begins a member. Names come from this package and need no escapes.
func (o *object) name(s string) {
	if o.some {
		o.b = append(o.b, ',')
	}
	o.some = true
	o.b = append(o.b, '"')
	o.b = append(o.b, s...)
	o.b = append(o.b, '"', ':')
}

func (o *object) text(name, s string) {
	if s != "" {
		o.name(name)
		o.b = appendText(o.b, s)
	}
}

func (o *object) int(name string, n int64) {
	if n != 0 {
		o.always(name, n)
	}
}

func (o *object) always(name string, n int64) {
	o.name(name)
	o.b = strconv.AppendInt(o.b, n, 10)
}

func (o *object) bool(name string, v bool) {
	if v {
		o.name(name)
		o.b = append(o.b, "true"...)
	}
}

func (o *object) time(name string, t time.Time) {
	if !t.IsZero() {
		o.name(name)
		o.b = append(o.b, '"')
		o.b = t.UTC().AppendFormat(o.b, time.RFC3339Nano)
		o.b = append(o.b, '"')
	}
}

// bytes appends a payload or result under the name that fits it.
func (o *object) bytes(name string, p []byte) {
	text, bin := split(p)
	switch {
	case text != nil:
		o.name(name)
		o.b = append(o.b, text...)
	case bin != nil:
		o.name(name + "_base64")
		o.b = append(o.b, '"')
		o.b = base64.StdEncoding.AppendEncode(o.b, bin)
		o.b = append(o.b, '"')
	}
}

func (o *object) end() []byte { return append(o.b, '}') }

func comma(b []byte, i int) []byte {
	if i > 0 {
		b = append(b, ',')
	}
	return b
}

// appendText appends s as a JSON string.
func appendText(b []byte, s string) []byte {
	for i := range len(s) {
		if c := s[i]; c < ' ' || c == '"' || c == '\\' || c >= utf8.RuneSelf {
			raw, _ := json.Marshal(s) // a string
			return append(b, raw...)
		}
	}
	b = append(b, '"')
	b = append(b, s...)
	return append(b, '"')
}
