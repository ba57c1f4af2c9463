package kafka

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/emitd/emitd/outbox"
	"github.com/emitd/emitd/outbox/sink"
)

// errAborted is the error of rows whose transaction was aborted because of another row.
var errAborted = errors.New("the transaction was aborted because of another message")

// producer owns a transactional ID. It has one transaction at a time.
type producer struct {
	id     string
	epoch  int64
	client *kgo.Client
	txLock chan struct{} // held while a transaction is open
	once   sync.Once
	// fenced says that a newer producer has the ID. Only Fence makes another producer of the same epoch.
	fenced bool // under Sink.mu
}

func (p *producer) close() { p.once.Do(p.client.Close) }

// idOf returns the transactional ID of a range.
func idOf(subscription, shards string) string { return prefixOf(subscription) + shards }

func prefixOf(subscription string) string { return "emitd/" + subscription + "/" }

// discard removes a producer whose state is unknown, or marks it as fenced.
func (s *Sink) discard(p *producer, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.producers[p.id] != p {
		return
	}
	if p.fenced || errors.Is(err, outbox.ErrFenced) { // errors after a fence are its consequence
		p.fenced = true
	} else {
		delete(s.producers, p.id)
	}
	go p.close()
}

// owns reports whether p is still the producer of its ID: it was not discarded. It may have been fenced.
func (s *Sink) owns(p *producer) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.producers[p.id] == p
}

// deliverInTx produces a delivery in one transaction. The end of ctx does not interrupt the commit: the
// next delivery of the range waits for it, unless no broker answers.
func (s *Sink) deliverInTx(ctx context.Context, d outbox.Delivery) []error {
	p, err := s.owner(ctx, d)
	if err != nil {
		return []error{err}
	}
	whole := ctx
	ctx, stop := s.watch.withBroker(ctx)
	defer stop()
	select {
	case p.txLock <- struct{}{}:
	case <-ctx.Done():
		return []error{sink.Down("begin a transaction of "+p.id+" after the one before", context.Cause(ctx))}
	}
	if !s.owns(p) { // the delivery before this one discarded the producer
		<-p.txLock
		stop()
		return s.deliverInTx(whole, d)
	}
	done := make(chan []error, 1)
	go func() {
		defer func() { <-p.txLock }()
		done <- s.transactions(ctx, p, d)
	}()
	select {
	case errs := <-done:
		return errs
	case <-ctx.Done():
		err := context.Cause(ctx)
		if errors.Is(err, outbox.ErrSinkDown) {
			s.discard(p, err) // its open transaction must not hold up deliveries when brokers are back
		}
		return []error{fmt.Errorf("produce: not confirmed: %w", err)}
	}
}

// transactions produces all rows in one transaction. Rows that make it fail, and the rows behind them in
// their keys, become suspects. The other rows are produced without them, and the suspects then one by
// one, because a broker refuses batches and not records.
func (s *Sink) transactions(ctx context.Context, p *producer, d outbox.Delivery) []error {
	result := make([]error, len(d.Rows))
	rows := make([]int, len(d.Rows))
	for i := range rows {
		rows[i] = i
	}
	suspects := map[int]bool{}
	for len(rows) > 0 {
		errs := s.transaction(ctx, p, d, rows)
		if errs == nil {
			break
		}
		blamed, err := blame(ctx, errs)
		if len(blamed) == 0 {
			for _, i := range rows {
				result[i] = err
			}
			break
		}
		var out []int
		rows, out = separate(d, rows, blamed, func(n int) bool {
			// What a broker refuses for good may only have shared its batch. Other errors concern the partition.
			sure := len(blamed) == 1 || oneOf(errs[n], unknown) || !errors.Is(errs[n], outbox.ErrPermanent)
			if sure {
				result[rows[n]] = errs[n]
			}
			return sure
		}, result)
		for _, i := range out {
			suspects[i] = true
		}
	}
	s.oneByOne(ctx, p, d, suspects, result)
	for _, err := range result {
		if err != nil {
			return result
		}
	}
	return nil
}

// blame returns the indexes of rows that failed for a reason of their own. If there are none, it returns the error that
// all rows failed by.
func blame(ctx context.Context, errs []error) (places map[int]bool, err error) {
	places = map[int]bool{}
	for n, e := range errs {
		ended := ctx.Err() != nil && errors.Is(e, context.Cause(ctx))
		if e != nil && !ended && !errors.Is(e, errAborted) && !errors.Is(e, outbox.ErrSinkDown) && !errors.Is(e, outbox.ErrFenced) {
			places[n] = true
		}
		if err == nil || errors.Is(err, errAborted) {
			err = e
		}
	}
	return places, err
}

