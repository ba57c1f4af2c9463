package kafka

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/emitd/emitd/internal/backoff"
	"github.com/emitd/emitd/outbox"
	"github.com/emitd/emitd/outbox/sink"
)

// Fence makes the broker reject older producers of the range and of overlapping ranges. It does nothing
// if the sink is not transactional.
func (s *Sink) Fence(ctx context.Context, subscription, shards string, epoch int64) error {
	if !s.cfg.Transactional {
		return nil
	}
	leave, err := s.lockID(ctx, idOf(subscription, shards))
	if err != nil {
		return err
	}
	_, err = s.initialise(ctx, subscription, shards, epoch)
	leave()
	if err != nil {
		return err
	}
	return s.fenceOthers(ctx, subscription, shards)
}

// lockID ensures that only one goroutine at a time initialises a producer of an ID, because each
// initialisation makes the broker reject the producer before it.
func (s *Sink) lockID(ctx context.Context, id string) (leave func(), err error) {
	s.mu.Lock()
	turn := s.idLocks[id]
	if turn == nil {
		turn = make(chan struct{}, 1)
		s.idLocks[id] = turn
	}
	s.mu.Unlock()
	select {
	case turn <- struct{}{}:
		return func() { <-turn }, nil
	case <-ctx.Done():
		return nil, sink.Down("fence "+id+" after another attempt", context.Cause(ctx))
	}
}

// initialise makes a producer with a new producer epoch of the transactional ID. The caller has called
// lockID for the ID.
func (s *Sink) initialise(ctx context.Context, subscription, shards string, epoch int64) (*producer, error) {
	id := idOf(subscription, shards)
	if err := s.superseded(id, epoch); err != nil {
		return nil, err
	}
	client, err := s.newClient(kgo.TransactionalID(id), kgo.TransactionTimeout(s.cfg.TransactionTimeout))
	if err != nil {
		return nil, fmt.Errorf("kafka: fence %s: %w", id, err)
	}
	if err := s.load(ctx, client, id); err != nil {
		client.Close()
		return nil, err
	}
	p := &producer{id: id, epoch: epoch, client: client, txLock: make(chan struct{}, 1)}
	s.mu.Lock()
	defer s.mu.Unlock()
	old := s.producers[id]
	if s.closed || old != nil && old.epoch > epoch {
		go p.close()
		return nil, fmt.Errorf("%w: %s", outbox.ErrFenced, id)
	}
	s.producers[id] = p
	if old != nil {
		go old.close() // the broker has aborted its transaction
	}
	return p, nil
}

// load obtains a producer ID and epoch from the transaction coordinator.
func (s *Sink) load(ctx context.Context, client *kgo.Client, id string) error {
	ctx, stop := s.watch.during(ctx)
	defer stop()
	ctx, cancel := sink.WithDeadline(ctx, sink.TimeoutError{What: "the transaction coordinator", After: s.cfg.Timeout})
	defer cancel()
	if _, _, err := client.ProducerID(ctx); err != nil {
		return s.initFailed(ctx, id, err)
	}
	return nil
}

// repeatAfter is the pause before a request is repeated.
const repeatAfter = 50 * time.Millisecond

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

// superseded refuses an epoch below the highest that this process has seen for the ID.
func (s *Sink) superseded(id string, epoch int64) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if p := s.producers[id]; p != nil && p.epoch > epoch {
		return fmt.Errorf("%s at epoch %d: %w", id, epoch, &outbox.FencedError{Floor: p.epoch})
	}
	return nil
}

