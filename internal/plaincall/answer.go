package plaincall

import (
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

const (
	// keptBytes is how much of an answer is gathered before its head is sent. Nearly all answers are smaller, so that
	// their length is known and they are sent in one piece.
	keptBytes = 64 << 10
	// deadlineSlack is by how much a connection's deadline may be later than was asked for, so that it need not be
	// moved with each call.
	deadlineSlack = time.Second
)

// answer is the answer to one call, an [http.ResponseWriter].
type answer struct {
	c        *conn
	header   http.Header
	status   int // 0: not decided yet
	body     []byte
	until    time.Time // the deadline for sending; zero: none was asked for
	headSent bool
	last     bool  // the connection ends with this answer
	left     int64 // of the declared length, after headSent; -1: not declared
	failed   error // of the connection
}

// buffers have the bytes of answers while they are made.
var buffers = sync.Pool{New: func() any { return new([]byte) }}

// begin makes a ready for the next call.
func (a *answer) begin() {
	if a.header == nil {
		a.header = http.Header{}
	}
	clear(a.header)
	a.status, a.body, a.until, a.headSent, a.last, a.left = 0, a.body[:0], time.Time{}, false, false, -1
}

// Header implements [http.ResponseWriter].
func (a *answer) Header() http.Header { return a.header }

// WriteHeader implements [http.ResponseWriter].
func (a *answer) WriteHeader(status int) {
	if a.status == 0 && status >= http.StatusOK {
		a.status = status
	}
}

// Write implements [http.ResponseWriter].
func (a *answer) Write(b []byte) (int, error) {
	a.WriteHeader(http.StatusOK)
	if bodyless(a.status) {
		return 0, http.ErrBodyNotAllowed
	}
	if !a.headSent && len(a.body)+len(b) <= keptBytes {
		a.body = append(a.body, b...)
		return len(b), nil
	}
	if !a.headSent {
		a.sendHead(declared(a.header), b)
	}
	if a.left >= 0 {
		if a.left -= int64(len(b)); a.left < 0 {
			a.last, a.failed = true, http.ErrContentLength
		}
	}
	a.send(b)
	return len(b), a.failed
}

// declared returns the length that the handler has declared, or -1.
func declared(h http.Header) int64 {
	n, err := strconv.ParseInt(h.Get("Content-Length"), 10, 64)
	if err != nil || n < 0 {
		return -1
	}
	return n
}

// SetWriteDeadline is for [http.ResponseController].
func (a *answer) SetWriteDeadline(at time.Time) error {
	a.until = at
	return nil
}

// SetReadDeadline is for [http.ResponseController]. The body has arrived already.
func (a *answer) SetReadDeadline(time.Time) error { return nil }

// finish sends what was not sent yet. It returns whether the connection can have another call.
func (a *answer) finish() bool {
	a.WriteHeader(http.StatusOK)
	if !a.headSent {
		a.sendHead(int64(len(a.body)), nil)
	}
	return a.failed == nil && !a.last && a.left <= 0
}

// sendHead sends the head and the part of the body that was gathered; next follows. If the length is not known, the
// connection's end is that of the answer.
func (a *answer) sendHead(length int64, next []byte) {
	a.headSent = true
	kept, _ := buffers.Get().(*[]byte)
	out := (*kept)[:0]
	out = append(out, "HTTP/1.1 "...)
	out = strconv.AppendInt(out, int64(a.status), 10)
	out = append(append(append(out, ' '), http.StatusText(a.status)...), "\r\n"...)
	a.last = a.last || length < 0 || a.c.l.closing.Load() || strings.EqualFold(a.header.Get("Connection"), "close")
	_, typed := a.header["Content-Type"]
	for key, values := range a.header {
		if key == "Content-Length" || key == "Connection" {
			continue
		}
		for _, v := range values {
			out = append(append(append(append(out, key...), ": "...), oneLine(v)...), "\r\n"...)
		}
	}
	if _, dated := a.header["Date"]; !dated {
		out = append(append(append(out, "Date: "...), date()...), "\r\n"...)
	}
	if len(a.body) > 0 {
		next = a.body
	}
	if !typed && len(next) > 0 {
		out = append(append(append(out, "Content-Type: "...), http.DetectContentType(next)...), "\r\n"...)
	}
	if length >= 0 && !bodyless(a.status) {
		out = append(strconv.AppendInt(append(out, "Content-Length: "...), length, 10), "\r\n"...)
	}
	if a.last {
		out = append(out, "Connection: close\r\n"...)
	}
	out = append(append(out, "\r\n"...), a.body...)
	if a.left = length; length >= 0 {
		a.left -= int64(len(a.body))
	}
	a.send(out)
	*kept = out
	buffers.Put(kept)
}

// send sends bytes by the deadline that was asked for.
func (a *answer) send(b []byte) {
	if a.failed == nil {
		a.c.setWriteDeadline(a.until)
		_, a.failed = a.c.Write(b)
	}
}

// bodyless reports whether answers with this status have no body.
func bodyless(status int) bool {
	return status == http.StatusNoContent || status == http.StatusNotModified
}

var lineBreaks = strings.NewReplacer("\n", " ", "\r", " ")

// oneLine makes sure that a header's value ends no line.
func oneLine(value string) string {
	if strings.ContainsAny(value, "\r\n") {
		return lineBreaks.Replace(value)
	}
	return value
}

// dated is a second as the text of a Date header.
type dated struct {
	second int64
	text   string
}

var today atomic.Pointer[dated]

// date returns the present time for a Date header.
func date() string {
	now := time.Now()
	d := today.Load()
	if d == nil || d.second != now.Unix() {
		d = &dated{now.Unix(), now.UTC().Format(http.TimeFormat)}
		today.Store(d)
	}
	return d.text
}
