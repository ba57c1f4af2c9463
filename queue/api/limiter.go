package api

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/emitd/emitd/internal/inflight"
	"github.com/emitd/emitd/queue"
)

// Limits bound the memory that calls use. The zero value has the defaults.
type Limits struct {
	// MaxBody is the largest body that is accepted, in bytes after decompression. The default
	// is 32 MiB, in which a job with MaxPayload fits as base64, or MaxInFlight if that is less.
	MaxBody int64
	// MaxInFlight bounds all bodies that are being read or processed and all payloads that are
	// being sent, in bytes. The first 16 KiB of each call are not counted. Default 256 MiB.
	// Calls beyond it are answered with 429. Each counted byte needs up to four bytes of
	// memory, because it is decoded, encoded and sent.
	MaxInFlight int64
	// MaxCalls is the most calls that are answered at a time, including long polls and calls
	// over WebSockets; default 10,000. Calls beyond it are answered with 429.
	MaxCalls int
}

const (
	defaultMaxBody     = 32 << 20
	defaultMaxInFlight = 256 << 20
	defaultMaxCalls    = 10_000
)

// The slowest speed at which a body may be sent or an answer read. A slower client is disconnected,
// so that it does not hold memory for long.
const (
	stallTimeout = 10 * time.Second // longest time without progress
	paceGrace    = 30 * time.Second // longest time in all, plus a second for each
	paceBytes    = 256 << 10        // bytes that were transferred
	writeChunk   = 64 << 10         // bytes that must be read within stallTimeout
	keptByServer = 1 << 10          // bytes of an answer that net/http surely keeps until its end (it keeps 2 KiB)
)

// Limiter bounds the memory that calls use, and the time that their bodies and answers may take.
// One limiter should be in front of everything that a listener serves; see [Limiter.Wrap].
//
//   - A body counts with its decompressed size: gzip is decompressed here, so that the count is
//     right.
//   - A body, or a frame of a WebSocket, that is sent too slowly is cut off, and so is an answer
//     that is read too slowly.
//   - If no memory is left, the answer is 429 with a Retry-After. Small calls are answered while
//     large ones are refused.
type Limiter struct {
	budget  *inflight.Budget
	maxBody int64
}

// NewLimiter creates a limiter.
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

// InUse returns how many bytes and calls are counted now.
func (l *Limiter) InUse() (bytes, calls int64) { return l.budget.Held() }

// Wrap limits all calls of a handler. refuse answers a call that exceeds MaxCalls.
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
	c := &limitedCall{answer: pacedAnswer{ResponseWriter: w, pace: pace{on: writing{control}}}}
	r = r.WithContext(inflight.NewContext(r.Context(), call)) // a copy of the request
	if r.Body != nil && r.Body != http.NoBody {
		c.raw = pacedBody{ReadCloser: r.Body, pace: pace{on: reading{control}}}
		defer c.raw.finish()
		c.body.Reader, c.body.Closer = plainBody(&c.raw, r, call, l.maxBody, w.Header()), &c.raw
		r.Body = &c.body
	}
	defer c.answer.finish()
	next.ServeHTTP(&c.answer, r)
}

// limitedCall has what a call needs of its limiter, in one piece of memory.
type limitedCall struct {
	answer pacedAnswer
	raw    pacedBody // as it is sent
	body   struct {  // as it is read
		io.Reader
		io.Closer
	}
}

// limited reports whether a limiter is applied to the call already.
func limited(r *http.Request) bool { return inflight.FromContext(r.Context()) != nil }

func errTooManyCalls() *queue.Error {
	return queue.Refuse(queue.QueueFull, "too many calls are being answered").WithHint("try again later, or raise api.max_connections")
}

func errTooManyBytes() *queue.Error {
	return queue.Refuse(queue.QueueFull, "too many large bodies are being read or answered").WithHint("try again later")
}

func errTooLarge(limit int64) *queue.Error {
	return queue.Refuse(queue.PayloadTooLarge, "the body is larger than the limit of %d bytes", limit).
		WithHint("split the call; store a large payload elsewhere and refer to it in the job")
}

// pace moves the deadline of a connection as bytes are transferred. It limits both the time without
// progress and the whole time.
type pace struct {
	on         deadline
	begun, was time.Time
	moved      int64
}

// deadline is that of the reads or of the writes of a connection.
type deadline interface {
	set(at time.Time) error // an error means that the connection has no deadlines
}

