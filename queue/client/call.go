package client

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptrace"
	"slices"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/emitd/emitd/internal/backoff"
	"github.com/emitd/emitd/internal/inflight"
	"github.com/emitd/emitd/internal/queue/wire/batch"
	"github.com/emitd/emitd/internal/queue/wire/queuev1"
	"github.com/emitd/emitd/internal/queue/wire/refusal"
	"github.com/emitd/emitd/queue"
)

// maxAnswer is the largest accepted answer: a thousand jobs with inline payloads.
const maxAnswer = 512 << 20

// request is one call in a form that can be sent again.
type request struct {
	queue, method, path string
	kind                string // media type of the body
	body                []byte
	wait                time.Duration // additional time that the server may take
	repeatable          bool          // sending it twice has no further effect
	read                func(body []byte) error
	// before returns what is sent before the call is repeated after an unknown outcome; found reports whether it has got
	// what the call has done, which then needs no repetition. May be nil.
	before func() (request, error)
	found  func() bool
}

// call sends a call until it is answered, may not be repeated, or time is up.
func (c *Client) call(ctx context.Context, r request) error {
	if _, bounded := ctx.Deadline(); !bounded && c.cfg.RetryFor > 0 && !c.cfg.NoRetry {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, c.cfg.RetryFor+r.wait)
		defer cancel()
	}
	var (
		unsure bool // an attempt may have taken effect
		last   *queue.Error
		failed place
		tried  []place
	)
	retries := backoff.Policy{First: c.cfg.Backoff, Limit: c.cfg.MaxBackoff}
	for failures := 1; ; failures++ {
		p, err := c.find(ctx, r.queue, failed)
		found := err == nil
		if found {
			err = c.once(ctx, p, r, unsure)
		}
		if err == nil {
			return nil
		}
		e := asRefusal(err)
		least, again := refusal.Retryable(e)
		if !again {
			return e
		}
		if !found || errors.Is(e, errNoAnswer) {
			least = 0 // no broker has asked for a pause
		}
		unsure = unsure || e.Tag == queue.UnknownOutcome
		if last == nil || ctx.Err() == nil { // a timeout says less than the error before
			last = e
		}
		if e.Tag != queue.QueueFull {
			c.placeFailed(r.queue, p, e.Holder)
			failed = p
		}
		if c.cfg.NoRetry || unsure && !r.repeatable {
			return e
		}
		if least > c.cfg.MaxBackoff && endsBefore(ctx, least) {
			if !unsure {
				return e
			}
			return giveUp(last, unsure, errNotInTime)
		}
		if tried = append(tried, p); c.hasUntriedPlace(ctx, r.queue, e, tried) {
			continue
		}
		if e.Holder == "" || e.Tag == queue.QueueFull {
			least = max(min(least, c.cfg.MaxBackoff), retries.Jittered(failures))
		} else {
			least = backoff.Jitter(c.cfg.Backoff)
		}
		if err := sleep(ctx, least); err != nil {
			return giveUp(last, unsure, err)
		}
	}
}

// hasUntriedPlace reports whether another place is known that was not tried yet. When a node is gone, or
// names the holder, the next place is called without a pause. If a node that answered asks for a
// pause, the client pauses.
func (c *Client) hasUntriedPlace(ctx context.Context, name string, e *queue.Error, tried []place) bool {
	if !errors.Is(e, errNoAnswer) && (e.Holder == "" || e.Tag == queue.QueueFull) {
		return false
	}
	next, err := c.find(ctx, name, tried[len(tried)-1])
	if err != nil {
		return false
	}
	if slices.Contains(tried, next) {
		c.forgetPlace(name, next) // after the pause, there may be another place
		return false
	}
	return true
}

// errNoAnswer is the cause when a node is gone or does not respond.
var errNoAnswer = errors.New("no answer")

// errNotInTime ends a call to a broker that can do nothing for longer than the call may last, such as for the rest of
// a day whose budget of writes is used up.
var errNotInTime = errors.New("the broker can do nothing in the time that is left")

// giveUp returns the error of a call when time is up.
func giveUp(last *queue.Error, unsure bool, err error) error {
	if unsure {
		return queue.Refuse(queue.UnknownOutcome, "%w; the last attempt: %s", err, last.Message).
			WithHint("it may have been carried out; repeat it with the same ids, keys or request_id")
	}
	return queue.Refuse(last.Tag, "%w; the last attempt: %s", err, last.Message).WithHint("%s", last.Hint)
}

func asRefusal(err error) *queue.Error {
	if e, ok := errors.AsType[*queue.Error](err); ok {
		return e
	}
	return queue.Refuse(refusal.Internal, "%w", err)
}

// once sends a call once. If an earlier attempt may have had an effect, it looks for that first.
func (c *Client) once(ctx context.Context, p place, r request, unsure bool) error {
	if unsure && r.before != nil {
		before, err := r.before()
		if err == nil {
			err = c.attempt(ctx, p, before)
		}
		if err != nil || r.found() {
			return err
		}
	}
	return c.attempt(ctx, p, r)
}

