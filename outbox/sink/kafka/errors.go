package kafka

import (
	"context"
	"errors"
	"fmt"
	"net"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/emitd/emitd/outbox"
	"github.com/emitd/emitd/outbox/sink"
)

// Kafka's errors, by what they mean for a delivery.
var (
	refused = []error{kerr.MessageTooLarge, kerr.RecordListTooLarge, kerr.InvalidRecord, kerr.InvalidTimestamp, kerr.InvalidTopicException}
	unknown = []error{kerr.UnknownTopicOrPartition, kerr.UnknownTopicID}
	fenced  = []error{kerr.ProducerFenced, kerr.InvalidProducerEpoch}
	down    = []error{
		kgo.ErrClientClosed, kerr.SaslAuthenticationFailed, kerr.ClusterAuthorizationFailed,
		kerr.TransactionalIDAuthorizationFailed, kerr.UnsupportedSaslMechanism, kerr.IllegalSaslState,
		kerr.InvalidTransactionTimeout, kerr.CoordinatorNotAvailable, kerr.BrokerNotAvailable,
	}
)

func oneOf(err error, kinds []error) bool {
	for _, kind := range kinds {
		if errors.Is(err, kind) {
			return true
		}
	}
	return false
}

// classify returns the kind of an error of producing.
func (s *Sink) classify(ctx context.Context, topic string, err error) error {
	what := fmt.Sprintf("produce to %.80q", topic)
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil && (givenUp(err) || errors.Is(err, kgo.ErrAborting)):
		return fmt.Errorf("%s: not confirmed: %w", what, context.Cause(ctx))
	case oneOf(err, fenced) && s.cfg.Transactional:
		return fmt.Errorf("%w: %s: %w", outbox.ErrFenced, what, err)
	case oneOf(err, refused):
		return sink.Permanent("%s: %w", what, err)
	case oneOf(err, unknown) && s.cfg.Topic == "":
		return sink.Missing("%s: no such topic: %w", what, err)
	case oneOf(err, unknown), oneOf(err, down):
		return sink.Down(what, s.redacted(err))
	case errors.Is(context.Cause(ctx), outbox.ErrSinkDown): // the reason that ended ctx made this record fail, too
		return fmt.Errorf("%s: not confirmed: %w: %w", what, context.Cause(ctx), s.redacted(err))
	case !answered(err), errors.Is(err, kgo.ErrRecordTimeout):
		// A partition that takes no records affects only its topic, and so does a broker that is gone while
		// others answer.
		if why := s.watch.unreachable(ctx); why != nil {
			return fmt.Errorf("%s: %w: %w", what, why, s.redacted(err))
		}
		return fmt.Errorf("%s: %w", what, s.redacted(err))
	default:
		return fmt.Errorf("%s: %w", what, s.redacted(err))
	}
}

// givenUp reports whether a record was given up because a context ended.
func givenUp(err error) bool {
	return errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled)
}

// answered reports whether an error was sent by a broker.
func answered(err error) bool {
	_, answered := errors.AsType[*kerr.Error](err)
	return answered
}

// unreachable reports whether an error concerns the connection to a broker. The error of an ended context
// also has the type of a network error, but says nothing about the network.
func unreachable(err error) bool {
	if givenUp(err) {
		return false
	}
	_, network := errors.AsType[net.Error](err)
	return network || sink.Unreachable(err)
}

// redacted removes the password from a library's error.
func (s *Sink) redacted(err error) error {
	if text := err.Error(); s.cfg.SASL.Password != "" {
		if clean := sink.Redact(text, s.cfg.SASL.Password); clean != text {
			return errors.New(clean)
		}
	}
	return err
}
