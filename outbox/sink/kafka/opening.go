package kafka

import (
	"context"
	"errors"
	"fmt"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/emitd/emitd/outbox"
	"github.com/emitd/emitd/outbox/sink"
)

// opening is the initialisation of a producer of a transactional ID. There is one at a time, because each makes
// the broker reject the producer before it.
//
// It goes on when the call that began it runs out of time, and the next call of the epoch waits for it. A call
// may have less time than a new client needs to find out that the broker it asks is silent. The next call
// would begin with another client, which may ask the silent broker again: chance would decide whether the
// range ever goes on, after pauses of the circuit breaker that grow to half a minute.
type opening struct {
	epoch     int64
	end       context.CancelCauseFunc
	abandoned bool // under Sink.mu: its producer is not wanted any more
	done      chan struct{}
	producer  *producer // like err, valid once done is closed
	err       error
}

// errAbandoned is the error of an opening that is over before it had a producer to give.
var errAbandoned = errors.New("the initialisation was abandoned")

// abandon ends an opening. The caller holds Sink.mu.
func (o *opening) abandon() {
	o.abandoned = true
	o.end(errAbandoned)
}

// opening returns the opening of an ID, and begins one if there is none. The caller holds s.mu.
func (s *Sink) opening(id string, epoch int64) (*opening, error) {
	if err := s.superseded(id, epoch); err != nil {
		return nil, err
	}
	if s.closed {
		return nil, sink.Down("fence "+id, errors.New("the sink is closed"))
	}
	if o := s.openings[id]; o != nil {
		if o.epoch < epoch {
			o.abandon()
		}
		return o, nil
	}
	ctx, end := context.WithCancelCause(s.client.Context())
	o := &opening{epoch: epoch, end: end, done: make(chan struct{})}
	s.openings[id] = o
	go func() {
		defer end(nil)
		o.producer, o.err = s.initialise(ctx, id, epoch)
		s.opened(id, o)
		close(o.done)
	}()
	return o, nil
}

// superseded refuses an epoch below the highest that this process has seen for the ID. The caller holds s.mu.
func (s *Sink) superseded(id string, epoch int64) error {
	floor := epoch
	if p := s.producers[id]; p != nil {
		floor = max(floor, p.epoch)
	}
	if o := s.openings[id]; o != nil {
		floor = max(floor, o.epoch)
	}
	if floor > epoch {
		return fmt.Errorf("%s at epoch %d: %w", id, epoch, &outbox.FencedError{Floor: floor})
	}
	return nil
}

// initialise makes a producer with a new producer epoch of the transactional ID.
func (s *Sink) initialise(ctx context.Context, id string, epoch int64) (*producer, error) {
	client, err := s.newClient(kgo.TransactionalID(id), kgo.TransactionTimeout(s.cfg.TransactionTimeout))
	if err != nil {
		return nil, fmt.Errorf("kafka: fence %s: %w", id, err)
	}
	if err := s.load(ctx, client, id); err != nil {
		client.Close()
		return nil, err
	}
	return &producer{id: id, epoch: epoch, client: client, txLock: make(chan struct{}, 1)}, nil
}

// load obtains a producer ID and epoch from the transaction coordinator.
func (s *Sink) load(ctx context.Context, client *kgo.Client, id string) error {
	ctx, stop := s.watch.withBroker(ctx)
	defer stop()
	ctx, cancel := sink.WithDeadline(ctx, sink.TimeoutError{What: "the transaction coordinator", After: s.cfg.Timeout})
	defer cancel()
	if _, _, err := client.ProducerID(ctx); err != nil {
		return s.initFailed(ctx, id, err)
	}
	return nil
}

// initFailed returns the error for a producer that could not be made. Without it nothing of the range can
// be delivered.
func (s *Sink) initFailed(ctx context.Context, id string, err error) error {
	switch {
	case ctx.Err() != nil:
		return sink.Down("fence "+id, context.Cause(ctx))
	case oneOf(err, fenced):
		return fmt.Errorf("%w: %s: %w", outbox.ErrFenced, id, err)
	default:
		return sink.Down("fence "+id, s.redacted(err))
	}
}

// opened ends an opening: its producer, if it has one, is the producer of the ID.
func (s *Sink) opened(id string, o *opening) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.openings, id)
	if o.abandoned || s.closed {
		if o.producer != nil {
			go o.producer.close()
		}
		o.producer, o.err = nil, errAbandoned
	}
	if o.err != nil {
		return
	}
	if old := s.producers[id]; old != nil {
		go old.close() // the broker has aborted its transaction
	}
	s.producers[id] = o.producer
}

// await waits for a producer: the one that find returns, or that of its opening. It calls find
// with s.mu held, and again after an opening that was abandoned.
func (s *Sink) await(ctx context.Context, id string, find func() (*opening, *producer, error)) (*producer, error) {
	for {
		s.mu.Lock()
		o, p, err := find()
		s.mu.Unlock()
		if o == nil || err != nil {
			return p, err
		}
		select {
		case <-o.done:
			if !errors.Is(o.err, errAbandoned) {
				return o.producer, o.err
			}
		case <-ctx.Done():
			// If it is not time that ran out, the relay's session has ended. Then perhaps another relay has the
			// range, which a late initialisation would fence.
			if !errors.Is(context.Cause(ctx), context.DeadlineExceeded) {
				s.mu.Lock()
				o.abandon()
				s.mu.Unlock()
			}
			return nil, sink.Down("fence "+id, context.Cause(ctx))
		}
	}
}

// owner returns the producer of a delivery. It makes one if the relay has not called Fence, or if the
// producer was discarded.
func (s *Sink) owner(ctx context.Context, d outbox.Delivery) (*producer, error) {
	id := idOf(d.Subscription, d.Range)
	return s.await(ctx, id, func() (*opening, *producer, error) {
		if p := s.producers[id]; p != nil && p.epoch == d.Epoch && s.openings[id] == nil {
			if p.fenced {
				return nil, nil, fmt.Errorf("%w: %s", outbox.ErrFenced, id)
			}
			return nil, p, nil
		}
		o, err := s.opening(id, d.Epoch)
		return o, nil, err
	})
}
