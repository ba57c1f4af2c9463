package webhook

import (
	"bytes"
	"encoding/json"
	"fmt"
	"mime"
	"net/http"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/emitd/emitd/outbox"
	"github.com/emitd/emitd/outbox/sink"
)

// event is a CloudEvent, version 1.0.
type event struct {
	attributes []sink.Header // in order; without specversion
	content    string        // datacontenttype
	headers    []sink.Header // of the message
	data       []byte
}

func (s *Sink) event(d outbox.Delivery, row outbox.Row) event {
	source, kind := s.cfg.Source, row.Type
	if source == "" {
		source = "emitd/" + d.Subscription
	}
	if kind == "" {
		kind = "emitd.message" // a type is required
	}
	e := event{data: row.Payload, headers: sink.MessageHeaders(row), attributes: make([]sink.Header, 0, 8)}
	for _, a := range [...]sink.Header{
		{Name: "id", Value: row.ID.String()},
		{Name: "source", Value: source},
		{Name: "type", Value: kind},
		{Name: "time", Value: row.CreatedAt.UTC().Format(time.RFC3339Nano)},
		{Name: "subject", Value: row.Topic},
		{Name: "partitionkey", Value: row.Key},
		{Name: "traceparent", Value: row.TraceParent},
		{Name: "tracestate", Value: row.TraceState},
	} {
		if a.Value != "" {
			e.attributes = append(e.attributes, a)
		}
	}
	guess := "application/octet-stream"
	if utf8.Valid(row.Payload) && json.Valid(row.Payload) {
		guess = "application/json"
	}
	e.content = sink.ContentType(row, guess)
	return e
}

// fields are the header of a request that is being made. Their values share one array.
type fields struct {
	http.Header
	values []string
}

// newFields has room for the headers that most requests have, with so many of the message's own.
func (s *Sink) newFields(own int) *fields {
	n := 13 + own + len(s.cfg.Headers)
	if len(s.keys) > 0 {
		n += 3
	}
	return &fields{make(http.Header, n), make([]string, 0, n)}
}

// set sets a header. Its name must be in the canonical form.
func (f *fields) set(name, value string) {
	f.values = append(f.values, value)
	n := len(f.values)
	f.Header[name] = f.values[n-1 : n : n]
}

// headerOf has the HTTP headers of the attributes.
var headerOf = map[string]string{
	"id": "Ce-Id", "source": "Ce-Source", "type": "Ce-Type", "time": "Ce-Time", "subject": "Ce-Subject",
	"partitionkey": "Ce-Partitionkey", "traceparent": "Ce-Traceparent", "tracestate": "Ce-Tracestate",
}

// binary writes the event's attributes and the message's headers as HTTP headers.
func (e event) binary(f *fields) {
	for _, own := range e.headers {
		if !reserved(own.Name) {
			f.Set(own.Name, own.Value)
		}
	}
	f.set("Content-Type", e.content)
	f.set("Ce-Specversion", "1.0")
	for _, a := range e.attributes {
		f.set(headerOf[a.Name], escape(a.Value))
	}
}

// reserved reports whether a header belongs to HTTP itself, to CloudEvents or to the signature.
func reserved(name string) bool {
	lower := strings.ToLower(name)
	switch lower {
	case "host", "connection", "content-length", "content-type", "transfer-encoding", "te", "trailer", "upgrade",
		"keep-alive", "expect", "user-agent", "idempotency-key", "x-idempotency-key", "accept-encoding", "content-encoding":
		return true
	}
	return strings.HasPrefix(lower, "ce-") || strings.HasPrefix(lower, "webhook-") || strings.HasPrefix(lower, "proxy-") ||
		!token(name)
}

// token reports whether name is valid as the name of an HTTP header.
func token(name string) bool {
	return name != "" && strings.IndexFunc(name, func(r rune) bool {
		return !strings.ContainsRune("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789!#$%&'*+-.^_`|~", r)
	}) < 0
}

// escape encodes an attribute by the HTTP binding of CloudEvents: each byte of space, quote, percent and
// anything but printable ASCII becomes percent and two hexadecimal digits.
func escape(value string) string {
	special := func(c rune) bool { return c <= ' ' || c >= 0x7f || c == '"' || c == '%' }
	if !strings.ContainsFunc(value, special) {
		return value
	}
	var b strings.Builder
	for i := range len(value) {
		if c := value[i]; special(rune(c)) {
			fmt.Fprintf(&b, "%%%02X", c)
		} else {
			b.WriteByte(c)
		}
	}
	return b.String()
}

// structured encodes the event as a JSON object.
func (e event) structured() []byte {
	var b bytes.Buffer
	b.WriteString(`{"specversion":"1.0"`)
	member := func(name string, value any) {
		fmt.Fprintf(&b, ",%s:%s", encode(name), encode(value))
	}
	for _, a := range e.attributes {
		member(a.Name, a.Value)
	}
	if len(e.headers) > 0 {
		own := map[string]string{}
		for _, h := range e.headers {
			own[h.Name] = h.Value
		}
		member("emitdheaders", string(encode(own)))
	}
	member("datacontenttype", e.content)
	media, _, _ := mime.ParseMediaType(e.content)
	switch isJSON := media == "application/json" || strings.HasSuffix(media, "+json"); {
	case len(e.data) == 0:
	case isJSON && utf8.Valid(e.data) && json.Valid(e.data):
		fmt.Fprintf(&b, `,"data":%s`, e.data)
	case strings.HasPrefix(media, "text/") && utf8.Valid(e.data):
		member("data", string(e.data))
	default:
		member("data_base64", e.data) // encoding/json writes bytes as base64
	}
	b.WriteByte('}')
	return b.Bytes()
}

// encode is json.Marshal for values that can always be encoded.
func encode(v any) []byte {
	out, err := json.Marshal(v)
	if err != nil {
		panic(fmt.Sprintf("webhook: encode %T: %v", v, err))
	}
	return out
}

// setTrace passes on the producer's span.
func setTrace(f *fields, row outbox.Row) {
	if row.TraceParent != "" {
		f.set("Traceparent", row.TraceParent)
		if row.TraceState != "" {
			f.set("Tracestate", row.TraceState)
		}
	}
}
