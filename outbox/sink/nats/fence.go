package nats

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/emitd/emitd/outbox"
	"github.com/emitd/emitd/outbox/sink"
)

// marker is the newest message on a marker's subject.
type marker struct {
	subject  string
	epoch    int64
	sequence uint64 // 0: there is none
}

// Fence writes the markers of a range. It does nothing if Config.Fence is not set.
func (s *Sink) Fence(ctx context.Context, subscription, shards string, epoch int64) error {
	if !s.cfg.Fence {
		return nil
	}
	r, err := sink.Range(shards)
	if err != nil {
		return fmt.Errorf("nats: fence: %w", err)
	}
	if err := s.awaitConnection(ctx); err != nil {
		return err
	}
	subjects := make([]outbox.Row, 0, r.Hi-r.Lo+1)
	for shard := r.Lo; shard <= r.Hi; shard++ {
		subjects = append(subjects, outbox.Row{Shard: shard})
	}
	errs := sink.Each(ctx, subjects, len(subjects), func(ctx context.Context, i int) error {
		_, err := s.raise(ctx, s.markerSubject(subscription, subjects[i].Shard), epoch)
		return err
	})
	return errors.Join(first(errs, outbox.ErrFenced), first(errs, outbox.ErrSinkDown), first(errs, nil))
}

// first returns the first error of a kind; with a nil kind the first that is neither ErrFenced nor
// ErrSinkDown.
func first(errs []error, kind error) error {
	for _, err := range errs {
		known := errors.Is(err, outbox.ErrFenced) || errors.Is(err, outbox.ErrSinkDown)
		if err != nil && (kind == nil && !known || kind != nil && errors.Is(err, kind)) {
			return err
		}
	}
	return nil
}

// ownMarker returns the marker of a shard as this relay wrote it. It writes the marker if the relay has not
// called Fence.
func (s *Sink) ownMarker(ctx context.Context, d outbox.Delivery, shard int) (marker, error) {
	subject := s.markerSubject(d.Subscription, shard)
	s.mu.Lock()
	m, known := s.markers[subject]
	s.mu.Unlock()
	switch {
	case known && m.epoch == d.Epoch:
		return m, nil
	case known && m.epoch > d.Epoch:
		return marker{}, fmt.Errorf("shard %d of %s at epoch %d: %w", shard, d.Subscription, d.Epoch, &outbox.FencedError{Floor: m.epoch})
	}
	return s.raise(ctx, subject, d.Epoch)
}

// raise makes sure that the marker has this epoch, and returns it. A higher epoch belongs to another
// relay and is an error.
func (s *Sink) raise(ctx context.Context, subject string, epoch int64) (marker, error) {
	ctx, cancel := sink.WithDeadline(ctx, sink.TimeoutError{What: "the stream", After: s.cfg.Timeout})
	defer cancel()
	for {
		m, err := s.newest(ctx, subject)
		switch {
		case err != nil:
			return marker{}, err
		case m.epoch > epoch:
			s.remember(m)
			return marker{}, fmt.Errorf("%s at epoch %d: %w", subject, epoch, &outbox.FencedError{Floor: m.epoch})
		case m.epoch == epoch:
			s.remember(m)
			return m, nil
		}
		msg := &nats.Msg{Subject: subject, Header: nats.Header{sink.Generation: {strconv.FormatInt(epoch, 10)}}}
		ack, err := s.js.PublishMsg(ctx, msg,
			jetstream.WithExpectLastSequenceForSubject(m.sequence, subject), jetstream.WithExpectStream(s.cfg.Stream))
		if code := codeOf(err); code == codeWrongSequence || code == codeBusySequence {
			continue // another relay wrote at the same time: read again; ends with the context
		}
		if err != nil {
			return marker{}, s.fenceFailed(ctx, subject, err)
		}
		m = marker{subject: subject, epoch: epoch, sequence: ack.Sequence}
		s.remember(m)
		return m, nil
	}
}

// newest reads a marker. Sequence and epoch are 0 if there is none.
func (s *Sink) newest(ctx context.Context, subject string) (marker, error) {
	stream, err := s.js.Stream(ctx, s.cfg.Stream)
	if err != nil {
		return marker{}, s.fenceFailed(ctx, subject, err)
	}
	msg, err := stream.GetLastMsgForSubject(ctx, subject)
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return marker{subject: subject}, nil
	}
	if err != nil {
		return marker{}, s.fenceFailed(ctx, subject, err)
	}
	epoch, err := strconv.ParseInt(msg.Header.Get(sink.Generation), 10, 64)
	if err != nil {
		return marker{}, sink.Down("fence", fmt.Errorf("the subject %s holds a message that is not a fence marker", subject))
	}
	return marker{subject: subject, epoch: epoch, sequence: msg.Sequence}, nil
}

// fenceFailed returns the error for a marker that could not be read or written. Without it nothing can be
// published.
func (s *Sink) fenceFailed(ctx context.Context, subject string, err error) error {
	_, silent := errors.AsType[sink.TimeoutError](context.Cause(ctx)) // our own limit ended the call, not the delivery's
	switch {
	case !s.conn.IsConnected():
		return s.errNotConnected()
	case silent:
		return sink.Down("fence "+subject, context.Cause(ctx))
	case ctx.Err() != nil:
		return fmt.Errorf("fence %s: %w", subject, context.Cause(ctx))
	case errors.Is(err, jetstream.ErrStreamNotFound):
		return sink.Down("fence", fmt.Errorf("there is no stream %s", s.cfg.Stream))
	case errors.Is(err, jetstream.ErrNoStreamResponse), codeOf(err) == codeOtherStream:
		return sink.Down("fence", fmt.Errorf("the stream %s does not bind %s: add %s.> to its subjects", s.cfg.Stream, subject, s.cfg.FenceSubject))
	default:
		return sink.Down("fence", errors.New(s.redact(err)))
	}
}

func (s *Sink) remember(m marker) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.markers[m.subject].epoch <= m.epoch {
		s.markers[m.subject] = m
	}
}

// forget makes the next publish read the marker again.
func (s *Sink) forget(m marker) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.markers[m.subject] == m {
		delete(s.markers, m.subject)
	}
}

// forgetMarker makes the next publish read the marker on a subject again.
func (s *Sink) forgetMarker(subject string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.markers, subject)
}

// markerSubject returns the subject of a shard's marker. Characters that a subject cannot contain become
// = and two digits.
func (s *Sink) markerSubject(subscription string, shard int) string {
	var b strings.Builder
	b.WriteString(s.cfg.FenceSubject + ".")
	for i := range len(subscription) {
		switch c := subscription[i]; {
		case 'a' <= c && c <= 'z', 'A' <= c && c <= 'Z', '0' <= c && c <= '9', c == '-', c == '_':
			b.WriteByte(c)
		default:
			fmt.Fprintf(&b, "=%02X", c)
		}
	}
	return b.String() + "." + strconv.Itoa(shard)
}
