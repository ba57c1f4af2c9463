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
	"github.com/emitd/emitd/outbox/sink"
)

// Fence makes the broker reject older producers of the range and of overlapping ranges. It does nothing
// if the sink is not transactional.
func (s *Sink) Fence(ctx context.Context, subscription, shards string, epoch int64) error {
	if !s.cfg.Transactional {
		return nil
	}
	id := idOf(subscription, shards)
	if _, err := s.await(ctx, id, func() (*opening, *producer, error) {
		o, err := s.opening(id, epoch)
		return o, nil, err
	}); err != nil {
		return err
	}
	return s.fenceOthers(ctx, subscription, shards)
}

// repeatAfter is the pause before a request is repeated.
const repeatAfter = 50 * time.Millisecond

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
		if err := s.raiseEpoch(ctx, id); err != nil {
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

// raiseEpoch raises the producer epoch of a transactional ID that no relay may use any more.
func (s *Sink) raiseEpoch(ctx context.Context, id string) error {
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
