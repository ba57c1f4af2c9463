package sink

import (
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/emitd/emitd/outbox"
)

// The names of headers or attributes for facts about a message that have no field in a receiver's
// protocol. A message's own headers are not sent if their name begins with Prefix or is that of a trace
// context header.
const (
	Prefix       = "emitd-"
	ID           = Prefix + "id"
	Key          = Prefix + "key"
	Topic        = Prefix + "topic"
	Type         = Prefix + "type"
	Subscription = Prefix + "subscription"
	Shard        = Prefix + "shard"
	// Generation is the epoch of the relay. It grows with each takeover of a shard. A receiver that
	// remembers the highest one per (subscription, shard) can reject a relay that was replaced.
	Generation  = Prefix + "generation"
	TraceParent = "traceparent"
	TraceState  = "tracestate"
)

// Header is a name with its value.
type Header struct{ Name, Value string }

// Headers returns what travels with a row, in a fixed order and facts first. ID, subscription, shard and
// generation are always included, other facts if they are not empty.
func Headers(d outbox.Delivery, row outbox.Row) []Header {
	return append(StandardHeaders(d, row, len(row.Headers)), MessageHeaders(row)...)
}

// StandardHeaders returns the headers about a row without the message's own. The slice has room for more others.
func StandardHeaders(d outbox.Delivery, row outbox.Row, more int) []Header {
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

// MessageHeaders returns the message's own headers, sorted by name, without those whose names are reserved.
func MessageHeaders(row outbox.Row) []Header {
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

// ContentType returns the message's header content-type, in any case of letters, or a default.
func ContentType(row outbox.Row, otherwise string) string {
	for name, value := range row.Headers {
		if strings.EqualFold(name, "content-type") && value != "" {
			return value
		}
	}
	return otherwise
}

// Secret is a credential in a Config. It prints as stars.
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

// DurationOr returns d, or otherwise if d is zero.
func DurationOr(d, otherwise time.Duration) time.Duration {
	if d == 0 {
		return otherwise
	}
	return d
}
