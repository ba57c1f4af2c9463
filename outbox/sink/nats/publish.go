package nats

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/emitd/emitd/outbox"
	"github.com/emitd/emitd/outbox/internal/progress"
	"github.com/emitd/emitd/outbox/sink"
)

// Codes of JetStream errors for which the client has no name.
const (
	codeTooLarge      = 10054 // the stream's own limit
	codeFull          = 10077 // limits of one stream, which refuse new messages
	codeOtherStream   = 10060 // the subject belongs to a stream that is not Config.Stream
	codeWrongSequence = 10071
	codeBusySequence  = 10164 // the same, or another message with a condition on the subject is in flight
)

// publish publishes one row and waits for the acknowledgement.
func (s *Sink) publish(ctx context.Context, d outbox.Delivery, row outbox.Row) error {
	if !valid(row.Topic) {
		return sink.Permanent("publish: the topic %.80q is not a valid subject", row.Topic)
	}
	if !s.cfg.Fence {
		return s.send(ctx, d, row)
	}
	// The stream's limits may have removed the marker, or another message of the shard, from a delivery that
	// was given up, may still be in flight. So the marker is read again and the publish repeated.
	var err error
	for range 3 {
		var m marker
		if m, err = s.ownMarker(ctx, d, row.Shard); err != nil {
			return err
		}
		err = s.send(ctx, d, row, jetstream.WithExpectLastSequenceForSubject(m.sequence, m.subject))
		if code := codeOf(err); code != codeWrongSequence && code != codeBusySequence {
			return err
		}
		s.forget(m)
	}
	return err
}

// send publishes a row once, with conditions as options.
func (s *Sink) send(ctx context.Context, d outbox.Delivery, row outbox.Row, opts ...jetstream.PublishOpt) error {
	ctx, cancel := sink.WithDeadline(ctx, sink.TimeoutError{What: "the stream", After: s.cfg.Timeout})
	defer cancel()
	opts = append(opts, jetstream.WithMsgID(row.ID.String()))
	if s.cfg.Stream != "" {
		opts = append(opts, jetstream.WithExpectStream(s.cfg.Stream))
	}
	ack, err := s.js.PublishMsgAsync(message(d, row), opts...)
	if err != nil {
		return s.classify(ctx, row.Topic, err)
	}
	select {
	case <-ack.Ok():
		return nil
	case err := <-ack.Err():
		return s.classify(ctx, row.Topic, err)
	case <-ctx.Done():
		return s.unacknowledged(row.Topic, context.Cause(ctx))
	}
}

func message(d outbox.Delivery, row outbox.Row) *nats.Msg {
	m := &nats.Msg{Subject: row.Topic, Data: row.Payload, Header: nats.Header{}}
	for _, h := range sink.Headers(d, row) {
		if !strings.HasPrefix(strings.ToLower(h.Name), "nats-") { // commands to the server
			m.Header[h.Name] = []string{h.Value}
		}
	}
	return m
}

// denial is the server's last refusal to let this user publish to a subject. It says so each time.
type denial struct {
	why string
	at  time.Time
}

const maxDenied = 1000 // subjects that are remembered

// unacknowledged returns the error for a missing answer. If the server does not allow the publish, it
// says so without naming the message, so denied subjects are looked up.
func (s *Sink) unacknowledged(subject string, cause error) error {
	s.mu.Lock()
	denied := s.denied[subject]
	s.mu.Unlock()
	switch {
	case time.Since(denied.at) < s.silence():
		return fmt.Errorf("publish to %.80q: %s", subject, denied.why)
	case !s.conn.IsConnected():
		return s.errNotConnected()
	default:
		return fmt.Errorf("publish to %.80q: not confirmed: %w", subject, cause)
	}
}

// asyncError records permission errors, which the server sends outside of any answer.
func (s *Sink) asyncError(_ *nats.Conn, _ *nats.Subscription, err error) {
	if !errors.Is(err, nats.ErrPermissionViolation) {
		return
	}
	text := err.Error()
	_, rest, _ := strings.Cut(text, `to "`)
	subject, _, found := strings.Cut(rest, `"`)
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.denied) >= maxDenied {
		maps.DeleteFunc(s.denied, func(_ string, d denial) bool { return time.Since(d.at) >= s.silence() })
	}
	if found && len(s.denied) < maxDenied {
		s.denied[subject] = denial{s.redact(err), time.Now()}
	}
}

// classify returns the kind of an error of publishing.
func (s *Sink) classify(ctx context.Context, subject string, err error) error {
	what := fmt.Sprintf("publish to %.80q", subject)
	api, _ := errors.AsType[*jetstream.APIError](err)
	switch {
	case errors.Is(err, nats.ErrMaxPayload), errors.Is(err, nats.ErrBadSubject), errors.Is(err, nats.ErrInvalidMsg):
		return sink.Permanent("%s: %w", what, err)
	case errors.Is(err, jetstream.ErrNoStreamResponse), errors.Is(err, nats.ErrNoResponders):
		return s.noStream(ctx, subject, err)
	case api != nil && int(api.ErrorCode) == codeTooLarge:
		return sink.Permanent("%s: %w", what, err)
	case api != nil && int(api.ErrorCode) == codeOtherStream:
		return sink.Permanent("%s: the subject does not belong to the stream %s: %w", what, s.cfg.Stream, err)
	case api != nil && api.Code == 503 && (s.cfg.Stream != "" || int(api.ErrorCode) != codeFull):
		return sink.Down(what, err)
	case api != nil:
		return fmt.Errorf("%s: %w", what, err)
	case errors.Is(err, jetstream.ErrAsyncPublishTimeout):
		return s.unacknowledged(subject, progress.Unanswered(err))
	case errors.Is(err, jetstream.ErrTooManyStalledMsgs):
		return sink.Down(what, err)
	case ctx.Err() != nil:
		return s.unacknowledged(subject, context.Cause(ctx))
	case !s.conn.IsConnected() || errors.Is(err, nats.ErrReconnectBufExceeded) || errors.Is(err, nats.ErrConnectionClosed) || errors.Is(err, nats.ErrDisconnected):
		return s.errNotConnected()
	default:
		return fmt.Errorf("%s: %s", what, s.redact(err))
	}
}

// noStream finds out why no stream answered. A stream that has no leader is also silent for a moment.
func (s *Sink) noStream(ctx context.Context, subject string, err error) error {
	what := fmt.Sprintf("publish to %.80q", subject)
	_, lookupErr := s.js.StreamNameBySubject(ctx, subject)
	switch {
	case lookupErr == nil:
		return fmt.Errorf("%s: the stream has no leader now: %w", what, err)
	case errors.Is(lookupErr, jetstream.ErrStreamNotFound):
		return sink.Missing("%s: no stream has this subject: create one that binds it", what)
	case ctx.Err() != nil:
		return s.unacknowledged(subject, context.Cause(ctx))
	default:
		return sink.Down(what, fmt.Errorf("JetStream does not answer: %w", lookupErr))
	}
}

// codeOf returns the code of a JetStream error, or 0.
func codeOf(err error) int {
	if api, ok := errors.AsType[*jetstream.APIError](err); ok {
		return int(api.ErrorCode)
	}
	return 0
}
