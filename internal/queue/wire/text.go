package wire

import (
	"encoding/json"
	"reflect"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/emitd/emitd/queue"
)

// refuseReplaced refuses a body in which encoding/json has replaced invalid text. It replaces bytes
// that are not UTF-8, and halves of surrogate pairs, by U+FFFD, so that different names would
// become the same. Payloads and results keep their bytes.
func refuseReplaced(body []byte, v any) error {
	if utf8.Valid(body) && !hasHalfPair(body) {
		return nil // a U+FFFD in it was sent by the caller
	}
	if name := findReplaced("", reflect.ValueOf(v)); name != "" {
		return queue.Refuse(queue.BadRequest, "%s is no UTF-8", name).WithHint("two names that are no text would be taken for one")
	}
	return nil
}

// hasHalfPair reports whether a JSON text has an escaped half of a surrogate pair.
func hasHalfPair(b []byte) bool {
	for i := 0; i+1 < len(b); i++ {
		if b[i] != '\\' {
			continue
		}
		i++
		if b[i] != 'u' {
			continue
		}
		first := parseHex(b[i+1:])
		switch {
		case first >= 0xDC00 && first <= 0xDFFF:
			return true
		case first >= 0xD800 && first <= 0xDBFF:
			if len(b) < i+7 || b[i+5] != '\\' || b[i+6] != 'u' {
				return true
			}
			if second := parseHex(b[i+7:]); second < 0xDC00 || second > 0xDFFF {
				return true
			}
			i += 6
		}
	}
	return false
}

// parseHex parses four hexadecimal digits; 0 if there are none.
func parseHex(b []byte) uint64 {
	n, _ := strconv.ParseUint(string(b[:min(4, len(b))]), 16, 16)
	return n
}

// findReplaced returns the name of a text in v with U+FFFD, or "".
func findReplaced(name string, v reflect.Value) string {
	switch v.Kind() {
	case reflect.String:
		if strings.ContainsRune(v.String(), utf8.RuneError) {
			return name
		}
	case reflect.Pointer:
		if !v.IsNil() {
			return findReplaced(name, v.Elem())
		}
	case reflect.Slice:
		if v.Type() == reflect.TypeFor[json.RawMessage]() || v.Type().Elem().Kind() == reflect.Uint8 {
			return ""
		}
		for i := range v.Len() {
			if bad := findReplaced(name, v.Index(i)); bad != "" {
				return bad
			}
		}
	case reflect.Struct:
		for i := range v.NumField() {
			f := v.Type().Field(i)
			if !f.IsExported() {
				continue
			}
			inner, _, _ := strings.Cut(f.Tag.Get("json"), ",")
			if bad := findReplaced(inner, v.Field(i)); bad != "" {
				return bad
			}
		}
	default:
	}
	return ""
}