// attempt sends a request once.
func (c *Client) attempt(ctx context.Context, p place, r request) error {
	bounded, cancel := context.WithTimeout(ctx, c.cfg.Timeout+r.wait)
	defer cancel()
	var connected atomic.Bool // before that, nothing was sent
	bounded = httptrace.WithClientTrace(bounded, &httptrace.ClientTrace{
		GotConn: func(httptrace.GotConnInfo) { connected.Store(true) },
	})
	var body io.Reader
	if r.body != nil {
		body = bytes.NewReader(r.body)
	}
	req, err := http.NewRequestWithContext(bounded, r.method, p.base+r.path, body)
	if err != nil {
		return queue.Refuse(queue.BadRequest, "%s %s: %w", r.method, r.path, err)
	}
	c.setHeaders(req, r)
	resp, err := c.http.Do(req)
	if err != nil {
		return r.noAnswerError(err, connected.Load())
	}
	defer resp.Body.Close()
	answer, err := readAll(ctx, resp)
	if err != nil {
		return r.noAnswerError(err, true)
	}
	if resp.StatusCode/100 != 2 {
		return r.decodeRefusal(resp.StatusCode, answer)
	}
	if err := r.read(answer); err != nil {
		// The call took effect, but the answer is invalid: it is not from this server.
		return queue.Refuse(refusal.Internal, "the answer to %s %s: %w", r.method, r.path, err)
	}
	return nil
}

func (c *Client) setHeaders(req *http.Request, r request) {
	if r.body != nil {
		req.Header.Set("Content-Type", r.kind)
	}
	if r.kind == protobuf {
		req.Header.Set("Connect-Protocol-Version", "1")
	}
	req.Header.Set("User-Agent", "emitd-queue-client")
	if c.cfg.Token != "" {
		req.Header.Set("Authorization", "Bearer "+c.cfg.Token)
	}
	if c.cfg.Prepare != nil {
		c.cfg.Prepare(req)
	}
}

// readAll reads an answer into a buffer of its size. A node that forwards a call holds the answer
// for its caller, and counts it in its memory budget.
func readAll(ctx context.Context, resp *http.Response) ([]byte, error) {
	memory := inflight.FromContext(ctx)
	if n := resp.ContentLength; n >= 0 && n <= maxAnswer {
		if !memory.Take(n) {
			return nil, errCrowded
		}
		b := make([]byte, n)
		_, err := io.ReadFull(resp.Body, b)
		return b, err
	}
	var b bytes.Buffer
	for {
		n, err := io.CopyN(&b, resp.Body, answerPiece)
		switch {
		case !memory.Take(n):
			return nil, errCrowded
		case b.Len() > maxAnswer:
			return nil, errors.New("the answer is too large")
		case errors.Is(err, io.EOF):
			return b.Bytes(), nil
		case err != nil:
			return nil, err
		}
	}
}

const answerPiece = 64 << 10

var errCrowded = errors.New("this process holds too many large answers for its callers")

// noAnswerError returns the error of a call without an answer. Without a connection, nothing was sent;
// otherwise a write may have taken effect.
func (r request) noAnswerError(err error, connected bool) *queue.Error {
	if !connected || r.method == http.MethodGet {
		return queue.Refuse(queue.Unavailable, "%w: %w", errNoAnswer, err)
	}
	return queue.Refuse(queue.UnknownOutcome, "%w: %w", errNoAnswer, err)
}

// decodeRefusal decodes a refusal in either form: a problem, or Connect's error with a Refusal in it.
func (r request) decodeRefusal(status int, body []byte) *queue.Error {
	if r.kind == protobuf {
		if e := connectRefusal(body); e != nil {
			return e
		}
	}
	e := refusal.ParseProblem(status, body)
	gateway := status == http.StatusBadGateway || status == http.StatusGatewayTimeout
	if gateway && e.Tag == queue.Unavailable && r.method != http.MethodGet {
		// A proxy that lost the connection to the server does not know whether the call had
		// an effect.
		return queue.Refuse(queue.UnknownOutcome, "%s", e.Message)
	}
	return e
}

// connectError is an error in Connect's own form.
type connectError struct {
	Code    string `json:"code"`
	Message string `json:"message"`
	Details []struct {
		Type  string `json:"type"`
		Value string `json:"value"`
	} `json:"details"`
}

// connectRefusal returns the refusal in an error of Connect; nil if the body is none, for example a
// proxy's page.
func connectRefusal(body []byte) *queue.Error {
	var e connectError
	if err := json.Unmarshal(body, &e); err == nil {
		return e.refusal()
	}
	return nil
}

func (e *connectError) refusal() *queue.Error {
	for _, d := range e.Details {
		var r queuev1.Refusal
		raw, err := base64.RawStdEncoding.DecodeString(d.Value)
		if err == nil && d.Type == "emitd.queue.v1.Refusal" && proto.Unmarshal(raw, &r) == nil && r.GetTag() != "" {
			return batch.Refused(&r)
		}
	}
	switch e.Code {
	case "invalid_argument":
		return queue.Refuse(queue.BadRequest, "%s", e.Message)
	case "resource_exhausted": // Connect's own message limit
		return queue.Refuse(queue.PayloadTooLarge, "%s", e.Message)
	case "unimplemented":
		return queue.Refuse(refusal.NotFound, "%s", e.Message)
	}
	return nil
}

// sleep waits for d, unless ctx would end during the pause: there would be no attempt after it.
func sleep(ctx context.Context, d time.Duration) error {
	if endsBefore(ctx, d) {
		return context.DeadlineExceeded
	}
	return backoff.Sleep(ctx, d)
}

// endsBefore reports whether ctx ends before d has passed.
func endsBefore(ctx context.Context, d time.Duration) bool {
	deadline, ok := ctx.Deadline()
	return ok && time.Until(deadline) < d
}
