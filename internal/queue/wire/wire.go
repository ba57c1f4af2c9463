// Package wire has the JSON bodies of the queue's HTTP API and their conversion to and from the
// values of package queue. The server and the Go client share it, so that each field is named once.
//
// Rules of the bodies:
//
//   - Names are in snake case. Durations are whole milliseconds in fields that end in _ms; times
//     are RFC 3339.
//   - A payload or result is any JSON value in "payload" ("result"). Bytes that are not JSON are in
//     "payload_base64" ("result_base64"). At most one of the two is set. The bytes of a JSON value
//     are preserved, including inner white space.
//   - Unknown fields are refused: a misspelled "max_atempts" must not mean the default.
//   - Zero values are omitted from answers.
//
// Package refusal has the answers to refused calls, package batch the same bodies as protobuf.
package wire

//go:generate go run github.com/bufbuild/buf/cmd/buf@v1.72.0 generate

import (
	"bytes"
	"encoding/json"
	"time"
	"unicode/utf8"

	"github.com/emitd/emitd/internal/queue/wire/refusal"
	"github.com/emitd/emitd/queue"
)

// Job is a job to enqueue.
type Job struct {
	// ID is drawn if it is missing. The same one again, within the deduplication window, changes nothing.
	ID string `json:"id,omitempty"`
	// Key is what the ID is derived from. It takes the place of an ID.
	Key string `json:"key,omitempty"`
	// Type is the type that workers claim by.
	Type string `json:"type,omitempty"`
	// Group keeps jobs on one shard.
	Group string `json:"group,omitempty"`
	// Payload is any JSON value, whose bytes are passed on unchanged.
	Payload json.RawMessage `json:"payload,omitempty"`
	// PayloadBase64 has other bytes.
	PayloadBase64 []byte    `json:"payload_base64,omitempty"`
	Priority      int       `json:"priority,omitempty"` // from -128 to 127, the higher first
	DelayMS       int64     `json:"delay_ms,omitempty"`
	RunAt         time.Time `json:"run_at,omitzero"`
	// TTLMS is how long the job may wait.
	TTLMS int64  `json:"ttl_ms,omitempty"`
	Retry *Retry `json:"retry,omitempty"`
}

// Retry is the policy after a failed attempt.
type Retry struct {
	MaxAttempts  int     `json:"max_attempts,omitempty"`   // default 3
	BackoffMS    int64   `json:"backoff_ms,omitempty"`     // default 1000
	MaxBackoffMS int64   `json:"max_backoff_ms,omitempty"` // default 300000
	Factor       float64 `json:"factor,omitempty"`         // default 2
	Jitter       float64 `json:"jitter,omitempty"`         // default 0.2
	Back         bool    `json:"back,omitempty"`           // a retried job goes behind the jobs that were submitted meanwhile
}

// EnqueueRequest submits jobs: either a list in "jobs", or one job whose fields are in the body
// itself.
type EnqueueRequest struct {
	Job
	Jobs []Job `json:"jobs,omitempty"`
}

// EnqueueResponse has the receipts, in the order of the jobs.
type EnqueueResponse struct {
	Jobs []Receipt `json:"jobs"`
}

// Receipt confirms that a job is durable.
type Receipt struct {
	ID        string      `json:"id"`
	Duplicate bool        `json:"duplicate,omitempty"`
	State     queue.State `json:"state"`
}

// ClaimRequest asks for jobs.
type ClaimRequest struct {
	// Worker names the claimer.
	Worker string   `json:"worker,omitempty"`
	Types  []string `json:"types,omitempty"` // none: any
	Max    int      `json:"max,omitempty"`   // default 1
	// WaitMS is how long an empty claim waits, at most 60000.
	WaitMS int64 `json:"wait_ms,omitempty"`
	// VisibilityMS is how long the claim lasts unless it is extended. By default the queue decides.
	VisibilityMS int64 `json:"visibility_ms,omitempty"`
	// RequestID makes a repetition harmless: the same one gets the same jobs.
	RequestID string `json:"request_id,omitempty"`
	// Tokenless says that the claim is settled by its worker alone.
	Tokenless bool `json:"tokenless,omitempty"`
}

// ClaimResponse has the claimed jobs; if there are none, an empty list.
type ClaimResponse struct {
	Jobs []Claimed `json:"jobs"`
}