// fenceOthers initialises the transactional IDs of overlapping ranges, so that the broker rejects their
// producers. It is best effort: a broker may not list transactions, or not to this user, and a silent
// broker is skipped so that it does not hold up the others.
func (s *Sink) fenceOthers(ctx context.Context, subscription, shards string) error {
	own, err := sink.Range(shards)
	if err != nil {
		return nil //nolint:nilerr // a range of another kind overlaps none
	}
	ctx, cancel := sink.WithDeadline(ctx, sink.TimeoutError{What: "the brokers", After: s.cfg.Timeout})
	defer cancel()
	ids, err := s.listed(ctx)
	for _, id := range ids {
		name, ours := strings.CutPrefix(id, prefixOf(subscription))
		other, err := sink.Range(name)
		if !ours || err != nil || name == shards || !sink.Overlaps(own, other) {
			continue
		}
		if err := s.bump(ctx, id); err != nil {
			return fmt.Errorf("fence %s: %w", id, err)
		}
	}
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	if err != nil {
		return fmt.Errorf("fence what overlaps %s: %w", idOf(subscription, shards), err)
	}
	return nil
}

// listed returns the transactional IDs that the brokers report.
func (s *Sink) listed(ctx context.Context) (ids []string, err error) {
	all := kmsg.NewPtrMetadataRequest()
	all.Topics = []kmsg.MetadataRequestTopic{} // with this the client learns all brokers; the watch uses them too
	if _, err := all.RequestWith(ctx, s.client); err != nil {
		return nil, s.redacted(err)
	}
	ctx, cancel := context.WithTimeout(ctx, s.watch.silence)
	defer cancel()
	brokers := s.client.DiscoveredBrokers()
	answers := make(chan []string, len(brokers))
	for _, b := range brokers {
		go func() { answers <- list(ctx, b) }()
	}
	for range brokers {
		ids = append(ids, <-answers...)
	}
	return ids, nil
}

// list asks a broker for the transactional IDs that it coordinates. An error counts as none.
func list(ctx context.Context, b *kgo.Broker) (ids []string) {
	resp, err := b.Request(ctx, kmsg.NewPtrListTransactionsRequest())
	if err != nil {
		return nil
	}
	for _, t := range resp.(*kmsg.ListTransactionsResponse).TransactionStates {
		ids = append(ids, t.TransactionalID)
	}
	return ids
}

// bump raises the producer epoch of a transactional ID that no relay may use any more.
func (s *Sink) bump(ctx context.Context, id string) error {
	for {
		req := kmsg.NewPtrInitProducerIDRequest()
		req.TransactionalID = &id
		req.TransactionTimeoutMillis = int32(min(s.cfg.TransactionTimeout.Milliseconds(), 1<<30)) // bounded
		req.ProducerID, req.ProducerEpoch = -1, -1
		resp, err := req.RequestWith(ctx, s.client)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err != nil {
			return s.redacted(err)
		}
		// The broker first aborts the open transaction of the ID, and only then raises the epoch.
		if err = kerr.ErrorForCode(resp.ErrorCode); !errors.Is(err, kerr.ConcurrentTransactions) {
			return err
		}
		if backoff.Sleep(ctx, repeatAfter) != nil {
			return context.Cause(ctx)
		}
	}
}

// owner returns the producer of a delivery. It makes one if the relay has not called Fence, or if the
// producer was discarded.
func (s *Sink) owner(ctx context.Context, d outbox.Delivery) (*producer, error) {
	if p, err := s.current(d); p != nil || err != nil {
		return p, err
	}
	leave, err := s.lockID(ctx, idOf(d.Subscription, d.Range))
	if err != nil {
		return nil, err
	}
	defer leave()
	if p, err := s.current(d); p != nil || err != nil {
		return p, err // the goroutine that had the turn has made it
	}
	return s.initialise(ctx, d.Subscription, d.Range, d.Epoch)
}

// current returns the producer of a delivery, nil if there is none.
func (s *Sink) current(d outbox.Delivery) (*producer, error) {
	id := idOf(d.Subscription, d.Range)
	if err := s.superseded(id, d.Epoch); err != nil {
		return nil, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch p := s.producers[id]; {
	case p == nil || p.epoch != d.Epoch:
		return nil, nil
	case p.fenced:
		return nil, fmt.Errorf("%w: %s", outbox.ErrFenced, id)
	default:
		return p, nil
	}
}
