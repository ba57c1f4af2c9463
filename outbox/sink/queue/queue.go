// Package queue is the sink that submits messages as jobs to emitd's own queue.
//
// A message becomes a job whose ID is the message's ID, so that a repetition within the queue's
// deduplication window changes nothing. The job's group is the key, so jobs of a key are on one shard, in
// their order. The job's type is the message's type. The queue is the one that the topic names, or
// Config.Queue. The payload is passed on unchanged. A job has no place for headers and trace context. To
// deliver those, use another sink, put them into the payload, or set Config.Envelope, which wraps the
// payload in a JSON object with everything the message carries.
//
// A call is stored durably as a whole or not promised at all, so messages of one key may share it. If the
// queue refuses a call because of one job, the sink submits the call's jobs one by one to find it.
//
// A key that is longer than a group may be is replaced by its digest. Equal keys have equal digests,
// so its jobs stay on one shard and in their order. A type
// that is longer than the queue allows is a permanent error of the queue.
//
// # What an error means
//
//	refused as bad, too large, or no such queue       permanent (Config.Queue: the sink is down)
//	no broker, no memory, token refused                the sink is down, with the broker's pause
//	a full queue                                       likewise: the broker's answer is that of no memory
//	no answer within Config.Timeout                    that of a call that hangs; the job's ID makes another attempt safe
//	outcome unknown                                    another attempt, likewise
package queue

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"time"
	"unicode/utf8"

	"github.com/emitd/emitd/outbox"
	"github.com/emitd/emitd/outbox/sink"
	"github.com/emitd/emitd/queue"
)

// Config configures the sink. Only Producer is required.
type Config struct {
	// Queue receives all messages, instead of the queue that each topic names.
	Queue string `yaml:"queue"`
	// Envelope wraps the payload: {"id", "topic", "key", "type", "headers", "traceparent", "tracestate",
	// "created_at", "payload"}. A payload that is not JSON becomes the string payload_base64 instead.
	Envelope bool `yaml:"envelope"`
	// Timeout bounds one call; default 30 s.
	Timeout time.Duration `yaml:"timeout"`
	// Rows and Bytes bound one call; default 500 and 4 MiB.
	Rows  int `yaml:"rows"`
	Bytes int `yaml:"bytes"`
	// Producer is the broker in this process, or a client of a broker.
	Producer queue.Producer `yaml:"-"`
}

// Sink submits messages. It is safe for concurrent use.
type Sink struct{ cfg Config }

var _ outbox.Sink = (*Sink)(nil)

// New checks the configuration.
func New(_ context.Context, cfg Config) (*Sink, error) {
	switch {
	case cfg.Producer == nil:
		return nil, errors.New("queue: there is no producer")
	case cfg.Timeout < 0 || cfg.Rows < 0 || cfg.Rows > queue.MaxCall || cfg.Bytes < 0:
		return nil, fmt.Errorf("queue: timeout, rows (at most %d) and bytes must not be negative", queue.MaxCall)
	}
	cfg.Timeout = sink.DurationOr(cfg.Timeout, 30*time.Second)
	if cfg.Rows == 0 {
		cfg.Rows = 500
	}
	if cfg.Bytes == 0 {
		cfg.Bytes = 4 << 20
	}
	return &Sink{cfg: cfg}, nil
}

// Close does nothing, because the producer belongs to the caller.
func (s *Sink) Close() error { return nil }

// Deliver submits the rows.
func (s *Sink) Deliver(ctx context.Context, d outbox.Delivery) []error {
	jobs := make([]queue.Job, len(d.Rows))
	for i, row := range d.Rows {
		jobs[i] = s.job(row)
	}
	plan := sink.Plan{
		Parallel: 4, Rows: s.cfg.Rows, Bytes: s.cfg.Bytes, Atomic: true,
		Size:   func(i int) int { return len(jobs[i].Payload) + len(jobs[i].Group) + len(jobs[i].Type) + 64 },
		Target: func(i int) string { return s.target(d.Rows[i]) },
	}
	return sink.Run(ctx, d.Rows, plan, func(ctx context.Context, rows []int) []error {
		call := make([]queue.Job, len(rows))
		for n, i := range rows {
			call[n] = jobs[i]
		}
		return []error{s.enqueue(ctx, s.target(d.Rows[rows[0]]), call)}
	})
}

