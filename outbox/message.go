package outbox

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"unicode/utf8"

	"github.com/google/uuid"
	"go.opentelemetry.io/otel/trace"
)

// The longest name and the longest value of a header, in bytes.
const (
	maxHeaderName  = 255
	maxHeaderValue = 4 << 10
)

// Validate reports everything that is wrong with a message, or nil.
func (m Message) Validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if m.Topic == "" {
		bad("the topic is empty")
	}
	for _, f := range []struct {
		name, value string
		limit       int
	}{
		{"topic", m.Topic, MaxTopic},
		{"type", m.Type, MaxType},
		{"key", m.Key, MaxKey},
		{"traceparent", m.TraceParent, maxHeaderName},
		{"tracestate", m.TraceState, maxHeaderValue},
	} {
		if len(f.value) > f.limit {
			bad("the %s has %d bytes, the limit is %d", f.name, len(f.value), f.limit)
		}
		if err := text(f.value); err != nil {
			bad("the %s %.40q %w", f.name, f.value, err)
		}
	}
	if len(m.Payload) > MaxPayload {
		bad("the payload has %d bytes, the limit is %d", len(m.Payload), MaxPayload)
	}
	if len(m.Headers) > MaxHeaders {
		bad("there are %d headers, the limit is %d", len(m.Headers), MaxHeaders)
	}
	for name, value := range m.Headers {
		if err := header(name, value); err != nil {
			bad("header %.40q %w", name, err)
		}
	}
	return errors.Join(errs...)
}

// token lists the characters that every protocol can carry in a name: those of HTTP field names.
const token = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789!#$%&'*+-.^_`|~"

// header checks one header. Sinks put headers into line-based protocols, where a line break would forge
// another header.
func header(name, value string) error {
	switch {
	case name == "" || len(name) > maxHeaderName:
		return fmt.Errorf("has a name of %d bytes, want 1 to %d", len(name), maxHeaderName)
	case len(value) > maxHeaderValue:
		return fmt.Errorf("has a value of %d bytes, the limit is %d", len(value), maxHeaderValue)
	case strings.IndexFunc(name, func(r rune) bool { return !strings.ContainsRune(token, r) }) >= 0:
		return errors.New("has a name with characters other than ASCII letters, digits and !#$%&'*+-.^_`|~")
	case strings.IndexFunc(value, func(r rune) bool { return r < ' ' && r != '\t' || r == 0x7f }) >= 0:
		return errors.New("has control characters in its value")
	}
	return text(value)
}

// text checks that a database can store s as text.
func text(s string) error {
	switch {
	case !utf8.ValidString(s):
		return errors.New("is not UTF-8")
	case strings.IndexByte(s, 0) >= 0:
		return errors.New("has a zero byte")
	}
	return nil
}

// Prepare returns the messages as backends store them: validated, and with ID and trace context filled in
// where they were empty. The error names the message by its index.
func Prepare(ctx context.Context, messages []Message) ([]Message, error) {
	out := make([]Message, len(messages))
	parent, state := traceContext(ctx)
	for i, m := range messages {
		if err := m.Validate(); err != nil {
			if len(messages) == 1 {
				return nil, fmt.Errorf("publish to %.80q: %w", m.Topic, err)
			}
			return nil, fmt.Errorf("publish message %d of %d to %.80q: %w", i+1, len(messages), m.Topic, err)
		}
		if m.ID == uuid.Nil {
			id, err := uuid.NewV7()
			if err != nil {
				return nil, fmt.Errorf("generate a message ID: %w", err)
			}
			m.ID = id
		}
		if m.TraceParent == "" {
			m.TraceParent, m.TraceState = parent, state
		}
		out[i] = m
	}
	return out, nil
}

// traceContext formats the span of a context as W3C Trace Context. A state that is too long for a message is left out: it
// came from elsewhere, and the span is linked without it.
func traceContext(ctx context.Context) (parent, state string) {
	sc := trace.SpanContextFromContext(ctx)
	if !sc.IsValid() {
		return "", ""
	}
	if state = sc.TraceState().String(); len(state) > maxHeaderValue {
		state = ""
	}
	return fmt.Sprintf("00-%s-%s-%s", sc.TraceID(), sc.SpanID(), sc.TraceFlags()&trace.FlagsSampled), state
}

// spanContext parses it. What does not parse is ignored.
func spanContext(parent, state string) (trace.SpanContext, bool) {
	parts := strings.Split(parent, "-")
	if len(parts) < 4 || len(parts[0]) != 2 || len(parts[3]) != 2 {
		return trace.SpanContext{}, false
	}
	var cfg trace.SpanContextConfig
	var err error
	if cfg.TraceID, err = trace.TraceIDFromHex(parts[1]); err != nil {
		return trace.SpanContext{}, false
	}
	if cfg.SpanID, err = trace.SpanIDFromHex(parts[2]); err != nil {
		return trace.SpanContext{}, false
	}
	if parts[3][1]&1 == 1 { // the last bit of a hexadecimal digit equals the last bit of its ASCII code
		cfg.TraceFlags = trace.FlagsSampled
	}
	if ts, err := trace.ParseTraceState(state); err == nil {
		cfg.TraceState = ts
	}
	cfg.Remote = true
	return trace.NewSpanContext(cfg), true
}

// Shard returns the shard of the message's key, or a random one for a message without a key.
func (m Message) Shard() int {
	if m.Key == "" {
		return rand.IntN(Shards)
	}
	return ShardOf(m.Key)
}
