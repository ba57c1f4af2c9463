package wire

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/emitd/emitd/queue"
)

// scanner decodes the frequent requests by hand. It handles the bodies that programs usually
// write: exact field names, each once, plain strings, whole numbers. It returns what encoding/json
// would return, or declines. Then encoding/json decodes the body from the beginning and reports
// what is wrong. So there is one meaning and one set of errors, and a test compares the two.
type scanner struct {
	b  []byte // belongs to the caller
	at int
	// own is one copy of b for all payloads. They outlive the call only a little.
	own []byte
}

// scanned is a body that a scanner can decode. If scan returns false, it declines, and the body is
// partly decoded.
type scanned interface{ scan(s *scanner) bool }

var (
	_ scanned = (*EnqueueRequest)(nil)
	_ scanned = (*ClaimRequest)(nil)
	_ scanned = (*SettleRequest)(nil)
	_ scanned = (*Settlement)(nil)
)

// scan decodes the whole body.
func scan(body []byte, v scanned) bool {
	s := scanner{b: body}
	if !v.scan(&s) {
		return false
	}
	s.space()
	return s.at == len(s.b)
}

func (r *EnqueueRequest) scan(s *scanner) bool {
	return s.members(func(name []byte) uint32 {
		if string(name) != "jobs" {
			return r.member(s, name)
		}
		r.Jobs = make([]Job, 0, min(bytes.Count(s.b[s.at:], []byte("{")), queue.MaxCall))
		ok := s.elements(func() bool {
			if len(r.Jobs) == queue.MaxCall {
				return false // encoding/json decodes it again and refuses it
			}
			r.Jobs = append(r.Jobs, Job{})
			j := &r.Jobs[len(r.Jobs)-1]
			return s.members(func(name []byte) uint32 { return j.member(s, name) })
		})
		return bit(ok, 31)
	})
}

// member decodes a field of a job and returns its bit; 0 means decline.
func (j *Job) member(s *scanner, name []byte) uint32 {
	switch string(name) {
	case "id":
		return bit(s.text(&j.ID), 0)
	case "key":
		return bit(s.text(&j.Key), 1)
	case "type":
		return bit(s.text(&j.Type), 2)
	case "group":
		return bit(s.text(&j.Group), 3)
	case "payload":
		return bit(s.raw(&j.Payload), 4)
	case "payload_base64":
		return bit(s.binary(&j.PayloadBase64), 5)
	case "priority":
		return bit(s.int(&j.Priority), 6)
	case "delay_ms":
		return bit(s.int64(&j.DelayMS), 7)
	case "run_at":
		return bit(s.time(&j.RunAt), 8)
	case "ttl_ms":
		return bit(s.int64(&j.TTLMS), 9)
	case "retry":
		j.Retry = &Retry{}
		return bit(s.members(func(name []byte) uint32 { return j.Retry.member(s, name) }), 10)
	}
	return 0
}

func (r *Retry) member(s *scanner, name []byte) uint32 {
	switch string(name) {
	case "max_attempts":
		return bit(s.int(&r.MaxAttempts), 0)
	case "backoff_ms":
		return bit(s.int64(&r.BackoffMS), 1)
	case "max_backoff_ms":
		return bit(s.int64(&r.MaxBackoffMS), 2)
	case "factor":
		return bit(s.float(&r.Factor), 3)
	case "jitter":
		return bit(s.float(&r.Jitter), 4)
	case "back":
		return bit(s.bool(&r.Back), 5)
	}
	return 0
}

func (r *ClaimRequest) scan(s *scanner) bool {
	return s.members(func(name []byte) uint32 {
		switch string(name) {
		case "worker":
			return bit(s.text(&r.Worker), 0)
		case "types":
			r.Types = []string{}
			return bit(s.elements(func() bool {
				if len(r.Types) == queue.MaxCall {
					return false
				}
				r.Types = append(r.Types, "")
				return s.text(&r.Types[len(r.Types)-1])
			}), 1)
		case "max":
			return bit(s.int(&r.Max), 2)
		case "wait_ms":
			return bit(s.int64(&r.WaitMS), 3)
		case "visibility_ms":
			return bit(s.int64(&r.VisibilityMS), 4)
		case "request_id":
			return bit(s.text(&r.RequestID), 5)
		case "tokenless":
			return bit(s.bool(&r.Tokenless), 6)
		}
		return 0
	})
}

