package plaincall

import (
	"context"
	"errors"
	"net"
	"net/http"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"
)

// watchAfter is how long a call lasts before it is watched whether its caller goes away.
const watchAfter = 20 * time.Millisecond

// lingerTime is how long the rest of what a caller sends is read after the last answer, so that the answer is not lost
// because of bytes that nobody reads.
const lingerTime = 500 * time.Millisecond

// A connection is idle while it waits for a call, busy while it has one, and gone once it was closed or passed on.
const (
	idle int32 = iota
	busy
	gone
)

// conn is a connection whose calls have all been plain.
type conn struct {
	net.Conn
	l      *Listener
	state  atomic.Int32
	ctx    context.Context // ends with the connection, or when the caller of a watched call goes away
	cancel context.CancelFunc

	buf         []byte
	first, end  int  // buf[first:end] was read and not used yet
	called      bool // a call was answered
	readUntil   time.Time
	writeUntil  time.Time
	parser      parser
	answer      answer
	timer       *time.Timer // begins the watch
	mu          sync.Mutex  // guards calling and watch
	calling     bool
	watch       chan struct{} // closed when the watching read has returned; nil: none has begun
	interrupted atomic.Bool   // the watching read was interrupted, because the call has been answered
}

// serve answers the connection's calls until one is not plain.
func (c *conn) serve() {
	defer c.l.serving.Done()
	defer c.cancel()
	defer c.recoverPanic()
	c.parser.base = http.Request{
		Method: http.MethodPost, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, RemoteAddr: c.RemoteAddr().String(),
	}
	c.parser.path, c.answer.c = c.l.cfg.Path, c
	c.report(http.StateNew)
	for wait := c.l.cfg.HeaderTimeout; c.await(wait); wait = c.l.cfg.IdleTimeout {
		for c.skipLineBreaks(); c.first < c.end; c.skipLineBreaks() {
			r, size := c.parser.parse(c.buf[c.first:c.end])
			if size == 0 {
				c.passOn()
				return
			}
			c.first += size
			c.called = true
			if !c.answerCall(r) {
				c.linger()
				c.close()
				return
			}
		}
	}
	c.close()
}

// skipLineBreaks skips line breaks behind the body of a call, as net/http does: some clients send them.
func (c *conn) skipLineBreaks() {
	for n := 0; c.called && n < 4 && c.first < c.end && (c.buf[c.first] == '\r' || c.buf[c.first] == '\n'); n++ {
		c.first++
	}
}

// await waits for the first bytes of the next call.
func (c *conn) await(longest time.Duration) bool {
	c.first, c.end = 0, 0
	if !c.state.CompareAndSwap(busy, idle) && c.state.Load() != idle || c.l.closing.Load() {
		return false
	}
	if until := time.Now().Add(longest); until.Sub(c.readUntil).Abs() > deadlineSlack {
		c.readUntil = until
		_ = c.SetReadDeadline(until) // an error shows in Read
	}
	n, _ := c.Read(c.buf)
	c.end = n
	return n > 0 && c.state.CompareAndSwap(idle, busy)
}

// setWriteDeadline sets the deadline for sending, unless the present one is close enough.
func (c *conn) setWriteDeadline(at time.Time) {
	if over := c.writeUntil.Sub(at); at.IsZero() && c.writeUntil.IsZero() || !at.IsZero() && over >= 0 && over <= deadlineSlack {
		return
	}
	if !at.IsZero() {
		at = at.Add(deadlineSlack)
	}
	c.writeUntil = at
	_ = c.SetWriteDeadline(at)
}

// answerCall calls the handler and sends its answer. It returns whether the connection can have another call.
func (c *conn) answerCall(r *http.Request) bool {
	c.report(http.StateActive)
	kept, _ := buffers.Get().(*[]byte)
	c.answer.body = *kept
	c.answer.begin()
	c.beginWatch()
	ctx, endCall := context.WithCancel(c.ctx) // ends with the call, as with net/http: what the handler has tied to it must end
	defer endCall()
	c.l.cfg.Handler.ServeHTTP(&c.answer, r.WithContext(ctx))
	c.endWatch()
	again := c.answer.finish()
	*kept, c.answer.body = c.answer.body, nil
	buffers.Put(kept)
	c.report(http.StateIdle)
	return again && c.ctx.Err() == nil
}