func (s *Sink) target(row outbox.Row) string {
	if s.cfg.Queue != "" {
		return s.cfg.Queue
	}
	return row.Topic
}

// job returns the job of a row.
func (s *Sink) job(row outbox.Row) queue.Job {
	j := queue.Job{ID: row.ID.String(), Type: row.Type, Group: row.Key, Payload: row.Payload}
	if len(j.Group) > maxGroup {
		sum := sha256.Sum256([]byte(j.Group))
		j.Group = hex.EncodeToString(sum[:])
	}
	if s.cfg.Envelope {
		j.Payload = envelope(row)
	}
	return j
}

// maxGroup is the longest group that a queue accepts, in bytes.
const maxGroup = queue.MaxType

// enqueue makes one call.
func (s *Sink) enqueue(ctx context.Context, name string, jobs []queue.Job) error {
	bounded, cancel := sink.WithDeadline(ctx, sink.TimeoutError{What: "the queue", After: s.cfg.Timeout})
	defer cancel()
	_, err := s.cfg.Producer.Enqueue(bounded, name, jobs)
	if err == nil {
		return nil
	}
	return s.classify(bounded, name, err)
}

// classify returns the kind of a refusal.
func (s *Sink) classify(ctx context.Context, name string, err error) error {
	what := fmt.Sprintf("enqueue to %.80q", name)
	e, _ := errors.AsType[*queue.Error](err)
	var kind error
	switch tag := queue.TagOf(err); {
	case tag == queue.BadRequest, tag == queue.PayloadTooLarge, tag == queue.TooManyJobs:
		return sink.Permanent("%s: %w", what, err)
	case tag == queue.QueueNotFound && s.cfg.Queue == "":
		return sink.Missing("%s: %w", what, err)
	case tag == queue.QueueNotFound, tag == queue.Unauthorized, tag == queue.Unavailable, tag == queue.QueueNotOwner, tag == queue.QueueFull, tag == queue.Damaged:
		kind = outbox.ErrSinkDown
	case ctx.Err() != nil:
		return fmt.Errorf("%s: not confirmed: %w", what, context.Cause(ctx))
	case sink.Unreachable(err):
		kind = outbox.ErrSinkDown
	}
	err = fmt.Errorf("%s: %w", what, err)
	if kind != nil {
		err = fmt.Errorf("%w: %w", kind, err)
	}
	if e != nil && e.RetryAfter > 0 {
		return &outbox.RetryAfterError{After: e.RetryAfter, Err: err}
	}
	return err
}

// envelope wraps a message with everything it carries.
func envelope(row outbox.Row) []byte {
	e := struct {
		ID          string            `json:"id"`
		Topic       string            `json:"topic"`
		Key         string            `json:"key,omitempty"`
		Type        string            `json:"type,omitempty"`
		Headers     map[string]string `json:"headers,omitempty"`
		TraceParent string            `json:"traceparent,omitempty"`
		TraceState  string            `json:"tracestate,omitempty"`
		CreatedAt   time.Time         `json:"created_at"`
		Payload     json.RawMessage   `json:"payload,omitempty"`
		Base64      []byte            `json:"payload_base64,omitempty"`
	}{
		ID: row.ID.String(), Topic: row.Topic, Key: row.Key, Type: row.Type, Headers: row.Headers,
		TraceParent: row.TraceParent, TraceState: row.TraceState, CreatedAt: row.CreatedAt.UTC(),
	}
	if utf8.Valid(row.Payload) && json.Valid(row.Payload) {
		e.Payload = row.Payload
	} else {
		e.Base64 = row.Payload
	}
	out, err := json.Marshal(e)
	if err != nil {
		panic(fmt.Sprintf("queue: encode an envelope: %v", err)) // it has only strings, bytes and valid JSON
	}
	return out
}
