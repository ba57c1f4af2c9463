// Package refusal is the form of refusals in the queue's HTTP API: an RFC 9457 problem with
// additional members.
//
//	{"type": "urn:emitd:queue:StaleClaim", "title": "Conflict", "status": 409,
//	 "_tag": "StaleClaim", "message": "…", "detail": "…", "hint": "…", "retry_after_ms": 500, "holder": "…"}
//
// Programs act on "_tag". "message" and "detail" have the same text: osqueue's clients read the
// first, the standard defines the second.
package refusal

import (
	"cmp"
	"encoding/json"
	"maps"
	"net/http"
	"slices"
	"time"

	"github.com/emitd/emitd/internal/queue/wire/limits"
	"github.com/emitd/emitd/queue"
)

// Problem is a refusal as it is sent.
type Problem struct {
	Type         string    `json:"type"`
	Title        string    `json:"title"`
	Status       int       `json:"status"`
	Tag          queue.Tag `json:"_tag"`
	Message      string    `json:"message"`
	Detail       string    `json:"detail"`
	Hint         string    `json:"hint,omitempty"`
	RetryAfterMS int64     `json:"retry_after_ms,omitempty"`
	Holder       string    `json:"holder,omitempty"`
}

// MediaType is the media type of a refusal.
const MediaType = "application/problem+json"

// Tags of refusals that only the HTTP API makes.
const (
	NotFound         queue.Tag = "NotFound"         // 404: no such path
	MethodNotAllowed queue.Tag = "MethodNotAllowed" // 405
	Forbidden        queue.Tag = "Forbidden"        // 403: a page of another origin
	Unsupported      queue.Tag = "Unsupported"      // 501: this server does not support it
	Internal         queue.Tag = "Internal"         // 500: an error of the server
)

var statuses = map[queue.Tag]int{
	queue.BadRequest: http.StatusBadRequest, queue.TooManyJobs: http.StatusBadRequest,
	queue.Unauthorized: http.StatusUnauthorized, Forbidden: http.StatusForbidden,
	queue.JobNotFound: http.StatusNotFound, queue.QueueNotFound: http.StatusNotFound, NotFound: http.StatusNotFound,
	MethodNotAllowed: http.StatusMethodNotAllowed, queue.StaleClaim: http.StatusConflict, queue.TooManyShards: http.StatusConflict, queue.ReshardConflict: http.StatusConflict,
	queue.PayloadTooLarge: http.StatusRequestEntityTooLarge, queue.QueueFull: http.StatusTooManyRequests,
	queue.QueueNotOwner: http.StatusServiceUnavailable, queue.Unavailable: http.StatusServiceUnavailable,
	queue.UnknownOutcome: http.StatusServiceUnavailable, queue.Damaged: http.StatusServiceUnavailable,
	Unsupported: http.StatusNotImplemented, Internal: http.StatusInternalServerError,
}

// Tags lists all tags, sorted.
func Tags() []queue.Tag { return slices.Sorted(maps.Keys(statuses)) }

// HTTPStatus returns the HTTP status of a tag.
func HTTPStatus(t queue.Tag) int {
	if s, ok := statuses[t]; ok {
		return s
	}
	return http.StatusInternalServerError
}

// retryable are the tags after which the same call may be repeated. The value is the Retry-After if
// the refusal has none.
var retryable = map[queue.Tag]time.Duration{
	queue.QueueFull: time.Second, queue.QueueNotOwner: 200 * time.Millisecond,
	queue.Unavailable: 500 * time.Millisecond, queue.UnknownOutcome: 200 * time.Millisecond,
}

// Retryable reports whether the same call may succeed later, and how long to wait at least.
func Retryable(e *queue.Error) (time.Duration, bool) {
	least, ok := retryable[e.Tag]
	if e.RetryAfter > 0 {
		least = e.RetryAfter
	}
	return least, ok
}

// hints say what to do about a tag where the refusal itself does not.
var hints = map[queue.Tag]string{
	queue.BadRequest:      "docs/reference/queue-http.md lists the fields and their limits",
	queue.TooManyJobs:     "split the call",
	queue.Unauthorized:    "send the header Authorization: Bearer … with a line of the file that api.tokens_file names",
	Forbidden:             "name the origin in the server's configuration (api.origins)",
	queue.JobNotFound:     "check the id and the queue; an ended job is forgotten after the dedup window",
	queue.QueueNotFound:   "PUT /v1/queues/{queue} declares it",
	NotFound:              "docs/reference/queue-http.md lists the paths",
	MethodNotAllowed:      "the header Allow has the methods",
	queue.StaleClaim:      "claim another job; this one may be in other hands",
	queue.TooManyShards:   "declare fewer shards, remove queues that are no longer needed, or raise queue.max_shards on all nodes",
	queue.ReshardConflict: "wait until it has ended: GET /v1/queues/{queue} says how far it is",
	queue.PayloadTooLarge: "store it elsewhere and enqueue where it is",
	queue.QueueFull:       "try again a little later",
	queue.QueueNotOwner:   "ask again, or the holder",
	queue.Unavailable:     "ask again; a takeover takes about a second",
	queue.Damaged:         "an operator must look: emitd queue verify",
	queue.UnknownOutcome:  "repeat it with the same ids, keys or request_id",
	Unsupported:           "ask another node",
	Internal:              "the log of the server tells more",
}

// ProblemOf converts a refusal. It always has a hint: the refusal's own, or that of its tag.
func ProblemOf(e *queue.Error) *Problem {
	status := HTTPStatus(e.Tag)
	p := &Problem{
		Type: "urn:emitd:queue:" + string(e.Tag), Title: http.StatusText(status), Status: status,
		Tag: e.Tag, Message: e.Message, Detail: e.Message, Hint: cmp.Or(e.Hint, hints[e.Tag]), Holder: e.Holder,
	}
	if wait, ok := Retryable(e); ok {
		p.RetryAfterMS = limits.ToMillis(wait)
	}
	return p
}

// Refusal is the inverse of ProblemOf. It drops a hint that is only the tag's default.
func (p *Problem) Refusal() *queue.Error {
	message := p.Message
	if message == "" {
		message = p.Detail
	}
	e := queue.Refuse(p.Tag, "%s", message)
	if e.Holder = p.Holder; p.Hint != hints[p.Tag] {
		e.Hint = p.Hint
	}
	e.RetryAfter = time.Duration(p.RetryAfterMS) * time.Millisecond
	return e
}

// ParseProblem decodes a refusal from the body of an answer. If the body is not a refusal, for example a
// proxy's page, the status decides: Unavailable if it says so, otherwise another fitting tag or
// Internal.
func ParseProblem(status int, body []byte) *queue.Error {
	var p Problem
	if err := json.Unmarshal(body, &p); err == nil && p.Tag != "" {
		return p.Refusal()
	}
	switch status {
	case http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return queue.Refuse(queue.Unavailable, "status %d without a refusal in the body", status)
	case http.StatusUnauthorized:
		return queue.Refuse(queue.Unauthorized, "the server wants a token, or another one")
	case http.StatusForbidden:
		return queue.Refuse(Forbidden, "the server forbids it")
	case http.StatusRequestEntityTooLarge:
		return queue.Refuse(queue.PayloadTooLarge, "the body is larger than the server takes")
	case http.StatusNotFound:
		return queue.Refuse(NotFound, "the server has no such path").WithHint("is this the address of emitd?")
	}
	return queue.Refuse(Internal, "status %d without a refusal in the body", status)
}
