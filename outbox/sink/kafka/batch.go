package kafka

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/emitd/emitd/outbox"
	"github.com/emitd/emitd/outbox/internal/progress"
	"github.com/emitd/emitd/outbox/sink"
)

// Records of one key are produced in one batch, because a broker takes or refuses a batch as a whole. Two
// batches in flight would not do: after a refusal the client goes on with the one behind it.
//
// The client makes batches by itself. So that it makes one for each partition, a batcher belongs to one call at
// a time. It buffers all records first, of which there are no more than fit into a batch, and only then sends.

const (
	callsAtOnce = 4 // of one delivery
	maxIdle     = 8 // batchers that are kept for other deliveries
	// batchHead is what a batch takes besides its records, and recordHead what a record takes at most besides
	// its parts, in bytes.
	batchHead, recordHead, headerHead = 512, 48, 10
)

// maxSize returns the most bytes that a record may take in a batch.
func maxSize(r *kgo.Record) int {
	n := recordHead + len(r.Key) + len(r.Value)
	for _, h := range r.Headers {
		n += headerHead + len(h.Key) + len(h.Value)
	}
	return n
}

// batcher is a client that sends only when it is told to.
type batcher struct {
	client *kgo.Client
	placed chan struct{} // receives a value for each record that has its place in a batch
}

// OnProduceRecordPartitioned is called by the client when a record has its place in a batch.
func (b *batcher) OnProduceRecordPartitioned(*kgo.Record, int32) {
	select {
	case b.placed <- struct{}{}:
	default: // the client holds a lock here and must not be stopped
	}
}

// batcher takes a batcher without records, or makes one.
func (s *Sink) batcher() (*batcher, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return nil, sink.Down("produce", errors.New("the sink is closed"))
	}
	if n := len(s.idle); n > 0 {
		b := s.idle[n-1]
		s.idle = s.idle[:n-1]
		return b, nil
	}
	b := &batcher{placed: make(chan struct{}, s.cfg.Parallel)}
	// When a delivery ends, its records are given up, even those in flight. The client then continues with a
	// higher producer epoch, so brokers refuse a given-up record that arrives late.
	c, err := s.newClient(kgo.AllowIdempotentProduceCancellation(), kgo.ManualFlushing(), kgo.MaxBufferedRecords(max(10_000, s.cfg.Parallel)), kgo.WithHooks(b))
	if err != nil {
		return nil, sink.Down("produce", err)
	}
	b.client = c
	s.batchers[b] = struct{}{}
	return b, nil
}

// release keeps a batcher that has no records any more for other deliveries, or closes it.
func (s *Sink) release(b *batcher) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.closed && len(s.idle) < maxIdle {
		s.idle = append(s.idle, b)
		return
	}
	delete(s.batchers, b)
	go b.client.Close()
}

// produceTogether produces rows of one topic, those of a partition in one batch. The rows of a batch that is
// refused for good are produced again, one by one, to find those that are at fault.
func (s *Sink) produceTogether(ctx context.Context, records []*kgo.Record, rows []int) []error {
	errs := s.produceOnce(ctx, records, rows)
	if len(rows) == 1 {
		return errs
	}
	failed := map[string]bool{}
	for n, i := range rows {
		key := string(records[i].Key)
		switch {
		case key != "" && failed[key]:
			errs[n] = outbox.ErrSkipped
			continue
		case errors.Is(errs[n], outbox.ErrPermanent) || errors.Is(errs[n], kgo.ErrAborting) && ctx.Err() == nil:
			errs[n] = s.produceOnce(ctx, records, rows[n:n+1])[0]
		}
		failed[key] = failed[key] || errs[n] != nil
	}
	return errs
}

// produceOnce produces rows in one batch for each partition, and returns an error for each, nil if the brokers
// have it.
func (s *Sink) produceOnce(ctx context.Context, records []*kgo.Record, rows []int) []error {
	errs := make([]error, len(rows))
	b, err := s.batcher()
	if err != nil {
		return fill(errs, err)
	}
	var open sync.WaitGroup
	results := make([]error, len(rows))
	refused := make(chan struct{}, len(rows))
	for n, i := range rows {
		open.Add(1)
		b.client.Produce(ctx, records[i], func(_ *kgo.Record, err error) {
			if results[n] = err; err != nil {
				refused <- struct{}{}
			} else {
				progress.Taken(ctx, i)
			}
			open.Done()
		})
	}
	done := make(chan struct{})
	go func() {
		s.send(ctx, b, len(rows), refused)
		open.Wait()
		close(done)
		b.drain()
		s.release(b)
	}()
	topic := records[rows[0]].Topic
	select {
	case <-done:
	case <-ctx.Done(): // the client gives the records up when it next examines them
		return fill(errs, fmt.Errorf("produce to %.80q: not confirmed: %w", topic, context.Cause(ctx)))
	}
	for n := range rows {
		errs[n] = s.classify(ctx, topic, results[n])
	}
	return errs
}

// send sends the records of a call once all have their places in batches. If the client itself refuses one, it
// sends none: the others would go without it.
func (s *Sink) send(ctx context.Context, b *batcher, records int, refused <-chan struct{}) {
	for range records {
		select {
		case <-b.placed:
		case <-refused:
			_ = b.client.AbortBufferedRecords(context.WithoutCancel(ctx))
			return
		}
	}
	_ = b.client.Flush(context.WithoutCancel(ctx)) // each record has its own time limit
}

// drain forgets the records that were placed and then given up.
func (b *batcher) drain() {
	for {
		select {
		case <-b.placed:
		default:
			return
		}
	}
}

// fill sets all errors.
func fill(errs []error, err error) []error {
	for n := range errs {
		errs[n] = err
	}
	return errs
}
