// Package stdout is the sink that writes messages as lines of JSON: to the terminal for experiments, or
// to a pipe or a file for programs that read lines.
//
// A line is one object with the members id, topic, subscription, shard, generation and created_at, and,
// if they are not empty, key, type, headers, traceparent and tracestate. The payload is the member
// payload if it is JSON, the string text if it is UTF-8, otherwise payload_base64.
//
// Lines are whole and in the order of the delivery, and lines of different deliveries are not mixed. A
// row counts as taken when the writer has accepted its line; lines that the system has not yet written to
// disk are lost if the machine crashes. If the writer fails, the sink is down.
package stdout

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"time"
	"unicode/utf8"

	"github.com/google/uuid"

	"github.com/emitd/emitd/outbox"
	"github.com/emitd/emitd/outbox/sink"
)

// Config configures the sink.
type Config struct {
	// File is appended to, and created if it does not exist; default standard output. "/dev/stderr" is
	// standard error.
	File string `yaml:"file"`
	// Writer is used instead of File.
	Writer io.Writer `yaml:"-"`
}

// Sink writes lines. It is safe for concurrent use.
type Sink struct {
	mu   chan struct{} // held while writing; a channel, because a writer may block for ever
	out  io.Writer
	file *os.File
}

var _ outbox.Sink = (*Sink)(nil)

// New opens the file, if one is named.
func New(_ context.Context, cfg Config) (*Sink, error) {
	s := &Sink{mu: make(chan struct{}, 1), out: os.Stdout}
	switch {
	case cfg.Writer != nil && cfg.File != "":
		return nil, fmt.Errorf("stdout: both a writer and the file %s are given", cfg.File)
	case cfg.Writer != nil:
		s.out = cfg.Writer
	case cfg.File != "":
		f, err := os.OpenFile(cfg.File, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
		if err != nil {
			return nil, fmt.Errorf("stdout: open the file: %w", err)
		}
		s.out, s.file = f, f
	}
	return s, nil
}

// Close closes the file that New opened.
func (s *Sink) Close() error {
	if s.file == nil {
		return nil
	}
	return s.file.Close()
}

// line is the JSON object of a message.
type line struct {
	ID           uuid.UUID         `json:"id"`
	Topic        string            `json:"topic"`
	Key          string            `json:"key,omitempty"`
	Type         string            `json:"type,omitempty"`
	Subscription string            `json:"subscription"`
	Shard        int               `json:"shard"`
	Generation   int64             `json:"generation"`
	CreatedAt    time.Time         `json:"created_at"`
	Headers      map[string]string `json:"headers,omitempty"`
	TraceParent  string            `json:"traceparent,omitempty"`
	TraceState   string            `json:"tracestate,omitempty"`
	Payload      json.RawMessage   `json:"payload,omitempty"`
	Text         string            `json:"text,omitempty"`
	Base64       []byte            `json:"payload_base64,omitempty"`
}

func newLine(d outbox.Delivery, row outbox.Row) line {
	l := line{
		ID: row.ID, Topic: row.Topic, Key: row.Key, Type: row.Type, Headers: row.Headers,
		Subscription: d.Subscription, Shard: row.Shard, Generation: d.Epoch, CreatedAt: row.CreatedAt.UTC(),
		TraceParent: row.TraceParent, TraceState: row.TraceState,
	}
	switch {
	case len(row.Payload) == 0:
	case !utf8.Valid(row.Payload):
		l.Base64 = row.Payload
	case json.Valid(row.Payload):
		l.Payload = row.Payload
	default:
		l.Text = string(row.Payload)
	}
	return l
}

// Deliver writes the rows.
func (s *Sink) Deliver(ctx context.Context, d outbox.Delivery) []error {
	if len(d.Rows) == 0 {
		return nil
	}
	select {
	case s.mu <- struct{}{}:
	case <-ctx.Done():
		return []error{fmt.Errorf("write: not attempted: %w", context.Cause(ctx))}
	}
	if err := ctx.Err(); err != nil {
		<-s.mu
		return []error{fmt.Errorf("write: not attempted: %w", err)}
	}
	done := make(chan error, 1)
	go func() {
		defer func() { <-s.mu }()
		done <- s.write(d)
	}()
	select {
	case err := <-done:
		if err != nil {
			return []error{sink.Down("write", err)}
		}
		return nil
	case <-ctx.Done():
		return []error{fmt.Errorf("write: not confirmed: %w", context.Cause(ctx))}
	}
}

func (s *Sink) write(d outbox.Delivery) error {
	buffer := bufio.NewWriterSize(s.out, 64<<10)
	lines := json.NewEncoder(buffer)
	lines.SetEscapeHTML(false)
	for _, row := range d.Rows {
		if err := lines.Encode(newLine(d, row)); err != nil {
			return err
		}
	}
	return buffer.Flush()
}