// separate takes the blamed rows, and the rows behind them in their keys, out of a list. Rows behind one that
// is certainly guilty are skipped; the others become suspects.
func separate(d outbox.Delivery, rows []int, blamed map[int]bool, guilty func(n int) bool, result []error) (rest, suspects []int) {
	const suspect, dead = 1, 2
	keys := map[string]int{}
	for n, i := range rows {
		key := d.Rows[i].Key
		state := 0
		if key != "" {
			state = keys[key]
		}
		switch {
		case state == dead:
			result[i] = outbox.ErrSkipped
		case state == suspect:
			suspects = append(suspects, i)
		case !blamed[n]:
			rest = append(rest, i)
		case guilty(n):
			keys[key] = dead
		default:
			keys[key] = suspect
			suspects = append(suspects, i)
		}
	}
	return rest, suspects
}

// oneByOne produces each suspect in a transaction of its own, unless an earlier row of its key has failed.
func (s *Sink) oneByOne(ctx context.Context, p *producer, d outbox.Delivery, suspects map[int]bool, result []error) {
	failed := map[string]bool{}
	for i, row := range d.Rows {
		switch {
		case !suspects[i]:
		case failed[row.Key]:
			result[i] = outbox.ErrSkipped
		default:
			if errs := s.transaction(ctx, p, d, []int{i}); errs != nil {
				result[i] = errs[0]
			}
		}
		if result[i] != nil && row.Key != "" {
			failed[row.Key] = true
		}
	}
}

// transaction produces rows and commits. It returns nil, or an error for each row, and then no row is
// visible.
func (s *Sink) transaction(ctx context.Context, p *producer, d outbox.Delivery, rows []int) []error {
	all := func(err error) []error {
		errs := make([]error, len(rows))
		for n := range errs {
			errs[n] = err
		}
		return errs
	}
	if ctx.Err() != nil {
		return all(fmt.Errorf("produce: not attempted: %w", context.Cause(ctx)))
	}
	if err := p.client.BeginTransaction(); err != nil {
		return all(s.txFailed(p, err))
	}
	errs, failed := s.fill(ctx, p, d, rows)
	for _, err := range errs {
		if errors.Is(err, outbox.ErrFenced) {
			s.discard(p, err) // the broker has aborted the transaction
			return all(err)
		}
	}
	// The end of the transaction has its own timeout: if ctx cut it short, its outcome would be unknown.
	end, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.cfg.TransactionTimeout)
	defer cancel()
	commit := kgo.TransactionEndTry(!failed && ctx.Err() == nil)
	if err := p.client.EndTransaction(end, commit); err != nil {
		err = s.txFailed(p, err)
		if errors.Is(err, outbox.ErrFenced) || !failed {
			return all(err)
		}
	}
	switch {
	case failed:
		return errs
	case !bool(commit):
		return all(fmt.Errorf("produce: not confirmed: %w", context.Cause(ctx)))
	default:
		return nil
	}
}

// fill produces rows into the open transaction and waits for all of them. When ctx ends, records that are
// still buffered are given up.
func (s *Sink) fill(ctx context.Context, p *producer, d outbox.Delivery, rows []int) (errs []error, failed bool) {
	errs = make([]error, len(rows))
	var wg sync.WaitGroup
	for n, i := range rows {
		wg.Add(1)
		p.client.Produce(ctx, s.record(d, d.Rows[i]), func(_ *kgo.Record, err error) {
			errs[n] = err
			wg.Done()
		})
	}
	settled := make(chan struct{})
	go func() { wg.Wait(); close(settled) }()
	select {
	case <-settled:
	case <-ctx.Done():
		s.giveUp(ctx, p)
		<-settled
	}
	for n, i := range rows {
		errs[n] = s.classify(ctx, s.topic(d.Rows[i]), errs[n])
		failed = failed || errs[n] != nil
	}
	if failed {
		for n, err := range errs {
			if err == nil {
				errs[n] = errAborted
			}
		}
	}
	return errs, failed
}

// giveUp makes the client finish with all records of the producer. If the broker does not answer, it is
// unknown which it has; then the producer is discarded together with its records.
func (s *Sink) giveUp(ctx context.Context, p *producer) {
	bounded, cancel := context.WithTimeout(context.WithoutCancel(ctx), s.watch.silence)
	defer cancel()
	if err := p.client.AbortBufferedRecords(bounded); err != nil {
		s.discard(p, err)
	}
}

// txFailed returns the error for a transaction that could not begin or end, and discards the producer. The
// next delivery initialises another one, unless this one was fenced.
func (s *Sink) txFailed(p *producer, err error) error {
	switch {
	case oneOf(err, fenced) || errors.Is(err, kerr.InvalidProducerIDMapping):
		err = fmt.Errorf("%w: %s: %w", outbox.ErrFenced, p.id, err)
	case oneOf(err, down) || unreachable(err) || errors.Is(err, context.DeadlineExceeded):
		err = sink.Down("end the transaction of "+p.id, s.redacted(err))
	default:
		err = fmt.Errorf("end the transaction of %s: %w", p.id, err)
	}
	s.discard(p, err)
	return err
}