// Claimed is a job that a worker has claimed.
type Claimed struct {
	Info
	Payload       json.RawMessage `json:"payload,omitempty"`
	PayloadBase64 []byte          `json:"payload_base64,omitempty"`
	Token         string          `json:"token,omitempty"` // proves the claim
	VisibilityMS  int64           `json:"visibility_ms"`
}

// Settlement settles one claim. In the forms for one claim (…/jobs/{id}/complete and the like),
// verb and ID are in the path and the rest in the body.
type Settlement struct {
	Verb         queue.Verb      `json:"verb,omitempty"`
	ID           string          `json:"id,omitempty"`
	Token        string          `json:"token,omitempty"`
	Worker       string          `json:"worker,omitempty"` // of a claim without a token
	VisibilityMS int64           `json:"visibility_ms,omitempty"`
	Result       json.RawMessage `json:"result,omitempty"`
	ResultBase64 []byte          `json:"result_base64,omitempty"`
	Cause        string          `json:"cause,omitempty"`
	RetryAfterMS *int64          `json:"retry_after_ms,omitempty"` // by default, the policy decides
	Dead         bool            `json:"dead,omitempty"`           // no further attempt
}

// SettleRequest has the settlements of a call.
type SettleRequest struct {
	Settlements []Settlement `json:"settlements"`
}

// SettleResponse has the outcomes in the order of the settlements.
type SettleResponse struct {
	Outcomes []Outcome `json:"outcomes"`
}

// Outcome is the answer to one settlement.
type Outcome struct {
	ID           string           `json:"id"`
	State        queue.State      `json:"state,omitempty"`
	VisibilityMS int64            `json:"visibility_ms,omitempty"`
	Error        *refusal.Problem `json:"error,omitempty"`
}

// Info describes a job for lists.
type Info struct {
	ID           string          `json:"id"`
	Queue        string          `json:"queue,omitempty"`
	Type         string          `json:"type,omitempty"`
	Group        string          `json:"group,omitempty"`
	State        queue.State     `json:"state"`
	Priority     int             `json:"priority,omitempty"`
	Attempts     int             `json:"attempts"`   // executions that began
	Deliveries   int             `json:"deliveries"` // times that a worker was given the job
	MaxAttempts  int             `json:"max_attempts,omitempty"`
	Worker       string          `json:"worker,omitempty"`
	CreatedAt    time.Time       `json:"created_at,omitzero"`
	RunAt        time.Time       `json:"run_at,omitzero"`
	Until        time.Time       `json:"until,omitzero"`
	ExpiresAt    time.Time       `json:"expires_at,omitzero"`
	EndedAt      time.Time       `json:"ended_at,omitzero"`
	Cause        string          `json:"cause,omitempty"`
	Size         int             `json:"size"` // of the payload, in bytes
	Result       json.RawMessage `json:"result,omitempty"`
	ResultBase64 []byte          `json:"result_base64,omitempty"`
}

// JobView is a job with its payload.
type JobView struct {
	Info
	Payload       json.RawMessage `json:"payload,omitempty"`
	PayloadBase64 []byte          `json:"payload_base64,omitempty"`
}

// ListResponse is a page of a list. An empty cursor means that it is the last one.
type ListResponse struct {
	Jobs   []JobView `json:"jobs"`
	Cursor string    `json:"cursor,omitempty"`
}

// split returns a payload as one of the two fields: JSON as it is, other bytes for base64.
func split(b []byte) (text json.RawMessage, bin []byte) {
	switch {
	case len(b) == 0:
		return nil, nil
	case plain(b):
		return b, nil
	default:
		return nil, b
	}
}

// plain reports whether b can be part of a JSON body unchanged: exactly one valid value with
// nothing around it.
func plain(b []byte) bool {
	return b[0] > ' ' && b[len(b)-1] > ' ' && utf8.Valid(b) && json.Valid(b)
}

// join is the inverse of split. The returned bytes belong to the caller.
func join(field string, text json.RawMessage, bin []byte) ([]byte, error) {
	switch {
	case text != nil && bin != nil:
		return nil, queue.Refuse(queue.BadRequest, "%s and %s_base64 are both given", field, field).
			WithHint("a JSON value in %s, or other bytes in %s_base64", field, field)
	case text != nil:
		return bytes.TrimSpace(text), nil
	default:
		return bin, nil
	}
}
