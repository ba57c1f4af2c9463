package resolve

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/emitd/emitd/storage/blob"
)

// Status returns what an HTTP status says about the effect of its request.
func Status(code int) (Effect, error) {
	switch code {
	case http.StatusPreconditionFailed:
		return Refused, nil
	case http.StatusConflict:
		return Conflict, blob.ErrUnavailable
	case http.StatusNotModified:
		return Failed, blob.ErrNotModified
	case http.StatusNotFound:
		return Failed, blob.ErrNotFound
	case http.StatusUnauthorized, http.StatusForbidden:
		return Failed, blob.ErrDenied
	case http.StatusRequestEntityTooLarge:
		return Failed, blob.ErrTooLarge
	case http.StatusTooManyRequests:
		return NotSent, blob.ErrThrottled
	case http.StatusNotImplemented:
		return Failed, blob.ErrUnfit
	case http.StatusServiceUnavailable:
		return Unknown, blob.ErrThrottled
	case http.StatusRequestTimeout:
		return Unknown, blob.ErrUnavailable
	}
	if code >= 500 {
		return Unknown, blob.ErrUnavailable
	}
	return Failed, blob.ErrUnavailable
}

// longestRetryAfter is how many seconds a store can make a caller wait. A proxy that is being maintained may say an hour, and be
// back after a minute: whoever believed it would stand still for the rest. A request a minute burdens no store.
const longestRetryAfter = 60

// RetryAfter reads the Retry-After header if it is in seconds, at most a minute.
func RetryAfter(header http.Header) time.Duration {
	seconds, err := strconv.Atoi(header.Get("Retry-After"))
	if err != nil || seconds < 0 {
		return 0
	}
	return time.Duration(min(seconds, longestRetryAfter)) * time.Second
}

// Transport returns what an error without an answer says. Only an error from before the connection
// was made proves that nothing was sent. The address is left out of the error, because the
// addresses of some stores contain signatures.
func Transport(ctx context.Context, err error) Answer {
	if u, ok := errors.AsType[*url.Error](err); ok {
		err = u.Err
	}
	answer := Answer{Effect: Unknown, Err: &blob.Error{Kind: blob.ErrUnavailable, Err: err}}
	if ctx.Err() != nil {
		answer.Err.Err = withCause(ctx.Err(), err)
	}
	switch {
	case untrusted(err):
		answer.Effect = Failed // waiting does not make a certificate valid
	case neverConnected(err):
		answer.Effect = NotSent
	}
	return answer
}

// A connection of HTTP/2 on which nothing came for silence is tested, and closed without an answer within pingTimeout. A full
// send buffer may hold the test back for about as long as an attempt may take.
const (
	silence     = 10 * time.Second
	pingTimeout = 15 * time.Second
)

// CheckConnections makes a transport close connections of HTTP/2 whose server is not there any more. All requests share one
// connection. If the network loses it without a word, because a firewall forgot it or a gateway was replaced, the operating system
// notices after about 15 minutes, and until then each request would wait on it in vain.
func CheckConnections(t *http.Transport) {
	if t.HTTP2 == nil {
		t.HTTP2 = &http.HTTP2Config{SendPingTimeout: silence, PingTimeout: pingTimeout}
	}
}

// CheckIdleConnections makes the connections of a dialer notice within about 25 s that their peer is not there any more, where they carry no
// request. A request that runs into its time limit closes its own connection of HTTP/1.1, but the next one would take another that
// is lost as well, as long as one is left.
func CheckIdleConnections(d *net.Dialer) {
	d.KeepAliveConfig = net.KeepAliveConfig{Enable: true, Idle: silence, Interval: pingTimeout / 3, Count: 3}
}

// connection records whether a request got a connection.
type connection struct{ wanted, got atomic.Bool }

// watch makes a context that reports to a connection.
func watch(ctx context.Context) (context.Context, *connection) {
	c := &connection{}
	return httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GetConn: func(string) { c.wanted.Store(true) },
		GotConn: func(httptrace.GotConnInfo) { c.got.Store(true) },
	}), c
}

// never reports whether a request certainly got no connection. Then nothing was sent, whatever
// ended the wait. If the transport is not known to report connections and has reported none, that
// proves nothing.
func (c *connection) never(traced bool) bool { return (traced || c.wanted.Load()) && !c.got.Load() }

func neverConnected(err error) bool {
	if op, ok := errors.AsType[*net.OpError](err); ok && op.Op == "dial" {
		return true
	}
	_, unresolved := errors.AsType[*net.DNSError](err)
	return unresolved
}

func untrusted(err error) bool {
	_, verification := errors.AsType[*tls.CertificateVerificationError](err)
	_, record := errors.AsType[tls.RecordHeaderError](err)
	_, authority := errors.AsType[x509.UnknownAuthorityError](err)
	return verification || record || authority
}