// beginWatch begins to watch the caller if the call is not answered soon.
func (c *conn) beginWatch() {
	c.mu.Lock()
	c.calling = true
	c.mu.Unlock()
	if c.timer == nil {
		c.timer = time.AfterFunc(watchAfter, c.watchCaller)
	} else {
		c.timer.Reset(watchAfter)
	}
}

// watchCaller reads from the connection: an end or an error means that the caller has gone. Bytes are kept for the next
// call. Whoever has sent the next call already is not watched.
func (c *conn) watchCaller() {
	c.mu.Lock()
	// The timer of the call before may be late, and have begun the watch of this call already.
	if !c.calling || c.watch != nil || c.first < c.end || c.end == len(c.buf) {
		c.mu.Unlock()
		return
	}
	watch := make(chan struct{})
	c.watch, c.readUntil = watch, time.Time{}
	_ = c.SetReadDeadline(time.Time{})
	c.mu.Unlock()
	defer close(watch)
	n, err := c.Read(c.buf[c.end:])
	c.end += n // endWatch waits for this
	if err != nil && !c.interrupted.Load() {
		c.cancel()
	}
}

// endWatch ends the watch of the call that was answered.
func (c *conn) endWatch() {
	c.timer.Stop()
	c.mu.Lock()
	c.calling = false
	watch := c.watch
	c.watch = nil
	c.mu.Unlock()
	if watch == nil {
		return
	}
	c.interrupted.Store(true)
	_ = c.SetReadDeadline(time.Unix(1, 0))
	<-watch
	c.interrupted.Store(false)
}

// passOn gives the connection to the server, with the bytes that were read.
func (c *conn) passOn() {
	_ = c.SetDeadline(time.Time{})
	if !c.l.pass(&passedConn{Conn: c.Conn, rest: c.buf[c.first:c.end]}) {
		c.close()
	}
	c.state.Store(gone)
	c.l.forget(c)
}

// close closes the connection.
func (c *conn) close() {
	c.state.Store(gone)
	_ = c.Close()
	c.l.forget(c)
	c.report(http.StateClosed)
}

// linger ends the sending side and reads what the caller still sends, for a moment.
func (c *conn) linger() {
	half, ok := c.Conn.(interface{ CloseWrite() error })
	if !ok || half.CloseWrite() != nil {
		return
	}
	_ = c.SetReadDeadline(time.Now().Add(lingerTime))
	for {
		if _, err := c.Read(c.buf); err != nil {
			return
		}
	}
}

// report tells what happens to the connection.
func (c *conn) report(s http.ConnState) {
	if c.l.cfg.State != nil {
		c.l.cfg.State(c.Conn, s)
	}
}

// recoverPanic closes the connection of a handler that panicked.
func (c *conn) recoverPanic() {
	why := recover()
	if why == nil {
		return
	}
	if err, ok := why.(error); (!ok || !errors.Is(err, http.ErrAbortHandler)) && c.l.cfg.ErrorLog != nil {
		c.l.cfg.ErrorLog.Printf("panic serving %v: %v\n%s", c.RemoteAddr(), why, debug.Stack())
	}
	c.close()
}

// passedConn is a connection that was passed on. The bytes that were read come first.
type passedConn struct {
	net.Conn
	rest []byte
}

// Read implements [net.Conn].
func (c *passedConn) Read(b []byte) (int, error) {
	if len(c.rest) == 0 {
		return c.Conn.Read(b)
	}
	n := copy(b, c.rest)
	if c.rest = c.rest[n:]; len(c.rest) == 0 {
		c.rest = nil
	}
	return n, nil
}

// Unwrap returns the connection that was accepted.
func (c *passedConn) Unwrap() net.Conn { return c.Conn }
