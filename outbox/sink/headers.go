package sink

import (
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/emitd/emitd/outbox"
)

// The names under which facts about a message travel, where a receiver's protocol has headers or
// attributes but no field for them. Headers of the message whose name begins with Prefix, and those
// of the trace context, are not sent: these are ours.
const (
	Prefix       = "emitd-"
	ID           = Prefix + "id"
	Key          = Prefix + "key"
	Topic        = Prefix + "topic"
	Type         = Prefix + "type"
	Subscription = Prefix + "subscription"
	Shard        = Prefix + "shard"
	// Generation is the epoch of the relay. It grows with each take-over of a shard, so that a
	// receiver that remembers the highest one per (subscription, shard) can refuse a deposed relay.
	Generation  = Prefix + "generation"
	TraceParent = "traceparent"
	TraceState  = "tracestate"
)

// Header is one name with its value.
type Header struct{ Name, Value string }

// Headers returns what travels along with a row, facts first, in a fixed order: id, subscription,
// shard and generation always, the others if they are not empty.
func Headers(d outbox.Delivery, row outbox.Row) []Header {
	return append(Facts(d, row, len(row.Headers)), Own(row)...)
}

// Facts are Headers without the message's own, with room for more.
func Facts(d outbox.Delivery, row outbox.Row, more int) []Header {
	hs := append(make([]Header, 0, 8+more),
		Header{ID, row.ID.String()},
		Header{Subscription, d.Subscription},
		Header{Shard, strconv.Itoa(row.Shard)},
		Header{Generation, strconv.FormatInt(d.Epoch, 10)},
	)
	for _, h := range [...]Header{{Key, row.Key}, {Type, row.Type}, {TraceParent, row.TraceParent}, {TraceState, row.TraceState}} {
		if h.Value != "" {
			hs = append(hs, h)
		}
	}
	return hs
}

// Own returns the headers of the message itself, sorted by name, without those that are ours.
func Own(row outbox.Row) []Header {
	if len(row.Headers) == 0 {
		return nil
	}
	var hs []Header
	for _, name := range slices.Sorted(maps.Keys(row.Headers)) {
		lower := strings.ToLower(name)
		if strings.HasPrefix(lower, Prefix) || lower == TraceParent && row.TraceParent != "" || lower == TraceState && row.TraceState != "" {
			continue
		}
		hs = append(hs, Header{name, row.Headers[name]})
	}
	return hs
}

// ContentType returns the header content-type of the message, in whatever case, or a default.
func ContentType(row outbox.Row, otherwise string) string {
	for name, value := range row.Headers {
		if strings.EqualFold(name, "content-type") && value != "" {
			return value
		}
	}
	return otherwise
}

// Secret is a credential in a Config: it prints as stars.
type Secret string

// String hides the secret.
func (s Secret) String() string {
	if s == "" {
		return ""
	}
	return "***"
}

// GoString hides the secret.
func (s Secret) GoString() string { return strconv.Quote(s.String()) }

// MarshalText hides the secret when a configuration is shown.
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }

// Default returns d, or otherwise when d is zero.
func Default(d, otherwise time.Duration) time.Duration {
	if d == 0 {
		return otherwise
	}
	return d
}
