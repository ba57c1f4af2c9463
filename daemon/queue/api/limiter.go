package api

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/emitd/emitd/daemon/queue"
	"github.com/emitd/emitd/internal/inflight"
)

// Limits bound what calls hold in memory. The zero value has the defaults.
type Limits struct {
	// MaxBody is the largest body taken, in bytes after it was decompressed; default 32 MiB, which a
	// job of MaxPayload fits in base64, or MaxInFlight if that is less.
	MaxBody int64
	// MaxInFlight bounds all bodies that are being read or worked on and all payloads on their way to a
	// client, in bytes, without the first 16 KiB of each call; default 256 MiB. Beyond it calls are
	// answered 429. Each of these bytes costs up to four bytes of memory, because it is decoded, written and sent.
	MaxInFlight int64
	// MaxCalls bounds the calls that are being answered, long polls and calls over WebSockets
	// included; default 10,000. Beyond it calls are answered 429.
	MaxCalls int
}

const (
	defaultMaxBody     = 32 << 20
	defaultMaxInFlight = 256 << 20
	defaultMaxCalls    = 10_000
)

// How slowly a body may come or an answer be read. What is slower is cut off, so that nobody keeps memory for long.
const (
	stallTimeout = 10 * time.Second // without any progress
	paceGrace    = 30 * time.Second // in all, and a second more for
	paceBytes    = 256 << 10        // so many bytes
	writeChunk   = 64 << 10         // is what must be read within stallTimeout
)

// Limiter bounds what calls hold in memory, and how long their bodies and answers may take. One limiter
// stands in front of everything that a listener serves, see [Limiter.Wrap].
//
//   - A body counts what it decodes to: gzip is decompressed here, and not behind the count.
//   - A body, or a frame of a WebSocket, that comes too slowly is cut off, as is an answer that is read too slowly.
//   - Memory that is used up is a 429 with a Retry-After, never the end of the process. Small calls
//     are answered while large ones are refused.
type Limiter struct {
	budget  *inflight.Budget
	maxBody int64
}

// NewLimiter makes a limiter.
func NewLimiter(l Limits) (*Limiter, error) {
	if l.MaxInFlight == 0 {
		l.MaxInFlight = defaultMaxInFlight
	}
	if l.MaxBody == 0 {
		l.MaxBody = min(defaultMaxBody, l.MaxInFlight)
	}
	if l.MaxCalls == 0 {
		l.MaxCalls = defaultMaxCalls
	}
	if l.MaxBody < 0 || l.MaxInFlight < l.MaxBody {
		return nil, fmt.Errorf("queue api: MaxInFlight %d is less than MaxBody %d", l.MaxInFlight, l.MaxBody)
	}
	if l.MaxCalls < 0 {
		return nil, fmt.Errorf("queue api: MaxCalls %d is negative", l.MaxCalls)
	}
	return &Limiter{budget: inflight.New(l.MaxInFlight, l.MaxCalls), maxBody: l.MaxBody}, nil
}

// Held returns how many bytes and calls are held now.
func (l *Limiter) Held() (bytes, calls int64) { return l.budget.Held() }

// Wrap limits all calls of a handler. A call for which there is no place goes to refuse.
func (l *Limiter) Wrap(next http.Handler, refuse func(w http.ResponseWriter, r *http.Request, e *queue.Error)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		call, ok := l.budget.Begin()
		if !ok {
			refuse(w, r, errTooManyCalls())
			return
		}
		defer call.End()
		l.serve(call, next, w, r)
	})
}

func (l *Limiter) serve(call *inflight.Call, next http.Handler, w http.ResponseWriter, r *http.Request) {
	control := http.NewResponseController(w)
	answer := &pacedAnswer{ResponseWriter: w, pace: pace{set: control.SetWriteDeadline}}
	r = r.WithContext(inflight.With(r.Context(), call)) // a copy
	if r.Body != nil && r.Body != http.NoBody {
		raw := &pacedBody{ReadCloser: r.Body, pace: pace{set: control.SetReadDeadline}}
		defer raw.finish()
		r.Body = struct {
			io.Reader
			io.Closer
		}{plainBody(raw, r, call, l.maxBody, w.Header()), raw}
	}
	defer answer.finish()
	next.ServeHTTP(answer, r)
}

// limited reports whether a call is under a limiter already.
func limited(r *http.Request) bool { return inflight.Of(r.Context()) != nil }