func (r *SettleRequest) scan(s *scanner) bool {
	return s.members(func(name []byte) uint32 {
		if string(name) != "settlements" {
			return 0
		}
		r.Settlements = make([]Settlement, 0, min(bytes.Count(s.b[s.at:], []byte("{")), queue.MaxCall))
		return bit(s.elements(func() bool {
			if len(r.Settlements) == queue.MaxCall {
				return false
			}
			r.Settlements = append(r.Settlements, Settlement{})
			return r.Settlements[len(r.Settlements)-1].scan(s)
		}), 0)
	})
}

func (x *Settlement) scan(s *scanner) bool {
	return s.members(func(name []byte) uint32 {
		switch string(name) {
		case "verb":
			return bit(s.verb(&x.Verb), 0)
		case "id":
			return bit(s.text(&x.ID), 1)
		case "token":
			return bit(s.text(&x.Token), 2)
		case "worker":
			return bit(s.text(&x.Worker), 3)
		case "visibility_ms":
			return bit(s.int64(&x.VisibilityMS), 4)
		case "result":
			return bit(s.raw(&x.Result), 5)
		case "result_base64":
			return bit(s.binary(&x.ResultBase64), 6)
		case "cause":
			return bit(s.text(&x.Cause), 7)
		case "retry_after_ms":
			x.RetryAfterMS = new(int64)
			return bit(s.int64(x.RetryAfterMS), 8)
		case "dead":
			return bit(s.bool(&x.Dead), 9)
		}
		return 0
	})
}

// bit returns a mask with bit n if a value was decoded, otherwise 0.
func bit(ok bool, n int) uint32 {
	if !ok {
		return 0
	}
	return 1 << n
}

func (s *scanner) space() {
	for s.at < len(s.b) && (s.b[s.at] == ' ' || s.b[s.at] == '\n' || s.b[s.at] == '\t' || s.b[s.at] == '\r') {
		s.at++
	}
}

// next skips white space and consumes the byte c, if it is next.
func (s *scanner) next(c byte) bool {
	s.space()
	if s.at == len(s.b) || s.b[s.at] != c {
		return false
	}
	s.at++
	return true
}

// members decodes an object. f decodes the value of a member and returns its bit. A field that
// occurs twice is declined, because encoding/json merges some.
func (s *scanner) members(f func(name []byte) uint32) bool {
	if !s.next('{') {
		return false
	}
	var seen uint32
	for first := true; !s.next('}'); first = false {
		if !first && !s.next(',') {
			return false
		}
		name, ok := s.plain()
		if !ok || !s.next(':') {
			return false
		}
		one := f(name)
		if one == 0 || seen&one != 0 {
			return false
		}
		seen |= one
	}
	return true
}

// elements decodes a list; f decodes one element.
func (s *scanner) elements(f func() bool) bool {
	if !s.next('[') {
		return false
	}
	for first := true; !s.next(']'); first = false {
		if !first && !s.next(',') || !f() {
			return false
		}
	}
	return true
}

// plain decodes a string without escapes, in valid UTF-8.
func (s *scanner) plain() ([]byte, bool) {
	if !s.next('"') {
		return nil, false
	}
	from, wide := s.at, false
	for ; s.at < len(s.b); s.at++ {
		switch c := s.b[s.at]; {
		case c == '"':
			text := s.b[from:s.at]
			s.at++
			return text, !wide || utf8.Valid(text)
		case c < ' ' || c == '\\':
			return nil, false
		case c >= utf8.RuneSelf:
			wide = true
		}
	}
	return nil, false
}

func (s *scanner) text(to *string) bool {
	b, ok := s.plain()
	*to = string(b)
	return ok
}

func (s *scanner) verb(to *queue.Verb) bool {
	b, ok := s.plain()
	switch string(b) { // without a copy
	case string(queue.Complete):
		*to = queue.Complete
	case string(queue.Extend):
		*to = queue.Extend
	default:
		*to = queue.Verb(b)
	}
	return ok
}

func (s *scanner) bool(to *bool) bool {
	s.space()
	*to = s.at < len(s.b) && s.b[s.at] == 't'
	return s.word("true") || s.word("false")
}

func (s *scanner) int(to *int) bool {
	var n int64
	ok := s.int64(&n)
	*to = int(n)
	return ok && int64(*to) == n
}

// int64 decodes a whole number of up to 18 digits.
func (s *scanner) int64(to *int64) bool {
	token, ok := s.number()
	if !ok || len(token) > 18 {
		return false
	}
	n, err := strconv.ParseInt(string(token), 10, 64)
	*to = n
	return err == nil
}

