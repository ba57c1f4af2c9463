package rabbitmq

import (
	"context"
	"errors"
	"fmt"

	amqp "github.com/rabbitmq/amqp091-go"

	"github.com/emitd/emitd/outbox"
	"github.com/emitd/emitd/outbox/internal/progress"
	"github.com/emitd/emitd/outbox/sink"
)

// inFlight is a message that was published, or the reason why it was not.
type inFlight struct {
	key          string // its routing key
	confirmation *amqp.DeferredConfirmation
	err          error
}

// pipeline publishes rows one behind the other without waiting, and then waits for all confirmations. It returns
// an error for each row, nil if the broker has it and all before it of its key.
func (s *Sink) pipeline(ctx context.Context, l *link, d outbox.Delivery, rows []int) []error {
	published := make(chan inFlight, len(rows))
	go s.publishAll(ctx, l, d, rows, published) // the library's write never ends if the peer does not read
	errs := make([]error, len(rows))
	failed := map[string]bool{}
	var stuck error // why nothing more is waited for
	for n, i := range rows {
		row := d.Rows[i]
		err := stuck
		if err == nil {
			if err, stuck = s.awaitNext(ctx, l, row, published); stuck != nil {
				err = stuck
			}
		}
		switch {
		case err == nil && failed[row.Key]:
			err = outbox.ErrSkipped // the broker has it, too early: it comes again behind the one that failed
		case err == nil:
			progress.Taken(ctx, i)
		case failed[row.Key] && !errors.Is(err, outbox.ErrSinkDown):
			err = outbox.ErrSkipped
		}
		errs[n] = err
		failed[row.Key] = failed[row.Key] || err != nil && row.Key != ""
	}
	return errs
}

// publishAll publishes rows and leaves out those of keys of which a row could not be published. It stops when
// the connection ends or blocks.
func (s *Sink) publishAll(ctx context.Context, l *link, d outbox.Delivery, rows []int, published chan<- inFlight) {
	var end error
	failed := map[string]bool{}
	for _, i := range rows {
		row := d.Rows[i]
		m := inFlight{err: end}
		switch {
		case end != nil:
		case failed[row.Key]:
			m.err = outbox.ErrSkipped
		case ctx.Err() != nil:
			m.err = fmt.Errorf("publish: not attempted: %w", context.Cause(ctx))
		default:
			if m.key, m.err = s.check(l, row); m.err != nil {
				break
			}
			if m.confirmation, m.err = l.channel.PublishWithDeferredConfirm(s.cfg.Exchange, m.key, !s.cfg.Unroutable, false, message(d, row)); m.err != nil {
				m.err = s.outcome(ctx, l, m.key, "", l.cause(ctx, m.err))
				end = m.err
			}
		}
		if errors.Is(m.err, outbox.ErrSinkDown) {
			end = m.err
		}
		failed[row.Key] = failed[row.Key] || m.err != nil && row.Key != ""
		published <- m
	}
}

// awaitNext waits for the confirmation of the next message. It also returns why the broker counts as silent, so
// that the confirmations behind it are not waited for either.
func (s *Sink) awaitNext(ctx context.Context, l *link, row outbox.Row, published <-chan inFlight) (err, silent error) {
	ctx, cancel := sink.WithDeadline(ctx, sink.TimeoutError{What: "the broker", After: s.cfg.Timeout})
	defer cancel()
	var m inFlight
	select {
	case m = <-published:
	case <-ctx.Done():
		return nil, s.outcome(ctx, l, s.routingKey(row), "", context.Cause(ctx))
	}
	if m.err != nil {
		return m.err, nil
	}
	returned, err := l.awaitConfirmation(ctx, m.confirmation, !s.cfg.Unroutable, row.ID.String())
	if err = s.outcome(ctx, l, m.key, returned, err); err != nil && ctx.Err() != nil {
		silent = err
	}
	return err, silent
}