func errTooManyCalls() *queue.Error {
	return queue.Refuse(queue.QueueFull, "too many calls are being answered").WithHint("try again later, or raise api.max_connections")
}

func errTooManyBytes() *queue.Error {
	return queue.Refuse(queue.QueueFull, "too many large bodies are being read or answered").WithHint("try again later")
}

func errTooLarge(limit int64) *queue.Error {
	return queue.Refuse(queue.PayloadTooLarge, "the body is larger than the %d bytes that are taken", limit).
		WithHint("split the call; a large payload is better stored elsewhere and named in the job")
}

// pace moves the deadline of a connection as bytes move. It forbids both to stand still and to crawl.
type pace struct {
	set        func(time.Time) error // a deadline; its error says that the connection has none
	begun, was time.Time
	moved      int64
}

// again gives the next read or write its deadline.
func (p *pace) again() {
	now := time.Now()
	if p.begun.IsZero() {
		p.begun = now
	} else if now.Sub(p.was) < time.Second {
		return // the deadline of before will do
	}
	p.was = now
	_ = p.set(now.Add(p.allowed(now)))
}

// allowed returns how long the next read or write may take.
func (p *pace) allowed(now time.Time) time.Duration {
	inAll := p.begun.Add(paceGrace + time.Duration(p.moved)*time.Second/paceBytes)
	return min(stallTimeout, inAll.Sub(now))
}

// pacedBody is a body that must keep pace.
type pacedBody struct {
	io.ReadCloser
	pace   pace
	failed error
}

// Read implements [io.Reader].
func (b *pacedBody) Read(p []byte) (int, error) {
	if b.failed != nil {
		return 0, b.failed
	}
	b.pace.again()
	n, err := b.ReadCloser.Read(p)
	b.pace.moved += int64(n)
	if b.failed = err; err == io.EOF { //nolint:errorlint // a reader's own
		_ = b.pace.set(time.Time{}) // the server watches the connection while the call is answered
	}
	return n, err
}

// finish bounds how long the server reads on in a body that was not read to its end.
func (b *pacedBody) finish() {
	if b.failed == nil {
		_ = b.pace.set(time.Now().Add(stallTimeout))
	}
}

// countedBody is a decompressed body that is taken from the budget, and has at most so many bytes.
type countedBody struct {
	src        io.Reader
	call       *inflight.Call
	most, read int64
	header     http.Header // of the answer
}

// Read implements [io.Reader].
func (b *countedBody) Read(p []byte) (int, error) {
	n, err := b.src.Read(p[:min(int64(len(p)), b.most-b.read+1)])
	switch b.read += int64(n); {
	case b.read > b.most:
		err = errTooLarge(b.most)
	case !b.call.Take(int64(n)):
		err = errTooManyBytes()
	default:
		return n, err
	}
	b.src = failing{err}
	b.header.Set("Connection", "close") // the rest is not read
	return 0, err
}

// failing is a reader that has failed.
type failing struct{ err error }

// Read implements [io.Reader].
func (f failing) Read([]byte) (int, error) { return 0, f.err }

// pacedAnswer is an answer whose reader must keep pace.
type pacedAnswer struct {
	http.ResponseWriter
	pace pace
}

// Unwrap implements the wish of [http.ResponseController].
func (a *pacedAnswer) Unwrap() http.ResponseWriter { return a.ResponseWriter }

// WriteHeader implements [http.ResponseWriter].
func (a *pacedAnswer) WriteHeader(status int) {
	a.pace.again()
	a.ResponseWriter.WriteHeader(status)
}

// Write implements [io.Writer].
func (a *pacedAnswer) Write(b []byte) (n int, err error) {
	for {
		a.pace.again()
		m, err := a.ResponseWriter.Write(b[n:min(len(b), n+writeChunk)])
		n += m
		a.pace.moved += int64(m)
		if err != nil || n == len(b) {
			return n, err
		}
	}
}

// Flush implements [http.Flusher].
func (a *pacedAnswer) Flush() {
	a.pace.again()
	_ = http.NewResponseController(a.ResponseWriter).Flush()
}

// finish bounds the writing of what is still in the server's buffer.
func (a *pacedAnswer) finish() { _ = a.pace.set(time.Now().Add(stallTimeout)) }

// bodyRefusal returns what a body that could not be read is refused with.
func bodyRefusal(err error) *queue.Error {
	if e, ok := errors.AsType[*queue.Error](err); ok {
		return e
	}
	return queue.Refuse(queue.BadRequest, "the body broke off: %w", err)
}
