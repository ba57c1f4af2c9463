package wire

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strings"
	"time"

	jsonv2 "github.com/go-json-experiment/json"

	"github.com/emitd/emitd/internal/queue/wire/limits"
	"github.com/emitd/emitd/queue"
)

// Decode decodes one JSON object from body into v, whose other fields it leaves as they are. It refuses a body that is
// missing, malformed, or followed by more, and fields that are unknown or have the wrong type. The error is a refusal
// that names the field. The bytes in v are copies.
//
// The second version of encoding/json decodes the frequent bodies, as programs usually write them, in less than half
// the time. It is stricter than the first: it declines names in other case, names that occur twice, and text that is
// not UTF-8, also inside a payload. The first version then decodes the body from the beginning, or reports what is
// wrong. So there is one meaning and one set of errors, and a test compares the two.
func Decode(body []byte, v any) error {
	if err := limits.JSONBody(body, v); err != nil {
		return err
	}
	switch v.(type) { // others are decoded into settings that exist, where the versions differ about null
	case *EnqueueRequest, *ClaimRequest, *SettleRequest, *Settlement, *OsqueueSubmit, *OsqueueClaim, *OsqueueWorker:
		if decodeStrict(body, v) {
			return nil
		}
		reflect.ValueOf(v).Elem().SetZero()
	}
	return decode(body, v)
}

// decodeStrict decodes an object with the second version of encoding/json. If it returns false, it declines, and the
// body is partly decoded.
func decodeStrict(body []byte, v any) bool {
	if first := bytes.TrimSpace(body); len(first) == 0 || first[0] != '{' { // null decodes into anything
		return false
	}
	return jsonv2.Unmarshal(body, v, jsonv2.RejectUnknownMembers(true)) == nil
}

// decode is Decode with the first version of encoding/json.
func decode(body []byte, v any) error {
	dec := json.NewDecoder(bytes.NewReader(body))
	dec.DisallowUnknownFields()
	if err := dec.Decode(v); err != nil {
		return decodeError(err, body)
	}
	if rest := bytes.TrimSpace(body[dec.InputOffset():]); len(rest) > 0 {
		return queue.Refuse(queue.BadRequest, "the body has more than one JSON value")
	}
	if first := bytes.TrimSpace(body); first[0] != '{' { // null decodes into anything
		return queue.Refuse(queue.BadRequest, "the body is %.20q, an object is expected", first)
	}
	return refuseReplaced(body, v)
}

// decodeError converts an error of encoding/json into a refusal.
func decodeError(err error, body []byte) error {
	if errors.Is(err, io.EOF) {
		return queue.Refuse(queue.BadRequest, "the body is missing").WithHint("send a JSON object")
	}
	if t, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
		return queue.Refuse(queue.BadRequest, "%s: %s where %s is expected", field(t.Field), article(t.Value), kind(t.Type))
	}
	if s, ok := errors.AsType[*json.SyntaxError](err); ok {
		return queue.Refuse(queue.BadRequest, "the body is no JSON: %v at byte %d", s, s.Offset)
	}
	if p, ok := errors.AsType[*time.ParseError](err); ok {
		return queue.Refuse(queue.BadRequest, "%.80q is no moment", strings.Trim(p.Value, `"`)).
			WithHint("as in 2006-01-02T15:04:05Z (RFC 3339)")
	}
	if errors.Is(err, io.ErrUnexpectedEOF) {
		return queue.Refuse(queue.BadRequest, "the body is no JSON: it ends at byte %d in the middle of a value", len(body))
	}
	// json: unknown field "x", illegal base64 data at input byte n, Time.UnmarshalJSON: …
	message := strings.TrimPrefix(err.Error(), "json: ")
	return queue.Refuse(queue.BadRequest, "%s", message).WithHint("docs/reference/queue-http.md lists the fields")
}

// field removes the name of the embedded struct from a path, because no caller has written it.
func field(path string) string {
	if path == "" {
		return "the body"
	}
	return strings.TrimPrefix(path, "Job.")
}

func article(value string) string {
	switch {
	case strings.HasPrefix(value, "number "):
		return "the " + value
	case value == "array" || value == "object":
		return "an " + value
	default:
		return "a " + value
	}
}

func kind(t reflect.Type) string {
	switch t.Kind() {
	case reflect.String:
		return "a string"
	case reflect.Bool:
		return "true or false"
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		return "a whole number"
	case reflect.Float64:
		return "a number"
	case reflect.Slice:
		if t.Elem().Kind() == reflect.Uint8 {
			return "a string in base64"
		}
		return "a list"
	case reflect.Struct, reflect.Map, reflect.Pointer:
		return "an object"
	default:
		return fmt.Sprintf("a %s", t.Kind())
	}
}