// reading and writing are the deadlines of an HTTP connection.
type (
	reading struct{ of *http.ResponseController }
	writing struct{ of *http.ResponseController }
)

func (d reading) set(at time.Time) error { return d.of.SetReadDeadline(at) }
func (d writing) set(at time.Time) error { return d.of.SetWriteDeadline(at) }

// setDeadline sets the deadline of the next read or write.
func (p *pace) setDeadline() {
	now := time.Now()
	if p.begun.IsZero() {
		p.begun = now
	} else if now.Sub(p.was) < time.Second {
		return // the last deadline is recent enough
	}
	p.was = now
	_ = p.on.set(now.Add(p.allowed(now)))
}

// allowed returns how long the next read or write may take.
func (p *pace) allowed(now time.Time) time.Duration {
	inAll := p.begun.Add(paceGrace + time.Duration(p.moved)*time.Second/paceBytes)
	return min(stallTimeout, inAll.Sub(now))
}

// pacedBody is a body with a minimum speed.
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
	b.pace.setDeadline()
	n, err := b.ReadCloser.Read(p)
	b.pace.moved += int64(n)
	if b.failed = err; err == io.EOF { //nolint:errorlint // a reader's own
		_ = b.pace.on.set(time.Time{}) // from here on the server watches the connection
	}
	return n, err
}

// finish limits how long the server reads the rest of a body that was not read to its end.
func (b *pacedBody) finish() {
	if b.failed == nil {
		_ = b.pace.on.set(time.Now().Add(stallTimeout))
	}
}

// countedBody is a decompressed body that is counted in the budget and limited in size.
type countedBody struct {
	src         io.Reader
	call        *inflight.Call
	limit, read int64
	header      http.Header // headers of the answer
}

// Read implements [io.Reader].
func (b *countedBody) Read(p []byte) (int, error) {
	n, err := b.src.Read(p[:min(int64(len(p)), b.limit-b.read+1)])
	switch b.read += int64(n); {
	case b.read > b.limit:
		err = errTooLarge(b.limit)
	case !b.call.Take(int64(n)):
		err = errTooManyBytes()
	default:
		return n, err
	}
	b.src = failing{err}
	b.header.Set("Connection", "close") // the rest of the body is not read
	return 0, err
}

// failing is a reader that always returns an error.
type failing struct{ err error }

// Read implements [io.Reader].
func (f failing) Read([]byte) (int, error) { return 0, f.err }

// pacedAnswer is an answer with a minimum reading speed.
type pacedAnswer struct {
	http.ResponseWriter
	pace pace
}

// Unwrap is for [http.ResponseController].
func (a *pacedAnswer) Unwrap() http.ResponseWriter { return a.ResponseWriter }

// WriteHeader implements [http.ResponseWriter].
func (a *pacedAnswer) WriteHeader(status int) {
	if status < http.StatusOK { // sent at once; others with the first bytes
		a.pace.setDeadline()
	}
	a.ResponseWriter.WriteHeader(status)
}

// Write implements [io.Writer].
func (a *pacedAnswer) Write(b []byte) (n int, err error) {
	for {
		if a.pace.moved+int64(len(b)) > keptByServer { // a small answer is sent by finish, with its deadline
			a.pace.setDeadline()
		}
		m, err := a.ResponseWriter.Write(b[n:min(len(b), n+writeChunk)])
		n += m
		a.pace.moved += int64(m)
		if err != nil || n == len(b) {
			return n, err
		}
	}
}

// Flush implements [http.Flusher].
func (a *pacedAnswer) Flush() { _ = a.FlushError() }

// FlushError is for [http.ResponseController]. What was flushed has been sent, so the time until the next bytes is that of
// the handler and not of the reader: a stream of events may be idle for as long as nothing happens.
func (a *pacedAnswer) FlushError() error {
	a.pace.setDeadline()
	err := http.NewResponseController(a.ResponseWriter).Flush()
	_ = a.pace.on.set(time.Time{}) // with HTTP/2 a deadline also ends a stream to which nothing is written
	a.pace = pace{on: a.pace.on}
	return err
}

// finish limits the time for writing what is still in the server's buffer.
func (a *pacedAnswer) finish() { _ = a.pace.on.set(time.Now().Add(stallTimeout)) }

// bodyRefusal returns the refusal for a body that could not be read.
func bodyRefusal(err error) *queue.Error {
	if e, ok := errors.AsType[*queue.Error](err); ok {
		return e
	}
	return queue.Refuse(queue.BadRequest, "the body broke off: %w", err)
}