func (s *scanner) float(to *float64) bool {
	token, ok := s.number()
	if !ok {
		return false
	}
	n, err := strconv.ParseFloat(string(token), 64)
	*to = n
	return err == nil
}

func (s *scanner) time(to *time.Time) bool {
	s.space()
	from := s.at
	if _, ok := s.plain(); !ok {
		return false
	}
	return to.UnmarshalJSON(s.b[from:s.at]) == nil
}

func (s *scanner) binary(to *[]byte) bool {
	text, ok := s.plain()
	if !ok {
		return false
	}
	out := make([]byte, base64.StdEncoding.DecodedLen(len(text)))
	n, err := base64.StdEncoding.Decode(out, text)
	*to = out[:n]
	return err == nil
}

// raw returns any value except null, unchanged.
func (s *scanner) raw(to *json.RawMessage) bool {
	s.space()
	from := s.at
	if from < len(s.b) && s.b[from] == 'n' || !s.value(0) {
		return false
	}
	if s.own == nil {
		s.own = bytes.Clone(s.b)
	}
	*to = s.own[from:s.at:s.at]
	return true
}

// deepest is how deeply the scanner looks into a value; encoding/json accepts 10,000 levels.
const deepest = 100

// value skips a valid value.
func (s *scanner) value(depth int) bool {
	s.space()
	if s.at == len(s.b) || depth > deepest {
		return false
	}
	switch s.b[s.at] {
	case '"':
		return s.string()
	case '{':
		return s.object(depth)
	case '[':
		return s.elements(func() bool { return s.value(depth + 1) })
	case 't':
		return s.word("true")
	case 'f':
		return s.word("false")
	case 'n':
		return s.word("null")
	}
	_, ok := s.number()
	return ok
}

// object skips an object, whatever its members are called and how often.
func (s *scanner) object(depth int) bool {
	if !s.next('{') {
		return false
	}
	for first := true; !s.next('}'); first = false {
		if !first && !s.next(',') || !s.string() || !s.next(':') || !s.value(depth+1) {
			return false
		}
	}
	return true
}

// string skips a string. Whether it is UTF-8 is left to the code that uses it.
func (s *scanner) string() bool {
	if !s.next('"') {
		return false
	}
	for s.at < len(s.b) {
		c := s.b[s.at]
		s.at++
		switch {
		case c == '"':
			return true
		case c < ' ' || c == '\\' && !s.escape():
			return false
		}
	}
	return false
}

// escape skips what follows a backslash.
func (s *scanner) escape() bool {
	if s.at == len(s.b) {
		return false
	}
	c := s.b[s.at]
	s.at++
	if c != 'u' {
		return strings.IndexByte(`"\/bfnrt`, c) >= 0
	}
	if len(s.b)-s.at < 4 {
		return false
	}
	for range 4 {
		if c := s.b[s.at]; (c < '0' || c > '9') && (c < 'a' || c > 'f') && (c < 'A' || c > 'F') {
			return false
		}
		s.at++
	}
	return true
}

func (s *scanner) word(w string) bool {
	if len(s.b)-s.at < len(w) || string(s.b[s.at:s.at+len(w)]) != w {
		return false
	}
	s.at += len(w)
	return true
}

// number returns the text of a number.
func (s *scanner) number() ([]byte, bool) {
	s.space()
	from := s.at
	s.sign("-")
	switch {
	case s.at < len(s.b) && s.b[s.at] == '0':
		s.at++
	case !s.digits():
		return nil, false
	}
	if s.sign(".") && !s.digits() {
		return nil, false
	}
	if s.sign("eE") {
		s.sign("+-")
		if !s.digits() {
			return nil, false
		}
	}
	return s.b[from:s.at], true
}

// sign consumes one of these bytes, if it is next.
func (s *scanner) sign(of string) bool {
	if s.at == len(s.b) || strings.IndexByte(of, s.b[s.at]) < 0 {
		return false
	}
	s.at++
	return true
}

// digits consumes all digits that follow, and reports whether there are any.
func (s *scanner) digits() bool {
	from := s.at
	for s.at < len(s.b) && s.b[s.at] >= '0' && s.b[s.at] <= '9' {
		s.at++
	}
	return s.at > from
}

// valid reports whether b is one JSON value.
func valid(b []byte) bool {
	s := scanner{b: b}
	if s.value(0) {
		s.space()
		if s.at == len(b) {
			return true
		}
	}
	return json.Valid(b) // it may be deeper than a scanner looks
}
